"""LedgersMap: what is kept in memory of an entry log's ledgers map, which is on disk.

Which ledgers have how many bytes in a complete log stands at its end, written once and never
changed. A dict of it takes 94 bytes a ledger: 3.8 GB for 4,000 logs of 10,000 ledgers each. Kept
are the map's place, sums, and one bit for each ledger that was forgotten since, at most 1.3 kB for
10,000: 5 MB for those logs. Whoever wants to know more reads the map again, a batch at a time
(bookie/storage/map_walk.py).

A batch is believed only if it is what it was when the log was completed, or when the start had read
all of the map: its checksum is kept, also of BookKeeper's logs, which have none.

Owner: the event loop's thread.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from crc32c import crc32c

from bookie.errors import CorruptionError
from bookie.storage.entry_log_format import (
    MapBatch,
    lost_sector,
    map_batch_size,
    read_ledgers_map,
    read_map_batches,
    read_map_place,
    unpack_map_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from runtime.disk import File


class LedgersMap:
    __slots__ = (
        "_checks",
        "_counts",
        "_forgotten",
        "count",
        "drop_number",
        "first_id",
        "is_looked_at",
        "last_id",
        "live_bytes",
        "live_count",
        "offset",
    )

    def __init__(self, offset: int) -> None:
        """`offset`: of the first batch, in the log."""
        self.offset = offset
        #: Ledgers by batch, and the batch's CRC32C.
        self._counts = array("I")
        self._checks = array("I")
        #: A bit for each ledger that does not count any more, in the order of the map.
        self._forgotten: bytearray | None = None
        #: Ledgers in the map, the lowest and the highest id.
        self.count = 0
        self.first_id, self.last_id = (1 << 63) - 1, -(1 << 63)
        #: Of those that are not forgotten.
        self.live_count = 0
        self.live_bytes = 0
        #: Of the last dropping of ledgers that had been done when the log was completed: what was
        #: dropped before is none of it, whatever has the same id in it is newer.
        self.drop_number = 0
        #: Each of its ledgers was known since. If not, the collector reads it.
        self.is_looked_at = False

    def add(self, batch: MapBatch) -> None:
        """The next batch, as the log is made or read for the first time."""
        ledger_ids, sizes, record = batch
        self._counts.append(len(ledger_ids))
        self._checks.append(crc32c(record))
        self.count += len(ledger_ids)
        self.live_count += len(ledger_ids)
        self.live_bytes += sum(sizes)
        self.first_id = min(self.first_id, min(ledger_ids))
        self.last_id = max(self.last_id, max(ledger_ids))

    @property
    def batch_count(self) -> int:
        return len(self._counts)

    def place_of(self, number: int) -> tuple[int, int]:
        """The position in the map of a batch's first ledger, and the batch's offset in the log."""
        before = self._counts[:number]
        return sum(before), self.offset + sum(map(map_batch_size, before))

    def read(self, file: File, number: int) -> tuple[array[int], array[int]]:
        """A batch's ledger ids and their bytes. Blocks. CorruptionError if it is not what it was.
        OSError, but none of a sector that is lost: that is damage too."""
        _, offset = self.place_of(number)
        try:
            record = file.pread(map_batch_size(self._counts[number]), offset)
        except OSError as error:
            raise lost_sector(file, error) from error
        if crc32c(record) != self._checks[number]:
            raise CorruptionError(file.path, offset, "the ledgers map is not what it was")
        return unpack_map_batch(record)

    def is_forgotten(self, position: int) -> bool:
        gone = self._forgotten
        return gone is not None and bool(gone[position >> 3] & 1 << (position & 7))

    def forget(self, first: int, numbers: Iterable[int], sizes: Sequence[int]) -> None:
        """These of a batch, whose first ledger is at `first`, do not count any more, nor their
        bytes of the batch's `sizes`. Nothing happens to one of which that is so already."""
        gone = self._forgotten
        if gone is None:
            gone = self._forgotten = bytearray((self.count + 7) // 8)
        for number in numbers:
            position = first + number
            bit = 1 << (position & 7)
            if not gone[position >> 3] & bit:
                gone[position >> 3] |= bit
                self.live_count -= 1
                self.live_bytes -= sizes[number]
        assert self.live_count >= 0


def outline_map(file: File, known: Set[int] = frozenset()) -> LedgersMap | None:
    """Reads all of a log's map, a batch at a time; None if it has none. Blocks. If all of its
    ledgers are `known`, nobody need look at it again. CorruptionError as `read_ledgers_map`."""
    try:
        place = read_map_place(file)
        if place is None:
            return None
        found = LedgersMap(place.offset)
        is_known = is_ascending = True
        for batch in read_map_batches(file, place):
            ledger_ids = set(batch.ledger_ids)
            is_ascending = (
                is_ascending
                and len(ledger_ids) == len(batch.ledger_ids)
                and min(ledger_ids) > found.last_id
            )
            is_known = is_known and known >= ledger_ids
            found.add(batch)
    except OSError as error:
        raise lost_sector(file, error) from error
    if not is_ascending:
        # BookKeeper's maps are not in the order of ids: does none come twice?
        read_ledgers_map(file)
    found.is_looked_at = is_known
    return found
