"""Entries of a ledger -> runs of record batches, from an offset to an offset.

    await read_range(reader, Range(start=100, end=200), send)

`send(bodies, position)` is awaited with whole batches, back to back in each body, in the order of
offsets, and with one past their last offset. What lies before `start` within the first body, and
behind `end` in the last, is the decoder's to leave out. Nothing is left out silently: a gap in the
offsets of a ledger that was not compacted, or a ledger that ends too early, is a
`MissingRecordsError`.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    HEADER_SIZE,
    KIND_BATCHES,
    KIND_INDEX,
    EntryFormatError,
    parse_header,
)
from broker.log.read.offset_index import IndexFormatError, OffsetIndex
from pyspark_quire.partitions import offset_behind
from wire.kafka.records.batch import BATCH_OVERHEAD, LENGTH_OVERHEAD

if TYPE_CHECKING:
    from broker.log.append.entry_format import EntryHeader
    from ledger.reader import LedgerReader
    from wire.buffers import Buffer

#: Of one read.
READ_BYTES = 1 << 20
READ_ENTRIES = 4096
#: Of one batch, as the broker takes it at most, and as a task holds it: compressed or not.
BATCH_BYTES_MAX = 128 << 20
#: Of the first one, which tells how large entries are: of a striped ledger each bookie is asked for
#: its entries up to the number, and what is beyond READ_BYTES was sent for nothing.
FIRST_ENTRIES = 8
#: Of a batch's header: base offset, length of what follows, last offset's delta, record count.
_BATCH = struct.Struct(">qi11xi30xi")

Send = Callable[[list["Buffer"], int], Awaitable[None]]


class MissingRecordsError(Exception):
    """Records that should be there are not; names ledger and offsets."""


@dataclass(slots=True, frozen=True)
class Range:
    """Offsets `start` to `end`, the latter excluded, of one ledger, which has all of them or, if
    it is compacted, what is left of them."""

    start: int
    end: int
    is_compacted: bool = False
    #: An entry at or before that of `start`; None: to be found.
    first_entry: int | None = None


async def read_index(reader: LedgerReader, entry_id: int) -> OffsetIndex:
    """The offset index that a ledger was sealed with. LedgerError; EntryFormatError and
    IndexFormatError name the ledger."""
    [payload] = await reader.read(entry_id, count_max=1, size_max=1)
    header = _parse(payload, reader.ledger_id, entry_id)
    if header.kind != KIND_INDEX:
        raise MissingRecordsError(
            f"ledger {reader.ledger_id}: entry {entry_id} is no index, but of kind {header.kind}"
        )
    try:
        return OffsetIndex.from_bytes(payload[HEADER_SIZE:])
    except IndexFormatError as error:
        raise IndexFormatError(f"ledger {reader.ledger_id}, entry {entry_id}: {error}") from error


def _parse(payload: memoryview, ledger_id: int, entry_id: int) -> EntryHeader:
    """EntryFormatError with its place."""
    try:
        return parse_header(payload)
    except EntryFormatError as error:
        raise EntryFormatError(f"ledger {ledger_id}, entry {entry_id}: {error}") from None


async def find_entry(reader: LedgerReader, offset: int) -> int:
    """The last entry that begins at or before `offset` and continues none: every entry says where
    it begins, so a search halves the ledger with each read. 0 if none does. LedgerError."""
    low, high = 0, reader.last_add_confirmed + 1
    while low < high:
        middle = (low + high) // 2
        header = await _header(reader, middle)
        # Of the entries of one batch the first is wanted; they have the same offset.
        if header.first_offset > offset or (
            header.kind != KIND_BATCHES and header.first_offset >= offset
        ):
            high = middle
        else:
            low = middle + 1
    entry_id = max(low - 1, 0)
    while entry_id > 0 and (await _header(reader, entry_id)).flags & FLAG_CONTINUED:
        entry_id -= 1
    return entry_id


async def _header(reader: LedgerReader, entry_id: int) -> EntryHeader:
    [payload] = await reader.read(entry_id, count_max=1, size_max=1)
    return _parse(payload, reader.ledger_id, entry_id)


class _Batches:
    """Puts entries together; knows how far the offsets go, and believes no header: what an entry
    claims is in its batches, or else an error."""

    def __init__(self, ledger_id: int, wanted: Range) -> None:
        self._ledger_id = ledger_id
        self._wanted = wanted
        #: Of a batch that goes on in the next entry.
        self._pending: list[memoryview] = []
        self._pending_size = 0
        self._begun: EntryHeader | None = None
        #: One past the last offset that was seen; None before the first.
        self.position: int | None = None
        self.is_done = False

    def take(self, payload: memoryview, entry_id: int, bodies: list[Buffer]) -> None:
        """EntryFormatError, MissingRecordsError."""
        header = _parse(payload, self._ledger_id, entry_id)
        if header.kind != KIND_BATCHES or self.is_done:
            return
        if header.flags & FLAG_CONTINUED:
            if self._begun is None:
                return  # of a batch that begins before the first entry, and so before the range
            if header.first_offset != self._begun.first_offset:
                raise self._error(f"entry {entry_id} goes on with another batch than was begun")
        else:
            if self._begun is not None:
                raise self._error(f"the batch of {self._begun.first_offset} does not go on")
            if header.first_offset >= self._wanted.end:
                self.is_done = True
                return
            self._check_order(header)
        if header.first_offset + header.record_count <= self._wanted.start:
            self._skip(header)
            return
        self._add(header, payload[HEADER_SIZE:], bodies)

    def _skip(self, header: EntryHeader) -> None:
        """All of it lies before the range."""
        if header.record_count < 0:
            raise self._error(f"an entry of {header.record_count} records")
        self.position = header.first_offset + header.record_count
        self._begun = header if header.flags & FLAG_CONTINUES else None

    def _add(self, header: EntryHeader, body: memoryview, bodies: list[Buffer]) -> None:
        self._pending.append(body)
        self._pending_size += len(body)
        if header.flags & FLAG_CONTINUES:
            if self._pending_size > BATCH_BYTES_MAX:
                raise self._error(f"the batch of {header.first_offset} has no end")
            self._begun = header
            return
        whole = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending, self._pending_size, self._begun = [], 0, None
        self._check_batches(header, whole)
        bodies.append(whole)
        self.position = max(offset_behind(header), self.position or 0)
        self.is_done = self.position >= self._wanted.end

    def _check_order(self, header: EntryHeader) -> None:
        """Whether an entry follows the one before it."""
        wanted = self._wanted
        expected = self.position if self.position is not None else wanted.start
        is_gap = header.first_offset > expected and not wanted.is_compacted
        if is_gap or (self.position is not None and header.first_offset < expected):
            raise self._error(f"offset {expected} is followed by an entry of {header.first_offset}")

    def _check_batches(self, header: EntryHeader, body: Buffer) -> None:
        """Whether the batches of an entry have the offsets that its header tells of, each once:
        only compaction leaves some out. What is no batch at all is the decoder's to tell of."""
        expected, position, size = header.first_offset, 0, len(body)
        end = header.first_offset + header.record_count
        is_compacted = self._wanted.is_compacted
        while position + BATCH_OVERHEAD <= size:
            base, length, delta, count = _BATCH.unpack_from(body, position)
            if length < BATCH_OVERHEAD - LENGTH_OVERHEAD:
                return
            if delta < 0 or base < expected:
                break
            if not is_compacted and (base > expected or count != delta + 1):
                break
            expected = base + delta + 1
            position += LENGTH_OVERHEAD + length
        if expected > end or (expected < end and not is_compacted) or position < size:
            raise self._error(
                f"an entry of offsets {header.first_offset} to {end} does not go on at {expected}"
            )

    def _error(self, words: str) -> MissingRecordsError:
        return MissingRecordsError(f"ledger {self._ledger_id}: {words}")


async def read_range(reader: LedgerReader, wanted: Range, send: Send) -> None:
    """LedgerError (a digest that no copy matches, bookies that do not answer, a ledger that is
    gone), EntryFormatError, MissingRecordsError."""
    if wanted.start >= wanted.end:
        return
    entry_id = wanted.first_entry
    if entry_id is None:
        entry_id = await find_entry(reader, wanted.start)
    batches = _Batches(reader.ledger_id, wanted)
    count_max = FIRST_ENTRIES
    while not batches.is_done and entry_id <= reader.last_add_confirmed:
        payloads = await reader.read(entry_id, count_max=count_max, size_max=READ_BYTES)
        size = sum(map(len, payloads))
        count_max = min(max(len(payloads) * READ_BYTES // size, 1), READ_ENTRIES)
        bodies: list[Buffer] = []
        for number, payload in enumerate(payloads, entry_id):
            batches.take(payload, number, bodies)
        entry_id += len(payloads)
        if bodies:
            assert batches.position is not None
            await send(bodies, batches.position)
    if not batches.is_done and (batches.position or wanted.start) < wanted.end:
        raise MissingRecordsError(
            f"ledger {reader.ledger_id} ends at offset {batches.position}, and not at {wanted.end}"
        )
