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
from ledger.errors import LedgerReadError
from pyspark_quire.choose_core import StalePlanError
from pyspark_quire.reading import MissingRecordsError
from pyspark_quire.stable_core import last_sealed, stable_end, undecided

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.log.transactions.aborted_index import AbortedTransaction
    from broker.log.transactions.aborted_scan import AbortedScan
    from ledger.reader import LedgerReader
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
    """Without `needs_end` the view's end counts as it is: a leader said it, or an earlier look, so
    that all transactions that began before it are decided. LedgerError, EntryFormatError,
    WireError; MissingRecordsError or StalePlanError if such a decision is not there."""
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
        if segment.info.is_open:
            if not needs_end and undecided(scan.open_transactions, view.end_offset):
                scan = await _to_the_decisions(view, reader, transactions)
            lists.open = await scan.index()
        transactions = scan.open_transactions
    end = view.end_offset
    if needs_end:
        end = stable_end(end, view.log_start_offset, transactions)
    return Committed(view, lists, end)


def _unknown_decision(view: PartitionView, reader: LedgerReader) -> Exception:
    words = (
        f"{view.name}: offset {view.end_offset} is stable, and how a transaction before it ended is"
        f" not in ledger {reader.ledger_id}"
    )
    # Closed since the chain was read, it is followed by another.
    kind = StalePlanError if reader.metadata.is_closed else MissingRecordsError
    return kind(words)


async def _to_the_decisions(
    view: PartitionView, reader: LedgerReader, before: Mapping[int, int]
) -> AbortedScan:
    """Of an open ledger, over what its bookies know to be confirmed, up to the markers of all
    transactions that began before the view's end. They are confirmed, by the word that the end is
    stable, and with them all entries in front of them; so no other entry is looked at for long.
    What is read of records stays as it was: the reader's LAC is put back."""
    confirmed, step = reader.last_add_confirmed, 1
    try:
        while True:
            last = reader.last_add_confirmed
            reader.last_add_confirmed = last + step
            try:
                scan = await scan_aborted(reader, before)
            except LedgerReadError as error:
                if step == 1:
                    raise _unknown_decision(view, reader) from error
                # Fewer are there than were tried.
                reader.last_add_confirmed, step = last, 1
                continue
            if not undecided(scan.open_transactions, view.end_offset):
                return scan
            step *= 2
    finally:
        if not reader.metadata.is_closed:
            reader.last_add_confirmed = confirmed
