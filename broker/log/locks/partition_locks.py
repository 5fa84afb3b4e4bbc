"""PartitionLocks: the lock table of one partition, through changes of its topic's settings.

Nothing of it is kept on disk. Whoever takes a partition over begins with a table whose floor is the
recovered end, and so it is when locks are switched on, or the table gets another size: every
client's next try is refused until it has applied all that is there, and none is accepted wrongly.

A batch's locks are read when it is checked, and tested and marked when it is numbered. In between
the settings may change; a batch that was not looked into, and is numbered while locks are on,
raises the floor. What is numbered counts as written: it is acknowledged, or the whole partition
goes offline and its table with it.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.log.locks.lock_headers_core import OFF
from broker.log.locks.lock_table_core import LockTable
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig
    from broker.log.append.validation import Checked
    from broker.log.locks.lock_headers_core import BatchLocks


@dataclass(slots=True)
class LockCounts:
    """Of a broker, in records; those that are malformed in batches."""

    accepted: int = 0
    conflicts: int = 0
    #: With what was not acknowledged yet: their answers were held.
    in_flight_conflicts: int = 0
    ahead: int = 0
    malformed: int = 0


class LockRefusal(NamedTuple):
    """`wait_for`: the offset whose acknowledgement the answer waits for, -1 for none. `is_doubted`:
    it is told once it is certain that the partition is ours."""

    error: KafkaError
    wait_for: int
    is_doubted: bool


class PartitionLocks:
    __slots__ = ("_config", "_counts", "table")

    def __init__(self, counts: LockCounts) -> None:
        self._counts = counts
        self._config: TopicConfig | None = None
        #: None while locks are off, or nobody has used any.
        self.table: LockTable | None = None

    def follow(self, config: TopicConfig, next_offset: int) -> LockTable | None:
        """The table under the settings that are in force for what is numbered next."""
        if config is not self._config:
            self._config = config
            size = config.quire_locks_table_size
            if config.quire_locks == OFF:
                self.table = None
            elif self.table is None or self.table.size != size:
                self.table = LockTable(size, next_offset - 1)
        return self.table

    def refusal(
        self, locks: BatchLocks | None, config: TopicConfig, next_offset: int, high_watermark: int
    ) -> LockRefusal | None:
        """Of a batch that is to be numbered now; None: it may be."""
        table = self.follow(config, next_offset)
        if table is None or not locks or not locks.records:
            return None
        counts = self._counts
        conflicts = table.conflicts(locks, high_watermark)
        if not conflicts:
            counts.accepted += len(locks.records)
            return None
        ahead = [one for one in conflicts if one.is_ahead]
        told = ahead or conflicts
        latest = max(one.offset for one in told)
        is_in_flight = not ahead and latest >= high_watermark
        if ahead:
            counts.ahead += len(told)
        elif is_in_flight:
            counts.in_flight_conflicts += len(told)
        else:
            counts.conflicts += len(told)
        error = KafkaError(
            ErrorCode.INVALID_RECORD,
            told[0].text,
            record_indexes=[one.number for one in told],
            record_messages=[one.text for one in told],
        )
        return LockRefusal(error, latest if is_in_flight else -1, bool(ahead))

    def numbered(self, checked: Checked, base_offset: int) -> None:
        """The batch got its offsets, from `base_offset` on; called while there is a table."""
        table, locks = self.table, checked.locks
        assert table is not None
        if locks is not None:
            table.mark_batch(locks, base_offset)
        elif not checked.header.is_control:
            table.raise_floor(base_offset + checked.header.last_offset_delta)
