"""The batches of a ledger that a pass reads, in order, some chunks ahead of who works on them.

A pass trusts nothing that it copies: beyond the digests of the entries, offsets have to follow one
another as the chain says, without a gap in a ledger as it was written, and up to the ledger's last.
What is not so is a CompactionError; a pass never goes on behind damage.

Reads pay at the throttle after they were made, so that at most what is read ahead is above the
limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import (
    FLAG_CONTINUES,
    KIND_SNAPSHOT,
    EntryFormatError,
    parse_header,
)
from broker.log.compact.steps import CompactionError
from broker.log.read.closed_ledger import open_closed
from broker.log.read.scan import scan
from ledger.errors import LedgerError
from wire.kafka.errors import WireError
from wire.kafka.records import batch as record_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.log.compact.throttle import Throttle
    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.read.scan import ScannedEntry
    from ledger.client import LedgerClient
    from ledger.reader import LedgerReader
    from wire.kafka.records.batch import BatchHeader

    #: Some entries, or why there are no more of them.
    Chunk = list[ScannedEntry] | Exception

#: A chunk has at most so many bytes, or one batch. A read of 1 MiB held the loop for 0.5 ms, which
#: was the longest that those who write beside a pass waited for.
CHUNK_BYTES = 256 << 10
#: Chunks that wait beside the one that is read: each may be a batch of a hundred megabytes.
CHUNKS_WAITING_MAX = 1
#: What a ledger's reading may fail with.
READ_ERRORS = (LedgerError, EntryFormatError, WireError)


class Source:
    """One ledger, which is closed, once from its beginning:

    with Source(nursery, ledgers, info, throttle) as source:
        while (batches := await source.next_batches()) is not None:
            for header, batch in batches:
    """

    def __init__(
        self, nursery: trio.Nursery, ledgers: LedgerClient, info: LedgerInfo, throttle: Throttle
    ) -> None:
        """Reads ahead, in a task of `nursery`, until the block is left."""
        self.info = info
        self._nursery = nursery
        self._ledgers = ledgers
        self._throttle = throttle
        self._scope = trio.CancelScope()
        self._send, self._chunks = trio.open_memory_channel["Chunk"](CHUNKS_WAITING_MAX)
        self._expected = info.base_offset

    def __enter__(self) -> Source:
        self._nursery.start_soon(self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.cancel()

    async def next_batches(self) -> Iterator[tuple[BatchHeader, memoryview]] | None:
        """Header and bytes of each batch of the next chunk, to be taken to the end before the next
        call; None behind the last. LedgerError if an entry cannot be read, CompactionError (of
        the iterator, too) if it is not what it should be."""
        try:
            chunk = await self._chunks.receive()
        except trio.EndOfChannel:
            if self._expected != self.info.end_offset:
                why = f"ledger {self.info.ledger_id} ends here, not at {self.info.end_offset}"
                raise CompactionError(self._expected, why) from None
            return None
        if isinstance(chunk, LedgerError):
            raise chunk
        if isinstance(chunk, Exception):
            raise CompactionError(self._expected, str(chunk)) from chunk
        return self._checked(chunk)

    def _checked(self, chunk: list[ScannedEntry]) -> Iterator[tuple[BatchHeader, memoryview]]:
        info = self.info
        for entry in chunk:
            for header, batch in _batches(entry.body, self._expected):
                base_offset, expected = header.base_offset, self._expected
                if base_offset < expected or (base_offset > expected and not info.is_compacted):
                    why = f"a batch of {base_offset} where {expected} goes on"
                    raise CompactionError(expected, why)
                self._expected = header.last_offset + 1
                yield header, batch

    async def _read(self) -> None:
        info = self.info
        with self._scope, self._send:
            try:
                reader = await self._ledgers.open_ledger(
                    info.ledger_id, recover=False, is_cached=False
                )
                end = reader.last_add_confirmed + 1
                if end != info.entry_count:
                    known = f"the chain knows of {info.entry_count}"
                    raise EntryFormatError(f"ledger {info.ledger_id} has {end} entries, {known}")
                # Behind the batches are the index and a snapshot.
                end = end if info.index_entry is None else info.index_entry
                entry_id = 0
                while entry_id < end:
                    chunk = await scan(reader, entry_id, CHUNK_BYTES)
                    await self._throttle.take(sum(entry.size_bytes for entry in chunk.entries))
                    entry_id = chunk.next_entry_id
                    await self._send.send(chunk.entries)
            except READ_ERRORS as error:
                await self._send.send(error)


def _batches(body: memoryview, expected: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """One by one, as there may be ten thousand in an entry."""
    position = 0
    while position < len(body):
        try:
            header = record_batch.parse_header(body, position)
        except WireError as error:
            raise CompactionError(expected, str(error)) from error
        end = position + header.size
        if end > len(body):
            raise CompactionError(expected, f"batch of {header.size} bytes is cut short")
        yield header, body[position:end]
        position = end


async def read_final_snapshot(ledgers: LedgerClient, info: LedgerInfo) -> list[memoryview]:
    """The entries, as they are, of the snapshot of producers that ends a sealed ledger: the state
    behind its last offset. Empty if there is none (the ledger was closed by a recovery), or it
    describes an earlier state. LedgerError, CompactionError."""
    if info.snapshot_entry is None:
        return []
    reader = await open_closed(ledgers, info, is_cached=False)
    return await read_snapshot(reader, info.snapshot_entry, info.end_offset)


async def read_snapshot(reader: LedgerReader, entry_id: int, offset: int) -> list[memoryview]:
    """The entries from that one on, if they are a snapshot of the state behind `offset`, else none.
    A ledger behind one that a recovery closed begins with such. LedgerError, CompactionError."""
    payloads: list[memoryview] = []
    while entry_id <= reader.last_add_confirmed:
        [payload] = await reader.read(entry_id, count_max=1, size_max=1)
        try:
            header = parse_header(payload)
        except EntryFormatError as error:
            raise CompactionError(offset, str(error)) from error
        if header.kind != KIND_SNAPSHOT or header.first_offset != offset:
            return []
        payloads.append(payload)
        if not header.flags & FLAG_CONTINUES:
            return payloads
        entry_id += 1
    return []
