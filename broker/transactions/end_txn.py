"""What EndTxn decides, by who asks, what for, and what the transaction is doing.

A decision is a state to enter, or what the producer is told: NONE, it is done already. With
transactions of version 1 a producer keeps its epoch, so nothing tells a retry from the end of the
next transaction. With version 2 a retry is of the epoch before the present one (KIP-890).

The tables are those of Kafka's `TransactionCoordinator.endTransaction`. While a transaction is
ending Kafka answers CONCURRENT_TRANSACTIONS to every EndTxn of version 2 (a transition is pending
all the while); here a retry that contradicts the decision is told so at once.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from broker.transactions.types import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    NO_PRODUCER_ID,
    TV2,
    TxnState,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.transactions.types import EndInput, Transaction

Decision = TxnState | ErrorCode


class Who(Enum):
    """The producer that a request names."""

    CURRENT = auto()
    RETRY = auto()  # it does not know that it has a new epoch, or id, already
    FENCED = auto()
    STRANGER = auto()  # its id is none of this transactional id's


_COMMIT, _ABORT = TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT
_DONE = ErrorCode.NONE
_INVALID = ErrorCode.INVALID_TXN_STATE
_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
_FENCED = ErrorCode.PRODUCER_FENCED

#: By the state: (what a commit is answered, what an abort is answered).
TABLE_TV1: dict[TxnState, tuple[Decision, Decision]] = {
    TxnState.EMPTY: (_INVALID, _INVALID),
    TxnState.ONGOING: (_COMMIT, _ABORT),
    TxnState.PREPARE_COMMIT: (_CONCURRENT, _INVALID),
    TxnState.PREPARE_ABORT: (_INVALID, _CONCURRENT),
    TxnState.COMPLETE_COMMIT: (_DONE, _INVALID),
    TxnState.COMPLETE_ABORT: (_INVALID, _DONE),
}
#: By the state: (commit by a retry, commit by the current, abort by a retry, abort by the current).
TABLE_TV2: dict[TxnState, tuple[Decision, Decision, Decision, Decision]] = {
    TxnState.EMPTY: (_FENCED, _INVALID, _FENCED, _ABORT),
    TxnState.ONGOING: (_FENCED, _COMMIT, _FENCED, _ABORT),
    # The current one has its new epoch from the answer to its EndTxn: it comes a little early.
    TxnState.PREPARE_COMMIT: (_CONCURRENT, _CONCURRENT, _INVALID, _CONCURRENT),
    TxnState.PREPARE_ABORT: (_INVALID, _CONCURRENT, _CONCURRENT, _CONCURRENT),
    TxnState.COMPLETE_COMMIT: (_DONE, _INVALID, _INVALID, _ABORT),
    TxnState.COMPLETE_ABORT: (_INVALID, _INVALID, _DONE, _ABORT),
}


def decide(txn: Transaction, request: EndInput) -> Decision:
    """What this EndTxn comes to."""
    if request.version >= TV2:
        return _decide_tv2(txn, request)
    if request.producer_id != txn.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.epoch != txn.epoch:
        return _FENCED
    if txn.pending:
        return _CONCURRENT
    commit, abort = TABLE_TV1[txn.state]
    return commit if request.is_commit else abort


def _decide_tv2(txn: Transaction, request: EndInput) -> Decision:
    # First of all: what is on its way may give this producer the id and epoch that it names, and
    # it would be told that it is fenced, by itself (KAFKA-18464).
    if txn.pending:
        return _CONCURRENT
    who = who_asks(txn, request.producer_id, request.epoch)
    if who is Who.CURRENT and request.epoch == EPOCH_MAX:
        return _FENCED  # of the markers of a fence, and of no producer
    if who is Who.STRANGER:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if who is Who.FENCED:
        return _FENCED
    row = TABLE_TV2[txn.state]
    return row[(0 if request.is_commit else 2) + (who is Who.CURRENT)]


def who_asks(txn: Transaction, producer_id: int, epoch: int) -> Who:
    """Of version 2. Only what was ended with version 2 raised the epoch: after another end the
    epoch before the present one is that of a producer that was fenced."""
    if producer_id != txn.producer_id:
        if txn.is_ending and producer_id == txn.next_producer_id != NO_PRODUCER_ID:
            return Who.CURRENT if epoch == 0 else Who.FENCED
        if producer_id != txn.previous_producer_id or producer_id == NO_PRODUCER_ID:
            return Who.STRANGER
        if epoch == EPOCH_EXHAUSTED and txn.epoch == 0:
            return Who.RETRY if txn.version >= TV2 else Who.FENCED
        return Who.STRANGER
    if epoch == txn.epoch:
        return Who.CURRENT
    if epoch == txn.epoch - 1 and txn.version >= TV2:
        return Who.RETRY
    return Who.FENCED
