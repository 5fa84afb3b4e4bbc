"""Transactions as one pass over a log sees them: Kafka's CleanedTransactionMetadata.

A batch of transactional data belongs to an aborted transaction if an entry of the aborted index
covers it: (producer, first offset, last offset), the last being that of the abort marker. A marker
stays while data of its transaction was seen in this pass. Two rules hold for what the pass writes:

- an aborted index entry is there only with its marker: a Java consumer drops a producer's data from
  the entry's first offset until it *sees an abort marker*, so without one it would drop committed
  data that follows;
- aborted data that stays has its entry: without one a consumer would show it.

Owner of the state: the pass. Which data was seen is state over the whole pass, not over one group
of ledgers (KAFKA-8351). The map pass and the copy pass have one of these each.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from broker.log.compact.steps import CompactionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.transactions.aborted_index import AbortedTransaction
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.control import EndTransactionMarker


class TransactionPass:
    """The transactions of a log, batch by batch in the order of their offsets."""

    __slots__ = ("_aborted", "_ahead", "_data_seen", "_ended", "_open")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        #: Entries whose first offset the pass has not come to: (first offset, last, entry), a heap.
        self._ahead: list[tuple[int, int, AbortedTransaction]] = []
        #: The entry of each producer that the pass came to last, until its marker.
        self._aborted: dict[int, AbortedTransaction] = {}
        #: Producers whose present entry covered a batch.
        self._data_seen: set[int] = set()
        #: Producers with data that no entry covers and no marker has ended yet; whether with
        #: records, or only headers that a former pass had left of batches.
        self._open: dict[int, bool] = {}
        self._ended: list[AbortedTransaction] = []
        self.add_aborted(aborted)

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Entries of the aborted index, in any order, before the pass comes to their first offset.
        The range of a pass ends at the last stable offset, so every transaction in it is decided;
        but its *marker may lie behind the range*: entries of the ledgers behind the range whose
        first offset is in it belong here, too (KAFKA-13727)."""
        for entry in aborted:
            heappush(self._ahead, (entry.first_offset, entry.last_offset, entry))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch that is not a control batch is data of an aborted transaction. Counts it
        as seen. To be asked once for each such batch."""
        if not header.is_transactional:
            return False
        entry = self._entry_at(header)
        if entry is not None:
            self._data_seen.add(header.producer_id)
            return True
        has_records = self._open.get(header.producer_id, False) or header.record_count > 0
        self._open[header.producer_id] = has_records
        return False

    def end(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """A control batch with this marker, None for one that a former pass emptied. Whether data
        of the transaction that it ends was seen in this pass. CompactionError if the aborted index
        says otherwise than the marker."""
        if marker is None:  # it was emptied when nothing was left that it could end
            return False
        producer_id, offset = header.producer_id, header.base_offset
        entry = self._entry_at(header)
        has_records = self._open.pop(producer_id, None)
        if marker.committed:
            if entry is not None:
                why = f"producer {producer_id} commits what the aborted index has as aborted"
                raise CompactionError(offset, why)
            return has_records is not None
        if has_records:
            # Its data was taken for committed: a key may be mapped to it by now.
            why = f"producer {producer_id} aborts data that the aborted index does not have"
            raise CompactionError(offset, why)
        if entry is None:
            return has_records is not None
        if entry.last_offset != offset:
            why = f"an abort marker of producer {producer_id}, whose transaction is aborted at"
            raise CompactionError(offset, f"{why} {entry.last_offset}")
        del self._aborted[producer_id]
        if producer_id not in self._data_seen:
            return has_records is not None
        self._data_seen.remove(producer_id)
        self._ended.append(entry)
        return True

    def _entry_at(self, header: BatchHeader) -> AbortedTransaction | None:
        """The entry that covers the batch, if there is one."""
        ahead, offset = self._ahead, header.base_offset
        while ahead and ahead[0][0] <= offset:
            entry = heappop(ahead)[2]
            self._aborted[entry.producer_id] = entry
            self._data_seen.discard(entry.producer_id)
        entry_now = self._aborted.get(header.producer_id)
        if entry_now is not None and offset <= entry_now.last_offset:
            return entry_now
        return None

    def take_aborted(self) -> list[AbortedTransaction]:
        """Entries whose markers came since the last call and whose data was seen, in the order of
        the markers: the aborted index of the ledger that was written since."""
        ended, self._ended = self._ended, []
        return ended
