"""Batches that stay become entries of the ledger that is written (entry_format.py has the bytes).

Pure. Batches lie back to back in entries of up to `entry_bytes_max` bytes; one that is larger spans
several. An entry's `record count` is the *span* of its offsets, from its first batch's base to the
end of its last: with holes that is more than the records. It is an i32, so an entry is cut where
the span would not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.buffers import Buffer, Buffers

SPAN_MAX = 2**31 - 1


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
    """Cuts a row of batches into entries."""

    def __init__(self, entry_bytes_max: int) -> None: ...

    def add(self, batch: Buffer, base_offset: int, last_offset: int) -> Iterator[PackedEntry]:
        """One batch more; gives the entries that are complete now. Offsets ascend."""
        return iter(())

    def finish(self) -> Iterator[PackedEntry]:
        """The entry that is not full, if there is one."""
        return iter(())
