"""What a partition's next cleaning is to do, and why, or what keeps it from being done.

Pure: a chain, a topic's settings, a time and the last stable offset in, a `Plan` out; no ledger is
read for it. Kafka's LogCleanerManager (`grabFilthiestCompactedLog`, `cleanableOffsets`) decides
the same of segment files. Ours differs in this: a closed last ledger is cleaned as any other, so
that a quiet topic gets clean; the age for max.compaction.lag.ms is that of the ledger, not of its
records, so that old records written now are not due at once; and what has a delete horizon is due
when that has come (`Due.HORIZON`), where Kafka waits until something else makes the log due.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from broker.log.life.retention import RETENTION_SHARE, age_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.cluster.config_topic import TopicConfig
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo

#: With more closed ledgers a pass is worth it that only joins them: each is a part of a document
#: that is read and written whole, and some nodes of metadata.
JOIN_LEDGERS = 200
#: It has to leave this share of them at most.
JOIN_SHARE = 0.5
#: Ledgers of a group at most: after the swap each is named as to be deleted, in a document that has
#: a limit (broker/log/life/deletions.py).
SOURCES_MAX = 1000
#: A ledger's entries tell offsets as the first and a count of 31 bits.
SPAN_MAX = (1 << 31) - 1


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
        return cls(
            is_compacted="compact" in config.cleanup_policy,
            is_deleted="delete" in config.cleanup_policy,
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            retention_ms=config.retention_ms,
        )


@dataclass(slots=True, frozen=True)
class Group:
    """Consecutive closed ledgers that one ledger is to stand in for; at least one."""

    sources: tuple[LedgerInfo, ...]
    #: It is to be rewritten even if all records stay: the chain has too many ledgers.
    is_joining: bool = False

    @property
    def source_ids(self) -> tuple[int, ...]:
        return tuple(info.ledger_id for info in self.sources)

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.sources[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.sources)


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
    #: Of the ledgers of [first_dirty, end).
    cleanable_bytes: int
    #: Of all closed ledgers behind the first dirty offset.
    dirty_bytes: int
    #: cleanable / (clean + cleanable), 0 if there is nothing.
    ratio: float
    #: By so much max.compaction.lag.ms is exceeded (Kafka's max-compaction-delay); 0 if not.
    delay_ms: int
    #: Why the range does not go on behind `end`; None if everything is in it.
    blocked_by: Blocker | None


def make_plan(
    chain: Chain,
    settings: PlanSettings,
    *,
    now_ms: int,
    last_stable_offset: int,
    is_asked: bool = False,
) -> Plan:
    """`is_asked`: somebody wants a pass now, whatever the ratio is. A topic that is not compacted
    has no pass due."""
    first_dirty = chain.first_dirty
    closed = [info for info in chain.ledgers if not info.is_open]
    cleanable, blocked_by = _cleanable(chain, settings, now_ms, last_stable_offset)
    end = cleanable[-1].end_offset if cleanable else first_dirty
    end = max(end, first_dirty)
    clean_bytes = _size(info for info in closed if info.end_offset <= first_dirty)
    cleanable_bytes = _size(info for info in cleanable if info.end_offset > first_dirty)
    total_bytes = clean_bytes + cleanable_bytes
    ratio = cleanable_bytes / total_bytes if total_bytes else 0.0
    delay_ms = _delay_ms(closed, first_dirty, settings, now_ms) if cleanable_bytes else 0
    due: Due | None = None
    groups: tuple[Group, ...] = ()
    if settings.is_compacted:
        due, groups = _due(
            cleanable,
            settings,
            now_ms,
            is_asked=is_asked and end > first_dirty,
            is_late=delay_ms > 0,
            is_dirty=cleanable_bytes > 0 and ratio > settings.min_cleanable_dirty_ratio,
        )
    return Plan(
        due=due,
        first_dirty=first_dirty,
        end=end,
        groups=groups,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        dirty_bytes=_size(info for info in closed if info.end_offset > first_dirty),
        ratio=ratio,
        delay_ms=delay_ms,
        blocked_by=blocked_by,
    )


def make_groups(
    ledgers: Sequence[LedgerInfo], settings: PlanSettings, *, is_joining: bool = False
) -> tuple[Group, ...]:
    """Of consecutive closed ledgers. For a pass whose map was full before `Plan.end`: of those
    before its own end. A ledger that is too large by itself is a group by itself."""
    spread_ms_max = None
    if settings.is_deleted and settings.retention_ms >= 0:
        # What is joined goes when its newest record is old enough.
        spread_ms_max = settings.retention_ms // RETENTION_SHARE
    groups: list[list[LedgerInfo]] = []
    bytes_left, end_max, oldest_ms, newest_ms = 0, 0, 0, 0
    for info in ledgers:
        assert not info.is_open, "the open ledger is never cleaned"
        age_ms = age_reference(info)
        oldest_ms, newest_ms = min(oldest_ms, age_ms), max(newest_ms, age_ms)
        is_near = spread_ms_max is None or newest_ms - oldest_ms <= spread_ms_max
        has_room = info.size_bytes <= bytes_left and info.end_offset <= end_max
        if groups and is_near and has_room and len(groups[-1]) < SOURCES_MAX:
            groups[-1].append(info)
        else:
            groups.append([info])
            bytes_left, end_max = settings.segment_bytes, info.base_offset + SPAN_MAX
            oldest_ms = newest_ms = age_ms
        bytes_left -= info.size_bytes
    return tuple(Group(tuple(group), is_joining and len(group) > 1) for group in groups)


def _cleanable(
    chain: Chain, settings: PlanSettings, now_ms: int, last_stable_offset: int
) -> tuple[list[LedgerInfo], Blocker | None]:
    """The ledgers from the first on that a pass may look at, and why there are no more."""
    cleanable: list[LedgerInfo] = []
    first_dirty, ledgers = chain.first_dirty, chain.ledgers
    for number, info in enumerate(ledgers):
        if info.is_open:
            return cleanable, Blocker.OPEN_LEDGER
        if info.end_offset > last_stable_offset:
            return cleanable, Blocker.LAST_STABLE_OFFSET
        after_ms = None
        if number + 1 < len(ledgers):
            after_ms = ledgers[number + 1].created_ms
        if (
            settings.min_compaction_lag_ms > 0
            and info.end_offset > first_dirty
            and _newest_ms(info, after_ms, settings) > now_ms - settings.min_compaction_lag_ms
        ):
            return cleanable, Blocker.MIN_LAG
        cleanable.append(info)
    return cleanable, None


def _newest_ms(info: LedgerInfo, after_ms: int | None, settings: PlanSettings) -> int:
    """Of the ledger's records. If they have no times: when the next ledger was made (`after_ms`),
    or when the ledger must have been closed."""
    if info.max_timestamp >= 0:
        return info.max_timestamp
    return info.created_ms + settings.segment_ms if after_ms is None else after_ms


def _delay_ms(
    closed: Sequence[LedgerInfo], first_dirty: int, settings: PlanSettings, now_ms: int
) -> int:
    first = next((info for info in closed if info.end_offset > first_dirty), None)
    if first is None:
        return 0
    return max(now_ms - first.created_ms - settings.max_compaction_lag_ms, 0)


def _due(
    cleanable: Sequence[LedgerInfo],
    settings: PlanSettings,
    now_ms: int,
    *,
    is_asked: bool,
    is_late: bool,
    is_dirty: bool,
) -> tuple[Due | None, tuple[Group, ...]]:
    """Why, and what of."""
    is_joining = len(cleanable) > JOIN_LEDGERS
    reasons = ((is_asked, Due.ASKED), (is_late, Due.LAG), (is_dirty, Due.RATIO))
    due = next((reason for is_so, reason in reasons if is_so), None)
    if due is not None or is_joining:
        groups = make_groups(cleanable, settings, is_joining=is_joining)
        if due is not None:
            return due, groups
        if len(groups) <= len(cleanable) * JOIN_SHARE:
            return Due.JOIN, groups
    due_groups: list[Group] = []
    for run in _runs(cleanable, now_ms):
        due_groups += make_groups(run, settings)
    return (Due.HORIZON, tuple(due_groups)) if due_groups else (None, ())


def _runs(ledgers: Sequence[LedgerInfo], now_ms: int) -> list[list[LedgerInfo]]:
    """Those with a delete horizon that has come; each run is of neighbours."""
    runs: list[list[LedgerInfo]] = []
    for info in ledgers:
        if not 0 <= info.min_horizon_ms <= now_ms:
            continue
        if runs and runs[-1][-1].end_offset == info.base_offset:
            runs[-1].append(info)
        else:
            runs.append([info])
    return runs


def _size(ledgers: Iterable[LedgerInfo]) -> int:
    return sum(info.size_bytes for info in ledgers)
