"""LockTable: when each lock was last written, as a bounded estimate that is never too low.

A counting sketch as Waltz has it: a lock has PROBES slots; a write sets all of them to its offset,
and the least of them is the estimate. So locks that share all their slots are refused for each
other's writes (a false conflict, with chance (1 - e^(-3d/size))^3 when d others were written), and
no write is ever overlooked. `floor` is below no estimate: what was written before the table began
is not known, so all of it counts as written then.

A record is accepted if every lock that it tests was last written before its position, the next
offset that its sender had still to apply. The records of a batch are tested in order; what earlier
ones of the batch write, its sender cannot have applied.

Pure. Slots are kept in pages that are made when something is written there, so that neither a large
table nor many of them costs before it is used, and no turn of the loop makes a whole one.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from broker.log.locks.lock_headers_core import lock_text
from wire.kafka.records.walk import BLAMED_MAX

if TYPE_CHECKING:
    from broker.log.locks.lock_headers_core import BatchLocks, Lock, RecordLocks

#: What a slot holds that nobody has written to.
NEVER = -1
PROBES = 3
PAGE_SLOTS = 1 << 10
_PAGE_BITS = 10
_BYTES_PER_SLOT = 8
_EMPTY_PAGE = array("q", [NEVER]) * PAGE_SLOTS
#: As the conflict of what stands in one batch: nothing was written, nothing is to be waited for.
IN_BATCH = -1


class Conflict(NamedTuple):
    """Why record `number` of its batch is refused. `offset`: at most there the lock was last
    written; IN_BATCH. `is_ahead`: its position is beyond what anybody can have applied, and
    `offset` is the end."""

    number: int
    position: int
    lock: bytes
    offset: int
    is_ahead: bool = False

    @property
    def text(self) -> str:
        if self.is_ahead:
            return f"POSITION_AHEAD position={self.position} end={self.offset}"
        lock = lock_text(self.lock)
        return f"LOCK_CONFLICT position={self.position} conflict={self.offset} lock={lock}"


class LockTable:
    __slots__ = ("_pages", "floor", "page_count", "size")

    def __init__(self, size: int, floor: int) -> None:
        """`size` slots; all that was written up to the offset `floor` is not known."""
        assert size > 1
        self.size = size
        self.floor = floor
        self.page_count = 0
        self._pages: list[array[int] | None] = [None] * -(-size // PAGE_SLOTS)

    @property
    def size_bytes(self) -> int:
        return (len(self._pages) + self.page_count * PAGE_SLOTS) * _BYTES_PER_SLOT

    def raise_floor(self, offset: int) -> None:
        """Something was written there of which nobody knows the locks."""
        self.floor = max(self.floor, offset)

    def _slots(self, lock: Lock) -> tuple[int, ...]:
        _, first, step = lock
        step = step % (self.size - 1) + 1
        return tuple((first + step * n) % self.size for n in range(PROBES))

    def estimate(self, lock: Lock) -> int:
        """The offset of the last record that wrote the lock, or a higher one."""
        least = None
        for slot in self._slots(lock):
            page = self._pages[slot >> _PAGE_BITS]
            value = NEVER if page is None else page[slot & (PAGE_SLOTS - 1)]
            if least is None or value < least:
                least = value
        assert least is not None
        return max(least, self.floor)

    def mark(self, lock: Lock, offset: int) -> None:
        for slot in self._slots(lock):
            page = self._pages[slot >> _PAGE_BITS]
            if page is None:
                page = self._pages[slot >> _PAGE_BITS] = _EMPTY_PAGE[:]
                self.page_count += 1
            place = slot & (PAGE_SLOTS - 1)
            page[place] = max(page[place], offset)

    def mark_batch(self, batch: BatchLocks, base_offset: int) -> None:
        """Its records were numbered, from `base_offset` on."""
        for record in batch.records:
            for lock in record.marked:
                self.mark(lock, base_offset + record.number)

    def conflicts(self, batch: BatchLocks, high_watermark: int) -> list[Conflict]:
        """Of which records, in order, of at most BLAMED_MAX; none if all of them may be written."""
        found: list[Conflict] = []
        written: set[bytes] = set()
        for record in batch.records:
            conflict = self._conflict(record, written, high_watermark)
            if conflict is None:
                written.update(name for name, _, _ in record.marked)
            elif len(found) < BLAMED_MAX:
                found.append(conflict)
        return found

    def _conflict(
        self, record: RecordLocks, written: set[bytes], high_watermark: int
    ) -> Conflict | None:
        number, position, tested, _ = record
        if position > high_watermark:
            return Conflict(number, position, b"", high_watermark, is_ahead=True)
        worst: Conflict | None = None
        for lock in tested:
            offset = self.estimate(lock)
            if offset >= position and (worst is None or offset > worst.offset):
                worst = Conflict(number, position, lock[0], offset)
        if worst is not None:
            return worst
        for name, _, _ in tested:
            if name in written:
                return Conflict(number, position, name, IN_BATCH)
        return None
