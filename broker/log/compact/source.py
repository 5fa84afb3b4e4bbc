"""The batches of a ledger that a pass reads, in order, some chunks ahead of who works on them.

A pass trusts nothing that it copies: beyond the digests of the entries, offsets have to follow one
another as the chain says, without a gap in a ledger as it was written, and up to the ledger's last.
What is not so is a CompactionError; a pass never goes on behind damage.

Reads pay at the throttle after they were made, so that at most what is read ahead is above the
limit.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import (
    FLAG_CONTINUES,
    KIND_SNAPSHOT,
    EntryFormatError,
    parse_header,
)
from broker.log.compact.steps import CompactionError
from broker.log.read.scan import scan
from ledger.errors import LedgerError
from wire.kafka.errors import WireError
from wire.kafka.records import batch as record_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from broker.log.compact.throttle import Throttle
    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.read.scan import ScannedEntry
    from ledger.client import LedgerClient
    from wire.kafka.records.batch import BatchHeader

    #: Some entries, or why there are no more of them.
    Chunk = list[ScannedEntry] | Exception

#: Chunks (broker/log/read/scan.py: 1 MiB, or one batch) that wait beside the one that is read.
CHUNKS_WAITING_MAX = 1
#: What a ledger's reading may fail with.
READ_ERRORS = (LedgerError, EntryFormatError, WireError)


class Source:
    """One ledger, once from its beginning. Made by `reading`."""

    def __init__(self, info: LedgerInfo, chunks: trio.MemoryReceiveChannel[Chunk]) -> None:
        self.info = info
        self._chunks = chunks

    async def batches(self) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Header and bytes of each batch. No checkpoint but where a chunk has to be waited for.
        LedgerError if an entry cannot be read, CompactionError if it is not what it should be."""
        info = self.info
        expected = info.base_offset
        async for chunk in self._chunks:
            if isinstance(chunk, LedgerError):
                raise chunk
            if isinstance(chunk, Exception):
                raise CompactionError(expected, str(chunk)) from chunk
            for entry in chunk:
                for header, batch in _batches(entry.body, expected):
                    base_offset = header.base_offset
                    if base_offset < expected or (base_offset > expected and not info.is_compacted):
                        why = f"a batch of {base_offset} where {expected} goes on"
                        raise CompactionError(expected, why)
                    expected = header.last_offset + 1
                    yield header, batch
        if expected != info.end_offset:
            why = f"ledger {info.ledger_id} ends here, and not at {info.end_offset}"
            raise CompactionError(expected, why)


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


@asynccontextmanager
async def reading(
    ledgers: LedgerClient, info: LedgerInfo, throttle: Throttle
) -> AsyncIterator[Source]:
    """Reads the ledger, which is closed, ahead of who iterates over `batches`, until the block is
    left."""
    send, receive = trio.open_memory_channel["Chunk"](CHUNKS_WAITING_MAX)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read, ledgers, info, throttle, send)
        try:
            yield Source(info, receive)
        finally:
            nursery.cancel_scope.cancel()


async def _read(
    ledgers: LedgerClient,
    info: LedgerInfo,
    throttle: Throttle,
    send: trio.MemorySendChannel[Chunk],
) -> None:
    async with send:
        try:
            reader = await ledgers.open_ledger(info.ledger_id, recover=False)
            end = reader.last_add_confirmed + 1
            if end != info.entry_count:
                known = f"the chain knows of {info.entry_count}"
                raise EntryFormatError(f"ledger {info.ledger_id} has {end} entries, {known}")
            # Behind the batches are the index and a snapshot.
            end = end if info.index_entry is None else info.index_entry
            entry_id = 0
            while entry_id < end:
                chunk = await scan(reader, entry_id)
                await throttle.take(sum(entry.size_bytes for entry in chunk.entries))
                entry_id = chunk.next_entry_id
                await send.send(chunk.entries)
        except READ_ERRORS as error:
            await send.send(error)


async def read_final_snapshot(ledgers: LedgerClient, info: LedgerInfo) -> list[memoryview]:
    """The entries, as they are, of the snapshot of producers that ends a sealed ledger: the state
    behind its last offset. Empty if there is none (the ledger was closed by a recovery), or it
    describes an earlier state. LedgerError, CompactionError."""
    entry_id = info.snapshot_entry
    if entry_id is None:
        return []
    reader = await ledgers.open_ledger(info.ledger_id, recover=False)
    payloads: list[memoryview] = []
    while entry_id <= reader.last_add_confirmed:
        [payload] = await reader.read(entry_id, count_max=1, size_max=1)
        try:
            header = parse_header(payload)
        except EntryFormatError as error:
            raise CompactionError(info.end_offset, str(error)) from error
        if header.kind != KIND_SNAPSHOT or header.first_offset != info.end_offset:
            return []
        payloads.append(payload)
        if not header.flags & FLAG_CONTINUES:
            return payloads
        entry_id += 1
    return []
