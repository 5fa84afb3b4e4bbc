"""The ledger that a pass writes in the place of others: entries, index, snapshot, its end.

It is a sealed ledger like any other (broker/log/append/queue.py): entries of batches, then the
offset index, the aborted transactions, and a snapshot of the producers. The snapshot is the last
source's, byte for byte, or of whoever has one of that place: it describes the state at the end of
the range, which compaction does not change.

The ledger is stamped as its partition's in the owner's present epoch, and closed in metadata before
the chain is to name it. Until then nobody knows of it, and who made it may delete it.

At most ENTRIES_IN_FLIGHT_MAX of its entries are on their way: what clients produce has the bookies'
queues to itself. What it writes is not kept in the broker's cache of entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import KIND_ABORTED, KIND_INDEX, pack_header
from broker.log.compact.packing import Packer
from broker.log.life.ledger_info import NO_HORIZON, LedgerInfo, merged_epochs
from broker.log.life.new_ledger import create_ledger
from broker.log.read.offset_index import OffsetIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.compact.compaction_core import LedgerFacts
    from broker.log.compact.packing import PackedEntry
    from broker.log.compact.throttle import Throttle
    from broker.log.partition import PartitionLog
    from broker.log.settings import LogSettings
    from broker.log.transactions.aborted_index import AbortedIndex
    from ledger.client import LedgerClient
    from ledger.errors import LedgerError
    from ledger.writer import LedgerWriter
    from wire.buffers import Buffer, Buffers

ENTRIES_IN_FLIGHT_MAX = 4


class ReplacementLedger:
    """Made by `create`; `add` in the order of offsets, then `finish`, or at any time `discard`."""

    def __init__(
        self,
        ledgers: LedgerClient,
        writer: LedgerWriter,
        entry_bytes_max: int,
        throttle: Throttle,
    ) -> None:
        self._ledgers = ledgers
        self._writer = writer
        self._throttle = throttle
        self._entry_bytes_max = entry_bytes_max
        self._packer = Packer(entry_bytes_max)
        self._index = OffsetIndex()
        self._in_flight = 0
        self._moved = trio.Event()
        self._error: LedgerError | None = None
        #: Of all batches that were added.
        self._max_timestamp = -1
        self._end_offset = -1
        #: Of the entries of batches, as a chain counts.
        self.size_bytes = 0

    @classmethod
    async def create(
        cls,
        log: PartitionLog,
        ledgers: LedgerClient,
        settings: LogSettings,
        throttle: Throttle,
    ) -> ReplacementLedger:
        """With the copies that the topic wants now. LedgerError."""
        writer = await create_ledger(ledgers, log, log.copies, is_cached=False)
        entry_bytes_max = min(settings.entry_bytes_target, settings.entry_bytes_max)
        return cls(ledgers, writer, entry_bytes_max, throttle)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    async def add(
        self, batch: Buffer, base_offset: int, last_offset: int, max_timestamp: int
    ) -> None:
        """One batch, which is copied if it is a view of a source and shares its entry with others,
        as the source's memory would stay with it; `max_timestamp` of its records, or more.
        LedgerError if the ledger can take no more."""
        assert base_offset > self._end_offset - 1
        # The index may know of a later timestamp too early, and never too late.
        self._max_timestamp = max(self._max_timestamp, max_timestamp)
        self._end_offset = last_offset + 1
        is_shared = isinstance(batch, memoryview) and len(batch) <= self._entry_bytes_max
        data = bytes(batch) if is_shared else batch
        for entry in self._packer.add(data, base_offset, last_offset):
            await self._push_batches(entry)

    async def _push_batches(self, entry: PackedEntry) -> None:
        if entry.is_first:
            entry_id = self._writer.last_add_pushed + 1
            first_offset, size = entry.first_offset, entry.size_bytes
            self._index.add(entry_id, first_offset, size, self._max_timestamp)
        self.size_bytes += entry.size_bytes
        await self._push(entry.payload, entry.size_bytes)

    async def _push(self, payload: Buffers, size_bytes: int) -> None:
        await self._throttle.take(size_bytes)
        while self._in_flight >= ENTRIES_IN_FLIGHT_MAX:
            await self._wait()
        if self._error is not None:
            raise self._error
        self._in_flight += 1
        self._writer.append_nowait(payload, self._done)

    async def _wait(self) -> None:
        """Until an entry was acknowledged. LedgerError."""
        if self._error is not None:
            raise self._error
        self._moved = trio.Event()
        await self._moved.wait()

    def _done(self, _entry_id: int, error: LedgerError | None) -> None:
        self._in_flight -= 1
        assert self._in_flight >= 0, "an entry is acknowledged once"
        if error is not None:
            self._error = error
        self._moved.set()

    async def finish(
        self,
        sources: Sequence[LedgerInfo],
        facts: LedgerFacts,
        aborted: AbortedIndex,
        snapshot: Sequence[Buffer],
    ) -> LedgerInfo:
        """Writes the indexes and the snapshot, and closes the ledger in metadata: what the chain is
        to say of it in the place of `sources`. LedgerError."""
        first, last = sources[0], sources[-1]
        for entry in self._packer.finish():
            await self._push_batches(entry)
        assert self._end_offset == last.end_offset, "its last batch reaches the range's end"
        assert len(self._index) > 0
        index_entry = self._writer.last_add_pushed + 1
        body = self._index.to_bytes()
        await self._push([pack_header(KIND_INDEX, last.end_offset), body], len(body))
        for part in aborted.parts():
            await self._push([pack_header(KIND_ABORTED, last.end_offset), part], len(part))
        snapshot_entry = self._writer.last_add_pushed + 1 if snapshot else None
        for payload in snapshot:
            await self._push([bytes(payload)], len(payload))
        while self._in_flight:
            await self._wait()
        if self._error is not None:
            raise self._error
        await self._writer.close()
        return LedgerInfo(
            ledger_id=self.ledger_id,
            base_offset=first.base_offset,
            leader_epoch=first.leader_epoch,
            created_ms=max(info.created_ms for info in sources),
            last_offset=last.last_offset,
            entry_count=self._writer.last_add_confirmed + 1,
            size_bytes=self.size_bytes,
            max_timestamp=facts.max_timestamp,
            max_timestamp_offset=facts.max_timestamp_offset,
            index_entry=index_entry,
            snapshot_entry=snapshot_entry,
            generation=1 + max(info.generation for info in sources),
            epochs=merged_epochs(sources),
            min_horizon_ms=facts.min_horizon_ms if facts.min_horizon_ms >= 0 else NO_HORIZON,
            aborted_entry=index_entry + 1 if aborted else None,
            aborted_count=len(aborted),
            # Records only go: what held for all of them holds for those that are left.
            min_timestamp=min(info.min_timestamp for info in sources),
        )

    async def discard(self) -> None:
        """Nobody is to use it: takes no more, and deletes it. LedgerError, MetadataError; then it
        is an orphan of this epoch (broker/log/life/orphans.py)."""
        self._writer.abandon()
        await self._ledgers.delete_ledger(self.ledger_id)
