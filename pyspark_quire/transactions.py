"""read_committed without a broker: aborted transactions, and the last stable offset, of a ledgers'
own records of them.

Closed ledgers list their aborted transactions (docs/formats.md, kind 4). An open ledger, and one
whose writer died, has to be read for that, once, by the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.read.segment import Segment
from broker.log.settings import LogSettings
from broker.log.transactions.aborted_list import AbortedCache, AbortedLists, open_at
from broker.log.transactions.aborted_scan import scan_aborted
from pyspark_quire.stable_core import last_sealed, stable_end

if TYPE_CHECKING:
    from broker.log.transactions.aborted_index import AbortedTransaction
    from pyspark_quire.connection import Connection
    from pyspark_quire.partitions import PartitionView


class Committed:
    """Of one look at a partition. `end_offset`: its last stable offset."""

    def __init__(self, view: PartitionView, lists: AbortedLists, end_offset: int) -> None:
        self._view = view
        self._lists = lists
        self.end_offset = end_offset

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those with records of `start` to `end`, the latter excluded. LedgerError, WireError."""
        return await self._lists.find(start, end)


async def read_committed(
    connection: Connection, view: PartitionView, *, needs_end: bool
) -> Committed:
    """Without `needs_end` the view's end counts as it is: a leader said it. LedgerError,
    EntryFormatError, WireError."""
    ledgers = view.chain.ledgers
    settings = LogSettings()
    segments = [Segment(info, connection.ledgers, settings) for info in ledgers]
    lists = AbortedLists(AbortedCache())
    lists.segments_changed(segments)
    number = last_sealed(ledgers)
    transactions: dict[int, int] = {}
    if number >= 0:
        entry_id = ledgers[number].snapshot_entry
        assert entry_id is not None
        transactions = await open_at(await segments[number].open(), entry_id)
    for segment in segments[number + 1 :]:
        if not segment.info.is_open and not needs_end and not view.reader:
            continue
        reader = view.reader if segment.info.is_open else await segment.open()
        assert reader is not None, "the view of an open ledger has its reader"
        scan = await scan_aborted(reader, transactions)
        transactions = scan.open_transactions
        if segment.info.is_open:
            lists.open = await scan.index()
    end = stable_end(view.end_offset, transactions) if needs_end else view.end_offset
    return Committed(view, lists, end)
