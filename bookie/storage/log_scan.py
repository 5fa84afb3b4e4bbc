"""LogScanner: all records of an entry log, read from front to back without stopping the loop.

The file is read in chunks on a worker thread, never through a mapping: where the disk cannot read,
that is an error here, and a mapping would end the process. What is Python runs on the loop's thread
in slices of a few hundred records.

It trusts nothing but the records themselves, so it also reads logs without a ledgers map. Maps in
the middle are passed over; zeros up to the end are space that was allocated and never used; a map
that a crash cut off ends the log.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from bookie.storage.entry_log_format import (
    HEADER_SIZE,
    LENGTH_SIZE,
    MAP_ENTRY_ID,
    MAP_LEDGER_ID,
    RECORD_START_SIZE,
)

if TYPE_CHECKING:
    from runtime.disk import Disk, File

_unpack_record = struct.Struct(">iqq").unpack_from
_MAP_IDS = struct.pack(">qq", MAP_LEDGER_ID, MAP_ENTRY_ID)
CHUNK_SIZE_BYTES = 1 << 20
#: Records that are handed out together.
SLICE_COUNT = 200
RECORD_SIZE_MIN = RECORD_START_SIZE - LENGTH_SIZE
#: What claims to be larger is damage: memory is bounded.
RECORD_SIZE_MAX = 128 << 20


class RecordSlice:
    """Records that follow each other, in columns."""

    __slots__ = ("data", "keys", "offsets", "origin", "sizes")

    def __init__(self, data: memoryview, origin: int) -> None:
        #: A piece of the file, and the offset in the file where it starts.
        self.data = data
        self.origin = origin
        #: (ledger id, entry id)
        self.keys: list[tuple[int, int]] = []
        #: Of the entries, behind their lengths, in the file.
        self.offsets: list[int] = []
        #: Of the entries, without their lengths.
        self.sizes: list[int] = []


def _is_torn_map(data: bytes) -> bool:
    """Whether these last bytes of a log are the start of a map, and not all of it. No entry's
    record is as short as the start of one, so what is shorter is never missed."""
    size = int.from_bytes(data[:LENGTH_SIZE], "big")
    is_cut = len(data) < RECORD_START_SIZE or LENGTH_SIZE + size > len(data)
    ids = data[LENGTH_SIZE:RECORD_START_SIZE]
    return is_cut and _MAP_IDS.startswith(ids)


class LogScanner:
    __slots__ = ("_at", "_chunk", "_disk", "_drops", "_end", "_file", "_origin", "damage")

    def __init__(self, disk: Disk, file: File, end: int, *, drops_cached: bool = False) -> None:
        """Reads `file`, which stays open, up to `end`. `drops_cached`: what was read is not kept
        in the page cache."""
        self._drops = drops_cached
        self._disk = disk
        self._file = file
        self._end = end
        self._chunk = memoryview(b"")
        self._origin = HEADER_SIZE
        #: The next record, in the chunk.
        self._at = 0
        #: Where and why the scan could not go on; None if it came to the end.
        self.damage: tuple[int, str] | None = None

    @property
    def end(self) -> int:
        """After the scan came to the end: what is behind this is a torn map, or zeros."""
        return self._end

    async def next(self) -> RecordSlice | None:
        """The next records; None at the end, or where there is damage."""
        while self.damage is None and self._origin + self._at < self._end:
            records = RecordSlice(self._chunk, self._origin)
            missing = self._parse(records)
            if records.keys:
                return records
            if self.damage is None and not await self._read(max(CHUNK_SIZE_BYTES, missing)):
                return None
        return None

    async def _read(self, size: int) -> bool:
        """The chunk that starts with the next record; false at the end and at damage."""
        start = self._origin + self._at
        size = min(size, self._end - start)
        if self._drops:
            self._file.drop_cached(self._at, self._origin)
        try:
            data = await self._disk.run(self._file.pread, size, start)
            is_end = _is_torn_map(data) if start + len(data) == self._end else False
            if is_end or (not any(data[:RECORD_START_SIZE]) and await self._is_zero(start)):
                self._end = start
                return False
        except OSError as error:
            self.damage = (start, f"cannot be read: {error}")
            return False
        if len(data) < size:
            self.damage = (start + len(data), "the file ends here")
            return False
        self._chunk, self._origin, self._at = memoryview(data), start, 0
        return True

    async def _is_zero(self, start: int) -> bool:
        while start < self._end:
            size = min(CHUNK_SIZE_BYTES, self._end - start)
            data = await self._disk.run(self._file.pread, size, start)
            if data.count(0) != size:
                return False
            start += size
        return True

    def _parse(self, records: RecordSlice) -> int:
        """Fills `records` from the chunk; 0, or how large a chunk the next record needs."""
        chunk, at, origin = self._chunk, self._at, self._origin
        limit = len(chunk)
        keys, offsets, sizes = records.keys, records.offsets, records.sizes
        missing = 0
        while len(keys) < SLICE_COUNT:
            if at + RECORD_START_SIZE > limit:
                missing = self._missing(at, RECORD_START_SIZE)
                break
            size, ledger_id, entry_id = _unpack_record(chunk, at)
            is_map = ledger_id == MAP_LEDGER_ID and entry_id == MAP_ENTRY_ID
            if not RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX or (
                not is_map and (ledger_id < 0 or entry_id < 0)
            ):
                if at == 0:
                    self.damage = (origin, "not a record")
                # Otherwise it is looked at again as the start of a chunk: it may be the zeros.
                missing = RECORD_START_SIZE
                break
            record_end = at + LENGTH_SIZE + size
            if record_end > limit:
                missing = self._missing(at, LENGTH_SIZE + size)
                break
            if not is_map:
                keys.append((ledger_id, entry_id))
                offsets.append(origin + at + LENGTH_SIZE)
                sizes.append(size)
            at = record_end
        self._at = at
        return missing

    def _missing(self, at: int, size: int) -> int:
        """The chunk ends inside a record of this size."""
        if at == 0 and len(self._chunk) and self._origin + size > self._end:
            self.damage = (self._origin, f"a record of {size} bytes goes beyond the end")
        return size
