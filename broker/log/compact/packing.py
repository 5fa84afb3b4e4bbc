"""Batches that stay become entries of the ledger that is written (entry_format.py has the bytes).

Pure. Batches lie back to back in entries of up to `entry_bytes_max` bytes; one that is larger spans
several. An entry's `record count` is the *span* of its offsets, from its first batch's base to the
end of its last: with holes that is more than the records. It is an i32, so an entry is cut where
the span would not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    HEADER_SIZE,
    KIND_BATCHES,
    pack_header,
)
from broker.log.compact.thinning import SPAN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.buffers import Buffer, Buffers


#: Of one entry: a reader that looks for one with records walks over all of them in 0.5 ms; of
#: headers alone there would be 17,000 in 1 MiB.
ENTRY_BATCHES_MAX = 2_000


class PackedEntry(NamedTuple):
    """An entry's payload in pieces (16 bytes of header first), and what the index asks of it.

    `is_first`: it begins with a batch, so that a reader may begin here.
    """

    payload: Buffers
    first_offset: int
    end_offset: int
    size_bytes: int
    is_first: bool


class Packer:
    """Cuts a row of batches into entries. It holds views of the batches of one entry."""

    __slots__ = ("_batches", "_end_offset", "_entry_bytes_max", "_first_offset", "_size_bytes")

    def __init__(self, entry_bytes_max: int) -> None:
        """`entry_bytes_max`: of the batches in one entry, without its header."""
        assert entry_bytes_max > 0
        self._entry_bytes_max = entry_bytes_max
        self._batches: list[Buffer] = []
        self._size_bytes = 0
        self._first_offset = self._end_offset = 0

    def add(self, batch: Buffer, base_offset: int, last_offset: int) -> Iterator[PackedEntry]:
        """One batch more; gives the entries that are complete now. Offsets ascend.

        To be iterated to its end before the next call.
        """
        assert self._end_offset <= base_offset <= last_offset
        size = len(batch)
        span = last_offset + 1 - (self._first_offset if self._batches else base_offset)
        is_full = len(self._batches) >= ENTRY_BATCHES_MAX
        if is_full or self._size_bytes + size > self._entry_bytes_max or span > SPAN_MAX:
            yield from self.finish()
        if not self._batches:
            self._first_offset = base_offset
        self._batches.append(batch)
        self._size_bytes += size
        self._end_offset = last_offset + 1
        if size > self._entry_bytes_max:
            yield from self._spanning(memoryview(batch))

    def finish(self) -> Iterator[PackedEntry]:
        """The entry that is not full, if there is one."""
        if not self._batches:
            return
        first, end = self._first_offset, self._end_offset
        head = pack_header(KIND_BATCHES, first, end - first)
        payload: list[Buffer] = [head, *self._batches]
        size_bytes = self._size_bytes + HEADER_SIZE
        self._batches, self._size_bytes = [], 0
        yield PackedEntry(payload, first, end, size_bytes, True)

    def _spanning(self, batch: memoryview) -> Iterator[PackedEntry]:
        """One batch that is larger than an entry may be: a row of entries."""
        assert len(self._batches) == 1
        first, end, limit = self._first_offset, self._end_offset, self._entry_bytes_max
        self._batches, self._size_bytes = [], 0
        for start in range(0, len(batch), limit):
            is_last = start + limit >= len(batch)
            flags = (FLAG_CONTINUED if start else 0) | (0 if is_last else FLAG_CONTINUES)
            part = batch[start : start + limit]
            head = pack_header(KIND_BATCHES, first, end - first, flags)
            payload: list[Buffer] = [head, part]
            yield PackedEntry(payload, first, end, HEADER_SIZE + len(part), start == 0)
