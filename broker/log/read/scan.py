"""Reading a ledger's entries one after another, batch by batch: for take-over, time look-ups and
ledgers whose index is missing. Not a hot path."""

from __future__ import annotations

from dataclasses import field
from heapq import merge
from typing import TYPE_CHECKING

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    HEADER_SIZE,
    KIND_ABORTED,
    KIND_BATCHES,
    KIND_SNAPSHOT,
    EntryHeader,
    parse_header,
)
from runtime.slices import Slices
from wire.dataclass import dataclass
from wire.kafka.records.batch import scan_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.log.read.offset_index import OffsetIndex
    from ledger.reader import LedgerReader
    from wire.kafka.records.batch import BatchHeader

SCAN_BYTES = 1 << 20
#: Batches that are looked at before others have the loop.
BATCHES_PER_TURN = 500
SCAN_ENTRIES = 1024
#: Of a batch that spans entries, copied at once.
PIECE_BYTES = 256 << 10


@dataclass(slots=True)
class ScannedEntry:
    """One entry of batches (or the entries of one batch that spans several)."""

    entry_id: int  # of the first one
    header: EntryHeader
    size_bytes: int  # payloads, headers included
    body: memoryview  # the batches, back to back
    parts: list[memoryview] | None = None  # of a body that is not put together yet

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """One by one: there may be ten thousand in an entry."""
        position = 0
        for header in scan_batches(self.body):
            yield header, self.body[position : position + header.size]
            position += header.size


@dataclass(slots=True)
class ScannedFact:
    """An entry that says something of transactions: a part of a snapshot of the producers, or rows
    of the index of aborted ones."""

    entry_id: int
    header: EntryHeader
    content: memoryview


@dataclass(slots=True)
class ScanChunk:
    entries: list[ScannedEntry] = field(default_factory=list)
    facts: list[ScannedFact] = field(default_factory=list)
    next_entry_id: int = 0

    def in_order(self) -> Iterator[ScannedEntry | ScannedFact]:
        """Both kinds, as they lie in the ledger."""
        if not self.facts:
            return iter(self.entries)
        return merge(self.entries, self.facts, key=_entry_id)


async def scan(reader: LedgerReader, entry_id: int, size_max: int = SCAN_BYTES) -> ScanChunk:
    """Some entries from `entry_id` (<= last add confirmed) on, of at most `size_max` bytes, or one
    batch. LedgerError, EntryFormatError, WireError if what is stored cannot be read."""
    payloads: list[memoryview] = []
    while True:
        # A read stops early, too: where the ensemble changes, and in front of a damaged copy.
        end = entry_id + len(payloads)
        payloads += await reader.read(end, count_max=SCAN_ENTRIES, size_max=size_max)
        chunk = _parse(payloads, entry_id)
        if chunk.next_entry_id > entry_id:
            await _put_together(chunk)
            return chunk
        # A batch that spans more entries than were read: go on, unless the ledger ends within it
        # (its writer died), then nothing of it was ever acknowledged.
        end = entry_id + len(payloads)
        if end > reader.last_add_confirmed:
            chunk.next_entry_id = end
            return chunk


def _parse(payloads: list[memoryview], first_entry_id: int) -> ScanChunk:
    chunk = ScanChunk(next_entry_id=first_entry_id)
    pending: list[memoryview] = []
    pending_header: EntryHeader | None = None
    for number, payload in enumerate(payloads):
        header = parse_header(payload)
        entry_id = first_entry_id + number
        if header.kind == KIND_BATCHES and header.flags:
            if not header.flags & FLAG_CONTINUED:
                pending, pending_header = [], header
            pending.append(payload[HEADER_SIZE:])
            if header.flags & FLAG_CONTINUES:
                continue
            if pending_header is not None:
                size = sum(map(len, pending)) + HEADER_SIZE * len(pending)
                first = entry_id - len(pending) + 1
                body = payload[:0]
                chunk.entries.append(ScannedEntry(first, pending_header, size, body, pending))
        elif header.kind == KIND_BATCHES:
            chunk.entries.append(
                ScannedEntry(entry_id, header, len(payload), payload[HEADER_SIZE:])
            )
        elif header.kind in (KIND_SNAPSHOT, KIND_ABORTED):
            chunk.facts.append(ScannedFact(entry_id, header, payload[HEADER_SIZE:]))
        chunk.next_entry_id = entry_id + 1
    return chunk


async def _put_together(chunk: ScanChunk) -> None:
    """Batches that span entries: one may have a hundred megabytes, whose copy would hold the loop
    for 40 ms."""
    slices = Slices(SCAN_BYTES)
    for entry in chunk.entries:
        if entry.parts is not None:
            body = bytearray()
            for part in entry.parts:
                for start in range(0, len(part), PIECE_BYTES):
                    if slices.due(PIECE_BYTES):
                        await slices.turn()
                    body += part[start : start + PIECE_BYTES]
            entry.body, entry.parts = memoryview(body).toreadonly(), None


def _entry_id(item: ScannedEntry | ScannedFact) -> int:
    return item.entry_id


async def build_index(reader: LedgerReader, index: OffsetIndex) -> None:
    """Fills an empty index by reading the whole ledger."""
    entry_id, max_timestamp = 0, -1
    slices = Slices(BATCHES_PER_TURN)
    while entry_id <= reader.last_add_confirmed:
        chunk = await scan(reader, entry_id)
        for entry in chunk.entries:
            index.add(entry.entry_id, entry.header.first_offset, entry.size_bytes, max_timestamp)
            for header, _ in entry.batches():
                if slices.due():
                    await slices.turn()
                max_timestamp = max(max_timestamp, header.max_timestamp)
        entry_id = chunk.next_entry_id
