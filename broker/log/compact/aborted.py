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

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.control import EndTransactionMarker


class AbortedTransaction(NamedTuple):
    """An entry of the aborted index. `last_offset` is the abort marker's, `last_stable_offset` what
    it was then."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int = -1


class TransactionPass:
    """The transactions of a log, batch by batch in the order of their offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None: ...

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Entries of the aborted index, in any order, before the pass comes to their first offset.
        The range of a pass ends at the last stable offset, so every transaction in it is decided;
        but its *marker may lie behind the range*: entries of the ledgers behind the range whose
        first offset is in it belong here, too (KAFKA-13727)."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch that is not a control batch is data of an aborted transaction. Counts it
        as seen. To be asked once for each such batch."""
        return False

    def end(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """A control batch with this marker, None for one that a former pass emptied. Whether data
        of the transaction that it ends was seen in this pass. CompactionError if the aborted index
        says otherwise than the marker."""
        return False

    def take_aborted(self) -> list[AbortedTransaction]:
        """Entries whose markers came since the last call and whose data was seen, in the order of
        the markers: the aborted index of the ledger that was written since."""
        return []
