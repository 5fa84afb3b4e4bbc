"""What becomes of a partition's batches that are part of a transaction, and of its markers.

A transactional batch is numbered when its transaction is open here or its coordinator has vouched
for it (gate.py); a marker, when the producers' state lets it end the transaction. What both mean
for readers is kept here too: markers that nobody has acknowledged yet (stable_offset.py), and the
aborted transactions of the open ledger (aborted_list.py). Batches of no transaction never come by.

Owner: the event loop's thread. The partition calls, and is called back through `Partition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.log.transactions.aborted_index import AbortedTransaction
from broker.log.transactions.aborted_list import AbortedLists
from broker.log.transactions.markers import MarkerAppend, marker_of
from broker.log.transactions.origin import VERIFIED
from broker.log.transactions.stable_offset import UndecidedMarkers
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import CONTROL_MASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.append.producer_state import ProducerState
    from broker.log.append.queue import Append
    from broker.log.append.validation import Checked
    from broker.log.settings import LogSettings
    from broker.log.transactions.aborted_list import AbortedCache
    from broker.log.transactions.gate import TransactionGate
    from broker.log.transactions.origin import Origin
    from wire.kafka.records.control import EndTransactionMarker


class Partition(Protocol):
    """The steps of an append that a transactional batch has in common with others."""

    @property
    def producers(self) -> ProducerState: ...
    def is_new(self, append: Append, checked: Checked, *, is_asked: bool = True) -> bool: ...
    def has_bookies(self, append: Append, checked: Checked) -> bool: ...
    def doubt(self, append: Append, error: KafkaError) -> None: ...
    def put(
        self, append: Append, checked: Checked, marker: EndTransactionMarker | None = None
    ) -> None: ...
    def call_keeper(self) -> None: ...


class TransactionAcceptance:
    """Of one partition. `gate` None: transactions are not served, and what belongs to one is
    refused."""

    def __init__(
        self,
        partition: Partition,
        gate: TransactionGate | None,
        cache: AbortedCache,
        settings: LogSettings,
    ) -> None:
        self.gate = gate
        #: Ended by markers that nobody has acknowledged yet, and aborted ones.
        self.undecided = UndecidedMarkers()
        self.aborted = AbortedLists(cache)
        self._partition = partition
        self._settings = settings

    def accept(self, append: Append, checked: Checked) -> None:
        """Of a batch that is whole, and says that it is part of a transaction or is a marker."""
        if checked.header.attributes & CONTROL_MASK:
            self._accept_marker(append, checked)
        else:
            self._accept_data(append, checked)

    def ask(
        self, origin: Origin, producer_id: int, epoch: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """As PartitionLog's `ask_transaction`, while the partition takes appends."""
        if self.gate is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        is_open = self._partition.producers.has_transaction(producer_id, epoch)
        self.gate.ask_ahead(origin, producer_id, epoch, is_open=is_open, done=done)

    def give_back(self, origin: Origin) -> None:
        """No batch comes of that question."""
        if self.gate is not None and origin.guard is not None:
            self.gate.settled(origin.guard, is_numbered=False)

    def close(self) -> list[Append]:
        """The partition went offline: gives back what waits for a coordinator."""
        return [] if self.gate is None else self.gate.close()

    @property
    def has_many_aborted(self) -> bool:
        """Of the open ledger: it is to be closed."""
        return len(self.aborted.open) >= self._settings.aborted_rows_max

    def take_aborted(self, is_sealed: bool) -> list[bytes]:
        """The entries of the aborted index that the open ledger is to have next."""
        return self.aborted.take_all() if is_sealed else self.aborted.take_new()

    # -- inside ----------------------------------------------------------------------------------

    def _accept_data(self, append: Append, checked: Checked) -> None:
        origin, gate, header = append.origin, self.gate, checked.header
        if origin is not VERIFIED and gate is None:
            # As Kafka's verification: nobody would ever end it.
            unknown = "no such transaction is under way"
            append.fail(KafkaError(ErrorCode.INVALID_TXN_STATE, unknown))
            return
        if origin is None:
            unnamed = KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch in a request without a transactional id",
            )
            append.fail(unnamed)
            return
        if gate is not None and origin.guard is None and gate.is_asking(header):
            gate.park_behind(append, checked)
            return
        guard = origin.guard  # not one that is asked for below, and answered at once
        is_numbered = (
            self._is_admitted(append, checked)
            and self._partition.is_new(append, checked)
            and self._partition.has_bookies(append, checked)
        )
        if is_numbered:
            self._partition.put(append, checked)
        if gate is not None and guard is not None:
            gate.settled(guard, is_numbered=is_numbered)

    def _is_admitted(self, append: Append, checked: Checked) -> bool:
        """Whether the batch's transaction is open here, or the coordinator knows it; else it is
        taken care of. Only then its sequence is looked at, as in Kafka
        (`ProducerState.check_unasked`)."""
        origin, gate, header = append.origin, self.gate, checked.header
        assert origin is not None
        if origin.guard is not None and gate is not None and gate.is_valid(origin.guard):
            return True  # whether it is new is asked next, with the sequence
        if origin is VERIFIED or self._partition.producers.is_in_transaction(header):
            return True
        assert gate is not None
        if not self._partition.is_new(append, checked, is_asked=False):
            return False
        if origin.guard is not None:
            ended = "the transaction has ended meanwhile"
            append.fail(KafkaError(ErrorCode.INVALID_TXN_STATE, ended))
            return False
        if not self._partition.has_bookies(append, checked):
            return False
        try:
            if origin.adds:
                self._partition.producers.check_first(header, checked.now_ms)
        except KafkaError as error:
            self._partition.doubt(append, error)
        else:
            gate.ask(append, checked)
        return False

    def _accept_marker(self, append: Append, checked: Checked) -> None:
        marker, version = None, 0
        try:
            if isinstance(append, MarkerAppend):
                marker, version = append.marker, append.transaction_version
            else:
                marker = marker_of(checked.header, append.records)
            if marker is not None:
                self._partition.producers.check_marker(checked.header, marker, version)
        except WireError as error:
            append.fail(KafkaError(ErrorCode.INVALID_RECORD, str(error)))
            return
        except KafkaError as error:
            self._partition.doubt(append, error)
            return
        if not self._partition.has_bookies(append, checked):
            return
        first = self._partition.producers.transaction_start(checked.header.producer_id)
        self._partition.put(append, checked, marker)
        if marker is not None:
            self._ended(append, checked, first, is_committed=marker.committed)

    def _ended(self, append: Append, checked: Checked, first: int, *, is_committed: bool) -> None:
        """A marker was numbered; `first`: of the transaction that it ended, -1 if none was open."""
        producer_id, offset = checked.header.producer_id, append.base_offset
        if first >= 0:
            self.undecided.ended(first, offset)
            if not is_committed:
                stable = self._partition.producers.first_open_transaction_offset
                stable = offset + 1 if stable is None else stable
                self.aborted.open.add(AbortedTransaction(producer_id, first, offset, stable))
                if self.has_many_aborted:
                    self._partition.call_keeper()
        if self.gate is not None:
            self.gate.marker_appended(producer_id, checked.header.producer_epoch)
