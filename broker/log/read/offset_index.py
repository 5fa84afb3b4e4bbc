"""The sparse offset index of one ledger: which entry to start at for an offset or a timestamp.

A slot is (entry id, first offset of that entry, largest timestamp in the ledger before that entry).
Slots are at least INTERVAL_BYTES of payload apart, so a look-up skips at most that much plus one
entry. Kept in arrays: 24 bytes a slot, 16,384 slots for a ledger of 1 GiB.

Written as the ledger's INDEX entry when it is closed; serialised form (docs/formats.md):
magic `QIX1`, slot count u32, bytes of the three arrays big-endian, CRC32C u32 of all before.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from wire.buffers import Buffer

INTERVAL_BYTES = 64 << 10

_HEAD = Struct(">4sI")
_TAIL = Struct(">I")
_MAGIC = b"QIX1"


class IndexFormatError(ValueError):
    """A stored index is damaged; names what is wrong."""


class OffsetIndex:
    __slots__ = ("_bytes_since_slot", "_entries", "_max_timestamps", "_offsets")

    def __init__(self) -> None:
        self._entries = array("q")
        self._offsets = array("q")
        self._max_timestamps = array("q")
        self._bytes_since_slot = INTERVAL_BYTES  # the first entry always gets a slot

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, entry_id: int, first_offset: int, size_bytes: int, max_timestamp_before: int
    ) -> None:
        """An entry of batches was pushed; calls come in entry order."""
        if self._bytes_since_slot >= INTERVAL_BYTES:
            self._entries.append(entry_id)
            self._offsets.append(first_offset)
            self._max_timestamps.append(max_timestamp_before)
            self._bytes_since_slot = 0
        self._bytes_since_slot += size_bytes

    def entry_for_offset(self, offset: int) -> int:
        """An entry at or before the one that holds `offset`; 0 if the index knows nothing."""
        slot = bisect_right(self._offsets, offset) - 1
        return self._entries[slot] if slot >= 0 else 0

    def entry_for_timestamp(self, timestamp_ms: int) -> int:
        """An entry at or before the first one with a timestamp >= `timestamp_ms`."""
        # max_timestamps[i] covers everything before slot i: while it is too small, all of that can
        # be skipped. The array never decreases, so bisect works.
        low, high = 0, len(self._entries)
        while low < high:
            middle = (low + high) // 2
            if self._max_timestamps[middle] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self._entries[low - 1] if low > 0 else 0

    def columns(self) -> tuple[list[int], list[int]]:
        """Entry ids and first offsets of the slots."""
        return self._entries.tolist(), self._offsets.tolist()

    def to_bytes(self) -> bytes:
        parts = [_HEAD.pack(_MAGIC, len(self._entries))]
        for column in (self._entries, self._offsets, self._max_timestamps):
            swapped = array("q", column)
            if sys.byteorder == "little":
                swapped.byteswap()
            parts.append(swapped.tobytes())
        body = b"".join(parts)
        return body + _TAIL.pack(crc32c(body))

    @classmethod
    def from_bytes(cls, data: Buffer) -> OffsetIndex:
        """IndexFormatError on anything but what `to_bytes` gave."""
        if len(data) < _HEAD.size + _TAIL.size:
            raise IndexFormatError(f"offset index of {len(data)} bytes is cut short")
        magic, count = _HEAD.unpack_from(data)
        size = _HEAD.size + 24 * count
        if magic != _MAGIC or len(data) != size + _TAIL.size:
            raise IndexFormatError(f"offset index: magic {magic!r}, {count} slots, {len(data)} B")
        view = memoryview(data)
        if crc32c(view[:size]) != _TAIL.unpack_from(data, size)[0]:
            raise IndexFormatError("offset index: checksum does not match")
        index = cls()
        for number, column in enumerate((index._entries, index._offsets, index._max_timestamps)):
            start = _HEAD.size + 8 * count * number
            column.frombytes(view[start : start + 8 * count])
            if sys.byteorder == "little":
                column.byteswap()
        return index
