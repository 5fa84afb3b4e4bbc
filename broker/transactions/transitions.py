"""What a transition does to a transactional id, and from which states it may be made.

    Empty            <- Empty, Complete*            InitProducerId
    Ongoing          <- Empty, Ongoing, Complete*   a partition is added
    PrepareCommit    <- Ongoing                     EndTxn
    PrepareAbort     <- Ongoing; of a TV2 client Empty, Complete*     EndTxn, too long, fenced
    Complete*        <- Prepare*                    every partition has its marker

Each changes the value in memory; its owner queues the record. Epochs go up by one or begin anew
with another producer id, nothing else, which `_move` asserts. Kafka's `TransactionMetadata`.
"""

from __future__ import annotations

from broker.transactions.types import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    TV2,
    TopicPartition,
    Transaction,
    TxnState,
)

_EMPTY, _ONGOING = TxnState.EMPTY, TxnState.ONGOING
_COMPLETE = frozenset({TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})

#: By the state that is entered: those that may be left for it.
MAY_LEAVE: dict[TxnState, frozenset[TxnState]] = {
    TxnState.EMPTY: frozenset({_EMPTY}) | _COMPLETE,
    TxnState.ONGOING: frozenset({_EMPTY, _ONGOING}) | _COMPLETE,
    TxnState.PREPARE_COMMIT: frozenset({_ONGOING}),
    TxnState.PREPARE_ABORT: frozenset({_ONGOING, _EMPTY}) | _COMPLETE,
    TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
    TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
}


def bump(txn: Transaction, timeout_ms: int, now_ms: int, *, is_named: bool) -> None:
    """A producer begins with the next epoch. `is_named`: it named the present one, so it may ask
    again for what it gets now."""
    assert not txn.is_exhausted
    last_epoch = txn.epoch if is_named else NO_EPOCH
    _begin_empty(txn, txn.producer_id, txn.epoch + 1, timeout_ms, now_ms)
    txn.last_epoch = last_epoch


def bump_again(txn: Transaction, timeout_ms: int, now_ms: int) -> None:
    """A producer did not hear which epoch it got: the same once more."""
    _begin_empty(txn, txn.producer_id, txn.epoch, timeout_ms, now_ms)


def rotate(
    txn: Transaction, producer_id: int, timeout_ms: int, now_ms: int, *, is_named: bool
) -> None:
    """A producer begins with a new id: the first one, or that of after the last epoch."""
    last_epoch = txn.epoch if is_named else NO_EPOCH
    txn.previous_producer_id = txn.producer_id
    _begin_empty(txn, producer_id, 0, timeout_ms, now_ms)
    txn.last_epoch = last_epoch


def add(txn: Transaction, partitions: frozenset[TopicPartition], version: int, now_ms: int) -> None:
    """Partitions enter the transaction; the first ones begin it."""
    if txn.state is not _ONGOING:
        txn.started_ms = now_ms
    txn.partitions |= partitions
    txn.version = version
    _move(txn, _ONGOING, txn.producer_id, txn.epoch, now_ms)


def prepare(
    txn: Transaction, *, is_commit: bool, version: int, next_producer_id: int, now_ms: int
) -> None:
    """A producer ends its transaction. With version 2 its markers, and its next transaction, have
    the next epoch, so that what comes late of this one is refused by its marker alone."""
    raises_epoch = version >= TV2
    assert is_commit <= (txn.state is _ONGOING), "only what was begun is committed"
    assert (next_producer_id != NO_PRODUCER_ID) == (raises_epoch and txn.is_exhausted)
    if raises_epoch:
        txn.last_epoch = txn.epoch
    _prepare(txn, is_commit, version, next_producer_id, txn.epoch + raises_epoch, now_ms)


def fence(txn: Transaction, *, version: int, next_producer_id: int, now_ms: int) -> None:
    """The server aborts what somebody has begun who may be gone: that one's epoch is over. Kafka's
    `prepareFenceProducerEpoch` and what always follows it. With version 2 the producer may go on:
    it is told its next epoch as if it had ended the transaction (KIP-588)."""
    assert txn.state is _ONGOING
    assert (next_producer_id != NO_PRODUCER_ID) == (version >= TV2 and txn.is_exhausted)
    txn.last_epoch = txn.epoch if version >= TV2 else NO_EPOCH
    _prepare(txn, False, version, next_producer_id, txn.epoch + 1, now_ms)


def complete(txn: Transaction, now_ms: int) -> None:
    """Every partition has its marker."""
    assert not txn.unmarked
    is_commit = txn.state is TxnState.PREPARE_COMMIT
    target = TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT
    producer_id, epoch = txn.producer_id, txn.epoch
    if txn.next_producer_id != NO_PRODUCER_ID:
        txn.previous_producer_id = producer_id
        producer_id, epoch = txn.next_producer_id, 0
    txn.next_producer_id = NO_PRODUCER_ID
    txn.partitions = NO_PARTITIONS
    _move(txn, target, producer_id, epoch, now_ms)


def _begin_empty(
    txn: Transaction, producer_id: int, epoch: int, timeout_ms: int, now_ms: int
) -> None:
    txn.timeout_ms = timeout_ms
    txn.partitions = NO_PARTITIONS
    txn.started_ms = -1
    txn.next_producer_id = NO_PRODUCER_ID
    _move(txn, _EMPTY, producer_id, epoch, now_ms)


def _prepare(
    txn: Transaction,
    is_commit: bool,
    version: int,
    next_producer_id: int,
    epoch: int,
    now_ms: int,
) -> None:
    if txn.state is not _ONGOING:
        txn.started_ms = now_ms
        txn.partitions = NO_PARTITIONS
    txn.version = version
    txn.next_producer_id = next_producer_id
    target = TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT
    _move(txn, target, txn.producer_id, epoch, now_ms)


def _move(txn: Transaction, target: TxnState, producer_id: int, epoch: int, now_ms: int) -> None:
    assert txn.state in MAY_LEAVE[target], (txn.transactional_id, txn.state, target)
    assert 0 <= epoch <= EPOCH_MAX
    if producer_id == txn.producer_id:
        assert txn.epoch <= epoch <= txn.epoch + 1
    else:
        assert epoch == 0
    txn.state = target
    txn.producer_id, txn.epoch = producer_id, epoch
    txn.updated_ms = now_ms
