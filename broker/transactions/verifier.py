"""Asks the coordinators of transactions for partitions of this broker: whether a partition is in a
producer's transaction, or to add it (KIP-890). Kafka's AddPartitionsToTxnManager.

The coordinator is the leader of the id's partition of `__transaction_state`. All questions of one
turn for one broker travel in one AddPartitionsToTxn (version 5); if that is this broker, each
transaction is a plain call. An answer has transactional ids and nothing else of the question, so
what differs in more than its partitions, under one id, travels in a request of its own. A
coordinator lets what it is to add wait a moment for the end of the transaction before; nothing is
asked twice here.

That one turn's partitions of a transaction are one question is no refinement: the record that it
comes to has all partitions of the transaction, so that one for each partition would cost the square
of their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.transactions.types import TV2, AddInput, TopicPartition, TxnResult
from runtime.histogram import LatencyHistogram
from runtime.spread import Spread
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.peers import Endpoint
    from broker.transactions.coordinator import TransactionCoordinator
    from broker.transactions.ports import OtherBrokers
    from runtime.env import Clock
    from runtime.turn import Turn
    from wire.kafka.message import Message

Done = Callable[[ErrorCode], None]

#: Of AddPartitionsToTxn: the one that knows TRANSACTION_ABORTABLE of both kinds.
ADD_VERSION = 5
#: Transactions of one request; more make another one.
TRANSACTIONS_PER_REQUEST = 500
QUESTION_UNITS = 10
#: What it costs the turn when one of those who asked is told, and when the coordinator is here.
TOLD_UNITS = 40
OWN_UNITS = 100


class _Question:
    """What is asked of one transaction, and who wants to know, for which partitions."""

    __slots__ = ("adds", "epoch", "producer_id", "since", "told", "transactional_id")

    def __init__(
        self, transactional_id: str, producer_id: int, epoch: int, adds: bool, since: float
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.adds = adds
        #: When the first of them asked, by the monotonic clock.
        self.since = since
        self.told: list[tuple[Sequence[TopicPartition], Done]] = []

    def is_same(self, other: _Question) -> bool:
        return (self.producer_id, self.epoch, self.adds) == (
            other.producer_id, other.epoch, other.adds,
        )  # fmt: skip

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(each for partitions, _ in self.told for each in partitions)

    def transaction(self) -> AddPartitionsToTxnTransaction:
        topics: dict[str, set[int]] = {}
        for partitions, _ in self.told:
            for topic, number in partitions:
                topics.setdefault(topic, set()).add(number)
        return AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=not self.adds,
            topics=[
                AddPartitionsToTxnTopic(name, sorted(numbers)) for name, numbers in topics.items()
            ],
        )


#: The questions of one request, by transactional id.
_Batch = dict[str, _Question]


class CoordinatorVerifier:
    """Plain calls on the loop's thread."""

    def __init__(self, turn: Turn, clock: Clock, is_enabled: Callable[[], bool]) -> None:
        """`is_enabled`: whether what does not add is asked at all
        (transaction.partition.verification.enable)."""
        #: How long coordinators took to answer, and for how many partitions they said no.
        self.times = LatencyHistogram()
        self.failure_count = 0
        self._turn = turn
        #: Each is let go on: a parked batch is numbered and appended.
        self._telling = Spread(turn, TOLD_UNITS)
        self._clock = clock
        self._coordinator: TransactionCoordinator | None = None
        self._brokers: OtherBrokers | None = None
        self._is_enabled = is_enabled
        #: By broker: the requests that leave at the end of the turn.
        self._due: dict[int, tuple[Endpoint, deque[_Batch]]] = {}
        #: The question that was queued last, until the first one leaves. The partitions of one
        #: Produce ask one after the other, and all but the first find their question here.
        self._last: _Question | None = None

    def serve(self, coordinator: TransactionCoordinator, brokers: OtherBrokers) -> None:
        """Told once, by the composition: partitions, whose logs the coordinator needs, know whom
        they ask before there is one. Until then COORDINATOR_NOT_AVAILABLE is what they hear."""
        self._coordinator, self._brokers = coordinator, brokers

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        done: Done,
    ) -> None:
        """Adds `partitions` to the transaction, or asks whether they are in it. `done(error)` is
        called exactly once, possibly before this returns: NONE, or what the coordinator answered;
        if it could not be asked, NETWORK_EXCEPTION or COORDINATOR_NOT_AVAILABLE."""
        if not adds and not self._is_enabled():
            done(ErrorCode.NONE)
            return
        last = self._last
        if (
            last is not None
            and last.producer_id == producer_id
            and last.epoch == producer_epoch
            and last.adds == adds
            and last.transactional_id == transactional_id
        ):
            last.told.append((partitions, done))
            return
        coordinator, brokers, leader = self._coordinator, self._brokers, None
        if coordinator is not None and brokers is not None and coordinator.topic.exists:
            topic = coordinator.topic
            leader = brokers.leader(topic.name, topic.partition_for(transactional_id))
        if coordinator is None or brokers is None or leader is None:
            self.times.record(0.0)
            self._tell(ErrorCode.COORDINATOR_NOT_AVAILABLE, partitions, done)
        else:
            now = self._clock.monotonic()
            question = _Question(transactional_id, producer_id, producer_epoch, adds, now)
            question.told.append((partitions, done))
            self._queue(leader, question)

    # --- inside

    def _answered(self, question: _Question) -> None:
        self.times.record(self._clock.monotonic() - question.since, len(question.told))

    def _tell(self, error: ErrorCode, partitions: Sequence[TopicPartition], done: Done) -> None:
        if error:
            self.failure_count += len(partitions)
        done(error)

    def _queue(self, leader: Endpoint, question: _Question) -> None:
        if not self._due:
            self._turn.defer(self._flush)
        _, batches = self._due.setdefault(leader.node_id, (leader, deque()))
        name = question.transactional_id
        last = batches[-1] if batches else None
        before = None if last is None else last.get(name)
        if before is not None and before.is_same(question):
            before.told += question.told
            question = before
        elif last is None or before is not None or len(last) >= TRANSACTIONS_PER_REQUEST:
            batches.append({name: question})
        else:
            last[name] = question
        self._last = question

    def _flush(self) -> None:
        """Questions of this turn; what is too much for it is asked in later ones."""
        assert self._brokers is not None, "only what has a leader is queued"
        while self._due:
            # An answer at once may lead to more questions, so it is set anew within this loop.
            self._last = None
            if self._turn.is_spent:
                self._turn.later(self._flush)
                return
            node_id, (leader, batches) = next(iter(self._due.items()))
            batch = batches[0]
            is_own = self._brokers.is_own(leader)
            question = batch.pop(next(iter(batch))) if is_own else None
            if question is None or not batch:
                batches.popleft()
            if not batches:
                del self._due[node_id]
            if question is None:
                self._ask(leader, batch)
            else:
                self._ask_own(question)

    def _ask(self, leader: Endpoint, batch: _Batch) -> None:
        assert self._brokers is not None
        self._turn.spent_units += QUESTION_UNITS * len(batch)
        request = AddPartitionsToTxnRequest(
            transactions=[question.transaction() for question in batch.values()]
        )
        self._brokers.peers.ask(leader, request, ADD_VERSION, partial(self._heard, batch))

    def _ask_own(self, question: _Question) -> None:
        assert self._coordinator is not None
        self._turn.spent_units += OWN_UNITS
        given = AddInput(question.producer_id, question.epoch, question.partitions(), TV2)
        heard = partial(self._heard_own, question)
        if question.adds:
            self._coordinator.add_partitions(question.transactional_id, given, heard, may_wait=True)
        else:
            self._coordinator.verify(question.transactional_id, given, heard)

    def _heard_own(self, question: _Question, result: TxnResult) -> None:
        self._answered(question)
        self._telling.add(partial(self._tell_own, result, *told) for told in question.told)

    def _tell_own(
        self, result: TxnResult, partitions: Sequence[TopicPartition], done: Done
    ) -> None:
        is_missing = bool(result.missing) and not result.missing.isdisjoint(partitions)
        error = result.error or (ErrorCode.TRANSACTION_ABORTABLE if is_missing else ErrorCode.NONE)
        self._tell(error, partitions, done)

    def _heard(self, batch: _Batch, answer: Message | None) -> None:
        """What is not in the answer was not heard of."""
        errors: dict[tuple[str, str, int], ErrorCode] = {}
        default = ErrorCode.NETWORK_EXCEPTION
        if isinstance(answer, AddPartitionsToTxnResponse):
            if answer.error_code:
                default = _error(answer.error_code)
            for each in answer.results_by_transaction:
                for topic in each.topic_results:
                    for one in topic.results_by_partition:
                        at = (each.transactional_id, topic.name, one.partition_index)
                        errors[at] = _error(one.partition_error_code)
        for question in batch.values():
            self._answered(question)
        self._turn.spent_units += len(errors)
        self._telling.add(
            partial(self._tell_heard, errors, default, name, *told)
            for name, question in batch.items()
            for told in question.told
        )

    def _tell_heard(
        self,
        errors: dict[tuple[str, str, int], ErrorCode],
        default: ErrorCode,
        transactional_id: str,
        partitions: Sequence[TopicPartition],
        done: Done,
    ) -> None:
        found = (errors.get((transactional_id, *each), default) for each in partitions)
        self._tell(next((error for error in found if error), ErrorCode.NONE), partitions, done)


def _error(code: int) -> ErrorCode:
    if not code:
        return ErrorCode.NONE
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
