"""The state machine of one transactional id. Pure: inputs and the time in, effects out.

Behaviour is that of Kafka's `TransactionCoordinator`: KIP-98 (transactions), KIP-360 (a producer
recovers by naming its id and epoch), KIP-588 (one that took too long may go on), KIP-890 (the epoch
is raised with every transaction; partitions are verified).

It runs ahead in memory, and acts after the ack: a transition is made when its record is queued, and
every answer and marker that rests on it waits until the record is acknowledged. What is refused
before it has an offset leaves memory ahead of the log: the partition is loaded anew (`Forget`).
- A marker leaves only when Prepare* is acknowledged; Complete* is queued when the last marker is.
- While Prepare* lasts the id takes nothing but questions. A partition may be added while Complete*
  is on its way, since that record lies before the addition in the same log; Kafka makes it wait. So
  may a second one while the first is on its way: a producer that writes to many partitions at
  once adds each by itself.
- What is answered from memory alone, and is final for the client, needs the barrier. An answer that
  makes the client ask again needs none.

Stricter than Kafka in one point: a producer that names an epoch which is over, while a transaction
is open, is fenced at once; there it has somebody else's transaction aborted first.

A transactional id is one value (`Transaction`, in types), and its inputs are the functions here:
the owner calls one per input and carries out the effects, in order. `now_ms` never goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.transactions import end_txn, transitions
from broker.transactions.types import (
    AT_REST,
    EPOCH_MAX,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    TV2,
    AddInput,
    Answer,
    Answered,
    Append,
    ArmTimer,
    Completed,
    Continuation,
    Decided,
    Effect,
    EndInput,
    Forget,
    InitInput,
    MarkerPace,
    Markers,
    NeedProducerId,
    SendMarkers,
    TopicPartition,
    Transaction,
    TxnResult,
    TxnState,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What took too long is looked at again after that time, if something of it is on its way.
BUSY_MS = 100

#: A partition's answer to a marker that may be another one soon, or at another broker.
_PASSING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
#: What takes no marker, and never will, has no transaction to end.
_NOTHING_TO_MARK = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
)
_OVER = _NOTHING_TO_MARK | {ErrorCode.INVALID_PRODUCER_EPOCH}


# --- requests


def init_producer_id(
    txn: Transaction,
    token: object,
    request: InitInput,
    now_ms: int,
    *,
    server_version: int,
    fresh_id: int | None,
) -> list[Effect]:
    """InitProducerId. Who has a transaction open is fenced, the transaction aborted, and the
    answer CONCURRENT_TRANSACTIONS: the client's next try finds it aborted."""
    if txn.pending or txn.is_ending:
        return [_refusal(token, ErrorCode.CONCURRENT_TRANSACTIONS)]
    is_current = request.producer_id == txn.producer_id and request.epoch == txn.epoch
    if txn.epoch >= 0 and request.is_named and not (is_current or _is_retry(txn, request)):
        return [_refusal(token, ErrorCode.PRODUCER_FENCED)]
    if txn.state is TxnState.ONGOING:
        if request.is_named and not is_current:
            return [_refusal(token, ErrorCode.PRODUCER_FENCED)]
        told = Answered(token, TxnResult(ErrorCode.CONCURRENT_TRANSACTIONS))
        return _fence(txn, Decided(told), now_ms, server_version, fresh_id)
    if txn.epoch < 0 or (txn.is_exhausted and (is_current or not request.is_named)):
        if fresh_id is None:
            return [NeedProducerId()]
        transitions.rotate(txn, fresh_id, request.timeout_ms, now_ms, is_named=is_current)
    elif is_current or not request.is_named:
        transitions.bump(txn, request.timeout_ms, now_ms, is_named=request.is_named)
    else:
        transitions.bump_again(txn, request.timeout_ms, now_ms)
    result = TxnResult(producer_id=txn.producer_id, epoch=txn.epoch)
    return [_append(txn, Answered(token, result))]


def _is_retry(txn: Transaction, request: InitInput) -> bool:
    """Whether this producer asked before, and did not hear what it got."""
    is_before = request.epoch >= 0 and request.epoch == txn.last_epoch
    if request.producer_id == txn.producer_id:
        return is_before and request.epoch == txn.epoch - 1
    return is_before and txn.epoch == 0 and request.producer_id == txn.previous_producer_id


def add_partitions(
    txn: Transaction | None, token: object, request: AddInput, now_ms: int
) -> list[Effect]:
    """AddPartitionsToTxn, AddOffsetsToTxn, and what a broker adds for a producer of version 2."""
    error = _add_error(txn, request)
    if error or txn is None:
        return [_refusal(token, error)]
    is_first = txn.state is not TxnState.ONGOING
    if not is_first and request.partitions <= txn.partitions:
        return [Answer(token, TxnResult(), needs_barrier=True)]
    transitions.add(txn, request.partitions, request.version, now_ms)
    effects: list[Effect] = [_append(txn, Answered(token, TxnResult()))]
    if is_first:
        effects.append(ArmTimer(_due_ms(txn)))
    return effects


def verify(txn: Transaction | None, token: object, request: AddInput) -> list[Effect]:
    """Whether these partitions are in the producer's transaction; what is on its way makes nobody
    wait (KAFKA-14904)."""
    error = _add_error(txn, request)
    if error or txn is None:
        return [_refusal(token, error)]
    missing = request.partitions - txn.partitions
    return [Answer(token, TxnResult(missing=missing), needs_barrier=True)]


def _add_error(txn: Transaction | None, request: AddInput) -> ErrorCode:
    if txn is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.is_ending:
        # First of all: who is told its next id or epoch may come with it already.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if txn.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.epoch != request.epoch or request.epoch == EPOCH_MAX:
        # The last epoch is nobody's, but for the markers of a fence.
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def end(
    txn: Transaction | None, token: object, request: EndInput, now_ms: int, *, fresh_id: int | None
) -> list[Effect]:
    """EndTxn: answered when the decision is stored, before any marker is. The answer has what the
    producer is to use from then on."""
    if txn is None:
        return [_refusal(token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)]
    decision = end_txn.decide(txn, request)
    if decision is ErrorCode.NONE:
        result = TxnResult(producer_id=txn.producer_id, epoch=txn.epoch)
        return [Answer(token, result, needs_barrier=True)]
    if isinstance(decision, ErrorCode):
        return [_refusal(token, decision)]
    next_id = NO_PRODUCER_ID
    if request.version >= TV2 and txn.is_exhausted:
        if fresh_id is None:
            return [NeedProducerId()]
        next_id = fresh_id
    transitions.prepare(
        txn,
        is_commit=request.is_commit,
        version=request.version,
        next_producer_id=next_id,
        now_ms=now_ms,
    )
    producer_id, epoch = (txn.producer_id, txn.epoch) if next_id == NO_PRODUCER_ID else (next_id, 0)
    told = Answered(token, TxnResult(producer_id=producer_id, epoch=epoch))
    return [_append(txn, Decided(told))]


# --- what is not a request


def start(txn: Transaction, now_ms: int) -> list[Effect]:
    """It was loaded: what was decided is told again to all of its partitions, what is open has its
    time. If this comes late, what was decided since is told already, or will be.

    A start that is still to come is by another broker's clock, which was ahead: nobody waits for
    longer than the timeout from now on."""
    if txn.is_ending:
        return [] if txn.pending or txn.round_id else _begin_markers(txn, now_ms)
    txn.started_ms = min(txn.started_ms, now_ms)
    return [ArmTimer(_due_ms(txn))] if txn.state is TxnState.ONGOING else []


def tick(
    txn: Transaction, now_ms: int, *, server_version: int, fresh_id: int | None
) -> list[Effect]:
    """Time has passed: what took too long is aborted, and its producer's epoch is over."""
    if txn.state is not TxnState.ONGOING:
        return []
    if now_ms < _due_ms(txn):
        return [ArmTimer(_due_ms(txn))]
    if txn.pending:
        return [ArmTimer(now_ms + BUSY_MS)]
    return _fence(txn, Decided(None), now_ms, server_version, fresh_id)


def stored(txn: Transaction, then: Continuation, error: ErrorCode, now_ms: int) -> list[Effect]:
    """A record was acknowledged, or was not: `error` is as clients are told."""
    assert txn.pending > 0
    txn.pending -= 1
    reply = then.reply if isinstance(then, Decided) else then
    if error:
        if isinstance(reply, Answered):
            return [Answer(reply.token, TxnResult(error), needs_barrier=False), Forget()]
        return [Forget()]
    effects: list[Effect] = []
    if isinstance(reply, Answered):
        effects.append(Answer(reply.token, reply.result, needs_barrier=False))
    if isinstance(then, Decided):
        effects += _begin_markers(txn, now_ms)
    return effects


def marked(
    txn: Transaction,
    round_id: int,
    results: Mapping[TopicPartition, ErrorCode],
    now_ms: int,
    *,
    is_owner: bool = False,
) -> list[Effect]:
    """What some partitions answered to a round's markers. A partition that is not there any more,
    as its topic was deleted, is told as NONE; one that nobody answered for as NETWORK_EXCEPTION.

    `is_owner`: they were sent after it was shown that no other coordinator is in our place. Then
    INVALID_PRODUCER_EPOCH says that the transaction is over in that partition: somebody who may
    write there has used the producer's id with a higher epoch, which no open transaction lets pass.
    In Kafka the transactional id is of no use any more."""
    nothing_to_mark = _OVER if is_owner else _NOTHING_TO_MARK
    if round_id != txn.round_id or not txn.is_ending:
        return []
    again: dict[MarkerPace, set[TopicPartition]] = {}
    marked = set()
    for partition, error in results.items():
        if partition not in txn.unmarked:
            continue
        if error in nothing_to_mark:
            marked.add(partition)
        else:
            pace = MarkerPace.AGAIN if error in _PASSING else MarkerPace.DOUBTED
            again.setdefault(pace, set()).add(partition)
    txn.unmarked = txn.unmarked - marked or NO_PARTITIONS
    if txn.unmarked:
        return [_send(txn, frozenset(some), pace) for pace, some in again.items()]
    return _complete(txn, now_ms)


def is_expired(txn: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Whether nobody has used the id for so long that it may be forgotten."""
    is_old = txn.updated_ms + expiration_ms <= now_ms
    return is_old and txn.state in AT_REST and not txn.pending


# --- inside


def _refusal(token: object, error: ErrorCode) -> Answer:
    """Final, unless the client is to ask again."""
    is_final = error is not ErrorCode.CONCURRENT_TRANSACTIONS
    return Answer(token, TxnResult(error), needs_barrier=is_final)


def _due_ms(txn: Transaction) -> int:
    """The first moment at which it has taken longer than it may."""
    return txn.started_ms + txn.timeout_ms + 1


def _append(txn: Transaction, then: Continuation) -> Append:
    txn.pending += 1
    return Append(txn.snapshot(), then)


def _fence(
    txn: Transaction, then: Decided, now_ms: int, server_version: int, fresh_id: int | None
) -> list[Effect]:
    next_id = NO_PRODUCER_ID
    if server_version >= TV2 and txn.is_exhausted:
        if fresh_id is None:
            return [NeedProducerId()]
        next_id = fresh_id
    transitions.fence(txn, version=server_version, next_producer_id=next_id, now_ms=now_ms)
    return [_append(txn, then)]


def _begin_markers(txn: Transaction, now_ms: int) -> list[Effect]:
    """Prepare* is in the log."""
    assert txn.is_ending
    assert not txn.pending, "nothing follows Prepare* before it is stored"
    txn.round_id += 1
    txn.unmarked = txn.partitions
    if not txn.unmarked:
        return _complete(txn, now_ms)
    return [_send(txn, txn.partitions, MarkerPace.FIRST)]


def _send(txn: Transaction, some: frozenset[TopicPartition], pace: MarkerPace) -> SendMarkers:
    is_commit = txn.state is TxnState.PREPARE_COMMIT
    return SendMarkers(
        Markers(txn.round_id, txn.producer_id, txn.epoch, is_commit, txn.version, some, pace)
    )


def _complete(txn: Transaction, now_ms: int) -> list[Effect]:
    transitions.complete(txn, now_ms)
    return [_append(txn, Completed())]
