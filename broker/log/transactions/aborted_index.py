"""The index of aborted transactions of one ledger: those whose abort marker lies in it.

A fetch with read_committed sends its consumer the batches of aborted transactions, too, and with
them the list of those transactions, so that the consumer drops them (KIP-98; Kafka's .txnindex). A
row is (producer id, first offset, last offset = that of the marker, last stable offset behind the
marker); rows are in the order of their markers. A transaction without data has no row: there is
nothing to drop, and a row for which no data were seen would make Java's consumer drop *committed*
records of that producer, up to the next abort marker that it meets.

Stored as ABORTED entries of a ledger (docs/formats.md): count u32, so many rows of four i64, CRC32C
u32 of all before. In front of each snapshot of the producers an open ledger gets the rows that came
since the last one; when it is sealed, all of its rows, in entries of PART_ROWS_MAX, between the
offset index and the snapshot.

Pure. In memory a flat array: 32 bytes a row.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.buffers import Buffer

#: Of one entry: 64 kB, which whoever reads it takes 2 ms for.
PART_ROWS_MAX = 2_000
_FIELDS = 4
ROW_BYTES = 8 * _FIELDS
#: A search passes over so many rows at once if all of them begin too late.
BLOCK_ROWS = 64
_COUNT = Struct(">I")
_CRC = Struct(">I")


class AbortedFormatError(ValueError):
    """A stored index is damaged; names what is wrong."""


class AbortedTransaction(NamedTuple):
    """`last_offset` is the marker's; `last_stable_offset` is what it was behind that marker: every
    transaction that ends later begins there or later."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    __slots__ = ("_block_firsts", "_rows")

    def __init__(self) -> None:
        self._rows = array("q")
        #: The least first offset of each BLOCK_ROWS rows.
        self._block_firsts = array("q")

    def __len__(self) -> int:
        return len(self._rows) // _FIELDS

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for number in range(len(self)):
            yield self._row(number)

    def _row(self, number: int) -> AbortedTransaction:
        start = number * _FIELDS
        return AbortedTransaction._make(self._rows[start : start + _FIELDS])

    def add(self, aborted: AbortedTransaction) -> None:
        """Calls come in the order of the markers."""
        assert aborted.first_offset < aborted.last_offset
        assert not self._rows or self._rows[-2] < aborted.last_offset
        if len(self) % BLOCK_ROWS == 0:
            self._block_firsts.append(aborted.first_offset)
        elif aborted.first_offset < self._block_firsts[-1]:
            self._block_firsts[-1] = aborted.first_offset
        self._rows.extend(aborted)

    def some(
        self, offset: int, end_offset: int, rows_max: int
    ) -> tuple[list[AbortedTransaction], int, bool]:
        """Those that end at or behind `offset` and begin before `end_offset`, in the order of their
        markers, after a look at no more than `rows_max` rows; then from where on the next call is
        to go on, -1 behind the last row; and whether all rows behind these, of later ledgers too,
        begin too late."""
        rows = self._rows
        count = len(self)
        number = bisect_left(range(count), offset, key=lambda each: rows[each * _FIELDS + 2])
        found = []
        while number < count and rows_max > 0:
            if number % BLOCK_ROWS == 0 and self._block_firsts[number // BLOCK_ROWS] >= end_offset:
                number = min(number + BLOCK_ROWS, count)
            else:
                if rows[number * _FIELDS + 1] < end_offset:
                    found.append(self._row(number))
                number += 1
            rows_max -= 1
        is_all = number > 0 and rows[number * _FIELDS - 1] >= end_offset
        return found, rows[number * _FIELDS - 2] + 1 if number < count else -1, is_all

    @property
    def last_marker(self) -> int:
        """The offset of the last row's marker; -1 without a row."""
        return self._rows[-2] if self._rows else -1

    def parts(self, start: int = 0) -> list[bytes]:
        """The rows from number `start` on, as the contents of entries; none without a row."""
        step = PART_ROWS_MAX * _FIELDS
        return [
            _encode(self._rows[position : position + step])
            for position in range(start * _FIELDS, len(self._rows), step)
        ]


def _encode(rows: array[int]) -> bytes:
    swapped = array("q", rows)
    if sys.byteorder == "little":
        swapped.byteswap()
    body = _COUNT.pack(len(rows) // _FIELDS) + swapped.tobytes()
    return body + _CRC.pack(crc32c(body))


def decode_aborted(content: Buffer) -> list[AbortedTransaction]:
    """The rows of one entry. AbortedFormatError on anything but what `parts` gave."""
    size = len(content)
    if size < _COUNT.size + _CRC.size:
        raise AbortedFormatError(f"aborted transactions of {size} bytes are cut short")
    count = _COUNT.unpack_from(content)[0]
    end = _COUNT.size + ROW_BYTES * count
    if size != end + _CRC.size:
        raise AbortedFormatError(f"{count} aborted transactions do not have {size} bytes")
    view = memoryview(content)
    if crc32c(view[:end]) != _CRC.unpack_from(content, end)[0]:
        raise AbortedFormatError("aborted transactions: checksum does not match")
    rows = array("q")
    rows.frombytes(view[_COUNT.size : end])
    if sys.byteorder == "little":
        rows.byteswap()
    found = [
        AbortedTransaction._make(rows[start : start + _FIELDS])
        for start in range(0, len(rows), _FIELDS)
    ]
    for before, after in pairwise(found):
        if before.last_offset >= after.last_offset:
            raise AbortedFormatError(f"aborted transactions: {after} is not behind {before}")
    return found
