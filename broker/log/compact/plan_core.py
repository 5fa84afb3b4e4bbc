"""What a partition's next cleaning is to do, and why, or what keeps it from being done.

Pure: a chain, a topic's settings, a time and the last stable offset in, a `Plan` out; no ledger is
read for it. Kafka's LogCleanerManager (`grabFilthiestCompactedLog`, `cleanableOffsets`) decides
the same of segment files. Ours differs in this: a closed last ledger is cleaned as any other, so
that a quiet topic gets clean; the age for max.compaction.lag.ms is that of the ledger, not of its
records, so that old records written now are not due at once; and what has a delete horizon is due
when that has come (`Due.HORIZON`), where Kafka waits until something else makes the log due.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from broker.log.life.retention import RETENTION_SHARE, age_reference
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.cluster.config_topic import TopicConfig
    from broker.log.compact.steps import Steps
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo

#: Ledgers between two yields: 0.3 ms of them.
LEDGERS_PER_STEP = 200
#: With more closed ledgers a pass is worth it that only joins them: each is a part of a document
#: that is read and written whole, and some nodes of metadata.
JOIN_LEDGERS = 200
#: It has to leave this share of them at most.
JOIN_SHARE = 0.5
#: Ledgers of a group at most: after the swap each is named as to be deleted, in a document that has
#: a limit (broker/log/life/deletions.py).
SOURCES_MAX = 1000
#: Aborted transactions of a group at most, as of a ledger that is open (LogSettings).
ABORTED_MAX = 32_000
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
    #: All that a pass may look at, from the first one on, whether it is due or not.
    ledgers: tuple[LedgerInfo, ...]
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


def planning(
    chain: Chain,
    settings: PlanSettings,
    *,
    now_ms: int,
    last_stable_offset: int,
    is_asked: bool = False,
) -> Steps[Plan]:
    """The plan, in steps of at most LEDGERS_PER_STEP ledgers, whose number each yields: a chain may
    have 20,000. `is_asked`: somebody wants a pass now, whatever the ratio is. A topic that is not
    compacted has no pass due."""
    facts = _Facts(chain.first_dirty)
    for run in _pieces(chain.ledgers):
        for number, info in run:
            facts.add(chain, number, info, settings, now_ms, last_stable_offset)
        yield len(run)
    delay_ms = 0
    if facts.dirty_created_ms is not None and facts.cleanable_bytes:
        delay_ms = max(now_ms - facts.dirty_created_ms - settings.max_compaction_lag_ms, 0)
    due: Due | None = None
    groups: tuple[Group, ...] = ()
    if settings.is_compacted:
        is_dirty = facts.cleanable_bytes > 0 and facts.ratio > settings.min_cleanable_dirty_ratio
        reasons = (
            (is_asked and facts.end > facts.first_dirty, Due.ASKED),
            (delay_ms > 0, Due.LAG),
            (is_dirty, Due.RATIO),
        )
        wanted = next((reason for is_so, reason in reasons if is_so), None)
        due, groups = yield from _due(facts.cleanable, settings, now_ms, wanted)
    return Plan(
        due=due,
        first_dirty=facts.first_dirty,
        end=facts.end,
        groups=groups,
        ledgers=tuple(facts.cleanable),
        clean_bytes=facts.clean_bytes,
        cleanable_bytes=facts.cleanable_bytes,
        dirty_bytes=facts.dirty_bytes,
        ratio=facts.ratio,
        delay_ms=delay_ms,
        blocked_by=facts.blocked_by,
    )


class _Facts:
    """Of the ledgers that were looked at, from the first on: which may be in a pass, why not more,
    and the sizes that a plan tells."""

    __slots__ = (
        "blocked_by", "clean_bytes", "cleanable", "cleanable_bytes", "dirty_bytes",
        "dirty_created_ms", "first_dirty",
    )  # fmt: skip

    def __init__(self, first_dirty: int) -> None:
        self.first_dirty = first_dirty
        self.cleanable: list[LedgerInfo] = []
        self.blocked_by: Blocker | None = None
        self.clean_bytes = self.cleanable_bytes = self.dirty_bytes = 0
        #: When the first dirty one was made.
        self.dirty_created_ms: int | None = None

    def add(
        self,
        chain: Chain,
        number: int,
        info: LedgerInfo,
        settings: PlanSettings,
        now_ms: int,
        last_stable_offset: int,
    ) -> None:
        """The next one, which has this number."""
        is_dirty = not info.is_open and info.end_offset > self.first_dirty
        if is_dirty:
            self.dirty_bytes += info.size_bytes
            if self.dirty_created_ms is None:
                self.dirty_created_ms = info.created_ms
        elif not info.is_open:
            self.clean_bytes += info.size_bytes
        if self.blocked_by is not None:
            return
        if info.is_open:
            self.blocked_by = Blocker.OPEN_LEDGER
        elif info.end_offset > last_stable_offset:
            self.blocked_by = Blocker.LAST_STABLE_OFFSET
        elif is_dirty and _is_young(chain, number, info, settings, now_ms):
            self.blocked_by = Blocker.MIN_LAG
        else:
            self.cleanable.append(info)
            if is_dirty:
                self.cleanable_bytes += info.size_bytes

    @property
    def end(self) -> int:
        """Of what may be in a pass."""
        end = self.cleanable[-1].end_offset if self.cleanable else self.first_dirty
        return max(end, self.first_dirty)

    @property
    def ratio(self) -> float:
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0


def _pieces(
    ledgers: Sequence[LedgerInfo],
) -> Iterator[list[tuple[int, LedgerInfo]]]:
    """The ledgers with their numbers, LEDGERS_PER_STEP at a time."""
    numbered = enumerate(ledgers)
    while piece := list(islice(numbered, LEDGERS_PER_STEP)):
        yield piece


def make_groups(
    ledgers: Sequence[LedgerInfo], settings: PlanSettings, *, is_joining: bool = False
) -> Steps[tuple[Group, ...]]:
    """Of consecutive closed ledgers, in steps as `planning`. For a pass whose map was full before
    `Plan.end`: of those before its own end. A ledger that is too large by itself is a group by
    itself."""
    spread_ms_max = None
    if settings.is_deleted and settings.retention_ms >= 0:
        # What is joined goes when its newest record is old enough.
        spread_ms_max = settings.retention_ms // RETENTION_SHARE
    groups: list[Group] = []
    sources: list[LedgerInfo] = []
    bytes_left, end_max, aborted_left, oldest_ms, newest_ms = 0, 0, 0, 0, 0
    for number, info in enumerate(ledgers):
        assert not info.is_open, "the open ledger is never cleaned"
        if number % LEDGERS_PER_STEP == 0:
            yield min(LEDGERS_PER_STEP, len(ledgers) - number)
        age_ms = age_reference(info)
        oldest_ms, newest_ms = min(oldest_ms, age_ms), max(newest_ms, age_ms)
        is_near = spread_ms_max is None or newest_ms - oldest_ms <= spread_ms_max
        has_room = (
            info.size_bytes <= bytes_left
            and info.end_offset <= end_max
            and info.aborted_count <= aborted_left
        )
        if not sources or not is_near or not has_room or len(sources) >= SOURCES_MAX:
            if sources:
                groups.append(Group(tuple(sources), is_joining and len(sources) > 1))
            sources = []
            bytes_left, end_max = settings.segment_bytes, info.base_offset + SPAN_MAX
            aborted_left, oldest_ms, newest_ms = ABORTED_MAX, age_ms, age_ms
        sources.append(info)
        bytes_left -= info.size_bytes
        aborted_left -= info.aborted_count
    if sources:
        groups.append(Group(tuple(sources), is_joining and len(sources) > 1))
    return tuple(groups)


def _is_young(
    chain: Chain, number: int, info: LedgerInfo, settings: PlanSettings, now_ms: int
) -> bool:
    """Whether min.compaction.lag.ms has not passed yet since its newest record."""
    if settings.min_compaction_lag_ms <= 0:
        return False
    after_ms = None
    if number + 1 < len(chain.ledgers):
        after_ms = chain.ledgers[number + 1].created_ms
    return _newest_ms(info, after_ms, settings) > now_ms - settings.min_compaction_lag_ms


def _newest_ms(info: LedgerInfo, after_ms: int | None, settings: PlanSettings) -> int:
    """Of the ledger's records. If they have no times: when the next ledger was made (`after_ms`),
    or when the ledger must have been closed."""
    if info.max_timestamp >= 0:
        return info.max_timestamp
    return info.created_ms + settings.segment_ms if after_ms is None else after_ms


def _due(
    cleanable: Sequence[LedgerInfo], settings: PlanSettings, now_ms: int, wanted: Due | None
) -> Steps[tuple[Due | None, tuple[Group, ...]]]:
    """Why, and what of; `wanted` is why the dirty ones are due."""
    is_joining = len(cleanable) > JOIN_LEDGERS
    if wanted is not None or is_joining:
        groups = yield from make_groups(cleanable, settings, is_joining=is_joining)
        if wanted is not None:
            return wanted, groups
        if len(groups) <= len(cleanable) * JOIN_SHARE:
            return Due.JOIN, groups
    due_groups: list[Group] = []
    for run in (yield from _runs(cleanable, now_ms)):
        due_groups += yield from make_groups(run, settings)
    return (Due.HORIZON, tuple(due_groups)) if due_groups else (None, ())


def _runs(ledgers: Sequence[LedgerInfo], now_ms: int) -> Steps[list[list[LedgerInfo]]]:
    """Those with a delete horizon that has come; each run is of neighbours."""
    runs: list[list[LedgerInfo]] = []
    for piece in _pieces(ledgers):
        for _, info in piece:
            if not 0 <= info.min_horizon_ms <= now_ms:
                continue
            if runs and runs[-1][-1].end_offset == info.base_offset:
                runs[-1].append(info)
            else:
                runs.append([info])
        yield len(piece)
    return runs
