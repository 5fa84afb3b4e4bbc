"""Making the index of aborted transactions of a ledger that was not sealed: its writer died.

The ledger is read from its first entry on. Three things tell what was aborted in it:

- its batches: a transaction begins with its first batch and ends with its marker;
- snapshots of the producers, which say what was open where they stand;
- ABORTED entries in front of those, with the rows since the last one.

A transaction that began before the ledger is known from what was open at its start, which the
caller has of the snapshot at the boundary (the last entry of the ledger before, or the first of
this one). If neither is there any more, the ledgers before were given up, and the transaction's
data with them, but for those that a stored row tells of. So a stored row wins over what the batches
tell.

`AbortedScan` is fed; `rebuild_aborted` reads.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.log.append.entry_format import FLAG_CONTINUED, FLAG_CONTINUES, KIND_ABORTED
from broker.log.append.producer_snapshot import decode_snapshot
from broker.log.read.scan import BATCHES_PER_TURN, ScannedFact, scan
from broker.log.transactions.aborted_index import (
    PART_ROWS_MAX,
    AbortedFormatError,
    AbortedIndex,
    AbortedTransaction,
    decode_aborted,
)
from broker.log.transactions.markers import marker_of
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.log.append.entry_format import EntryHeader
    from ledger.reader import LedgerReader
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.control import EndTransactionMarker

logger = logging.getLogger(__name__)


class AbortedScan:
    """Fed with a ledger's entries in their order; `index` gives what they came to."""

    __slots__ = ("_open", "_parts_open", "_stored", "_told", "ledger_id")

    def __init__(self, ledger_id: int, open_transactions: Mapping[int, int] | None = None) -> None:
        """`open_transactions`: by producer, the first offset of what was open at the start."""
        self.ledger_id = ledger_id
        self._open = dict(open_transactions or {})
        #: By the marker's offset: what batches told, and what entries have.
        self._told: dict[int, AbortedTransaction] = {}
        self._stored: dict[int, AbortedTransaction] = {}
        #: What the parts of a snapshot said that came until now; None: one is missing.
        self._parts_open: dict[int, int] | None = None

    def batch(self, header: BatchHeader, marker: EndTransactionMarker | None) -> None:
        """The next batch; `marker` is what a control batch says."""
        if marker is not None:
            self._ended(header.producer_id, header.base_offset, committed=marker.committed)
        elif header.is_transactional and not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)

    def _ended(self, producer_id: int, offset: int, *, committed: bool) -> None:
        first = self._open.pop(producer_id, None)
        if first is not None and not committed:
            lso = min(self._open.values(), default=offset + 1)
            self._told[offset] = AbortedTransaction(producer_id, first, offset, lso)

    @property
    def open_transactions(self) -> dict[int, int]:
        """By producer, the first offset of what is open behind all that was fed."""
        return dict(self._open)

    @staticmethod
    def units(fact: ScannedFact) -> int:
        """What one costs, in batches: a producer of a snapshot is 51 bytes and more, a row 32."""
        return len(fact.content) // 150

    def fact(self, header: EntryHeader, content: memoryview) -> None:
        """The next entry that has no batches."""
        try:
            if header.kind == KIND_ABORTED:
                for row in decode_aborted(content):
                    self._stored[row.last_offset] = row
            else:
                self._snapshot(header, content)
        except (AbortedFormatError, WireError) as error:
            # Batches tell the same, unless it is about what began before the ledger.
            self._parts_open = None
            logger.warning("aborted_scan_damage", kv(ledger=self.ledger_id, error=error))

    def _snapshot(self, header: EntryHeader, content: memoryview) -> None:
        if not header.flags & FLAG_CONTINUED:
            self._parts_open = {}
        if self._parts_open is None:
            return
        _, producers = decode_snapshot(content)
        for producer_id, transaction_start, _ in producers:
            if transaction_start >= 0:
                self._parts_open[producer_id] = transaction_start
        if not header.flags & FLAG_CONTINUES:
            self._open, self._parts_open = self._parts_open, None

    async def index(self) -> AbortedIndex:
        """In slices."""
        rows = self._told | self._stored
        index = AbortedIndex()
        slices = Slices(PART_ROWS_MAX)
        for offset in sorted(rows):
            if slices.due():
                await slices.turn()
            index.add(rows[offset])
        return index


async def rebuild_aborted(
    reader: LedgerReader, open_transactions: Mapping[int, int]
) -> AbortedIndex:
    """Of a closed ledger, by reading all of it. LedgerError, EntryFormatError, WireError."""
    return await (await scan_aborted(reader, open_transactions)).index()


async def scan_aborted(reader: LedgerReader, open_transactions: Mapping[int, int]) -> AbortedScan:
    """Fed with all that the reader may read. LedgerError, EntryFormatError, WireError."""
    found = AbortedScan(reader.ledger_id, open_transactions)
    entry_id = 0
    slices = Slices(BATCHES_PER_TURN)
    while entry_id <= reader.last_add_confirmed:
        chunk = await scan(reader, entry_id)
        for item in chunk.in_order():
            if not isinstance(item, ScannedFact):
                for header, batch in item.batches():
                    if slices.due():
                        await slices.turn()
                    found.batch(header, marker_of(header, batch) if header.is_control else None)
            else:
                if slices.due(found.units(item)):
                    await slices.turn()
                found.fact(item.header, item.content)
        entry_id = chunk.next_entry_id
    return found
