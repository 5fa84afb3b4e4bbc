"""What a partition's next cleaning is to do, and why, or what keeps it from being done.

Pure: a chain, a topic's settings, a time and the last stable offset in, a `Plan` out; no ledger is
read for it. Kafka's LogCleanerManager (`grabFilthiestCompactedLog`, `cleanableOffsets`) decides
the same of segment files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.config_topic import TopicConfig
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo


class Due(Enum):
    """Why a pass is due, the strongest reason first. HORIZON is a pass of another kind: over its
    groups only, without a map of keys, and it stamps nothing."""

    ASKED = "asked for"
    LAG = "max.compaction.lag.ms"
    RATIO = "min.cleanable.dirty.ratio"
    JOIN = "many small ledgers"
    HORIZON = "delete horizon"


class Blocker(Enum):
    """What the range of a pass ends at."""

    OPEN_LEDGER = "open ledger"
    LAST_STABLE_OFFSET = "last stable offset"
    MIN_LAG = "min.compaction.lag.ms"


@dataclass(slots=True, frozen=True)
class PlanSettings:
    """Of a topic. Times in milliseconds, sizes in bytes; retention_ms -1: no limit."""

    is_compacted: bool
    is_deleted: bool
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    segment_bytes: int
    segment_ms: int
    retention_ms: int

    @classmethod
    def of(cls, config: TopicConfig) -> PlanSettings:
        raise NotImplementedError


@dataclass(slots=True, frozen=True)
class Group:
    """Consecutive closed ledgers that one ledger is to stand in for; at least one."""

    sources: tuple[LedgerInfo, ...]
    #: It is to be rewritten even if all records stay: the chain has too many ledgers.
    is_joining: bool = False

    @property
    def source_ids(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def base_offset(self) -> int:
        raise NotImplementedError

    @property
    def end_offset(self) -> int:
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        raise NotImplementedError


@dataclass(slots=True, frozen=True)
class Plan:
    """Of a pass, or of none (`due` is None). The map of keys is filled from [first_dirty, end);
    `groups` are what is copied, the oldest first: of a pass all ledgers from the first on to `end`,
    clean ones too; of a horizon pass those that have one that has come."""

    due: Due | None
    first_dirty: int
    #: First uncleanable: the base of a ledger, or the log's end.
    end: int
    groups: tuple[Group, ...]
    clean_bytes: int
    #: Of [first_dirty, end).
    cleanable_bytes: int
    #: Of all closed ledgers behind the first dirty offset.
    dirty_bytes: int
    #: cleanable / (clean + cleanable), 0 if there is nothing.
    ratio: float
    #: By so much max.compaction.lag.ms is exceeded (Kafka's max-compaction-delay); 0 if not.
    delay_ms: int
    #: Why the range does not go on behind `end`; None if everything closed is in it.
    blocked_by: Blocker | None


def make_plan(
    chain: Chain,
    settings: PlanSettings,
    *,
    now_ms: int,
    last_stable_offset: int,
    is_asked: bool = False,
) -> Plan:
    """`is_asked`: somebody wants a pass now, whatever the ratio is."""
    raise NotImplementedError


def make_groups(ledgers: Sequence[LedgerInfo], settings: PlanSettings) -> tuple[Group, ...]:
    """Of consecutive closed ledgers. For a pass whose map was full before `Plan.end`: of those
    before its own end."""
    raise NotImplementedError
