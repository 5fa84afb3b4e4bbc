"""Transactions, as producers and administrators see them.

| key | API | versions |
|---|---|---|
| 24 | AddPartitionsToTxn | 0-5 |
| 25 | AddOffsetsToTxn | 0-4 |
| 26 | EndTxn | 0-5 |
| 65 | DescribeTransactions | 0 |
| 66 | ListTransactions | 0-2 |

Behaviour: Kafka's; what a transactional id does is txn_core's contract. Here is what depends on a
version:
- AddPartitionsToTxn 0-3 is a producer's, of transaction version 1; it gets CONCURRENT_TRANSACTIONS
  at once. 4+ is a broker's, for producers of version 2, or asks (`verify_only`) for one of version
  1: it waits a moment for the end of the transaction before. One partition that is not there
  (UNKNOWN_TOPIC_OR_PARTITION) fails its transaction's others with OPERATION_NOT_ATTEMPTED.
- AddOffsetsToTxn adds the group's partition of `__consumer_offsets`.
- EndTxn 5+ is of transaction version 2; its answer has the producer's next id and epoch, -1 with an
  error.
- PRODUCER_FENCED and TRANSACTION_ABORTABLE are for those who know them
  (broker/transactions/errors).
- DescribeTransactions answers once for an id that is there and is named twice, so that an answer
  is bounded by what there is. It shows the partitions that lack their marker while one ends, and
  ListTransactions what all of this broker's partitions hold, by state, by producer id, from 1
  on (KIP-994) by how long a transaction has taken, and from 2 on (KIP-1152) by a pattern that whole
  ids match (broker/regex.py). Both may be a moment old.

Known deviation: nothing tells a broker from another client, so whoever may write to a transactional
id may ask as a broker does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.api import Api, HandlerResult, Reply, Request, Steps, in_slices
from broker.cluster.topic import OFFSETS_TOPIC
from broker.regex import UNITS_ON_LOOP, compiled
from broker.transactions.errors import for_client
from broker.transactions.types import (
    STATE_NAMES,
    TV1,
    TV2,
    AddInput,
    EndInput,
    TopicPartition,
    TxnResult,
)
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
)
from wire.kafka.messages.transactions_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    TopicData,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.coordinator.topic import CoordinatorTopic
    from broker.transactions.coordinator import TransactionCoordinator
    from broker.transactions.ports import Topics
    from broker.transactions.types import Transaction

#: What a partition, and a transactional id, cost in units of `Steps`.
PARTITION_UNITS = 3
ID_UNITS = 20
LISTED_UNITS = 2
FILTER_UNITS = 1
CHARACTERS_PER_UNIT = 20
#: Of a list by pattern, before others have the loop.
PATTERN_UNITS_PER_TURN = 2_000

#: The first version of EndTxn whose producers raise their epoch with each transaction.
END_TV2 = 5
#: The first version of AddPartitionsToTxn that is for brokers.
ADD_BATCHED = 4
#: States that Kafka knows, and in which no transactional id is ever shown here.
_NEVER_SHOWN = frozenset({"Dead", "PrepareEpochFence"})
_SHOWN = frozenset(STATE_NAMES.values())

#: Of each partition what it is told.
Errors = dict["TopicPartition", ErrorCode]


class TransactionsHandler:
    """`offsets_topic`: whose partitions are the groups'."""

    def __init__(
        self, coordinator: TransactionCoordinator, topics: Topics, offsets_topic: CoordinatorTopic
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._offsets_topic = offsets_topic

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, self.add_partitions),
            Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, self.add_offsets),
            Api(ApiKey.END_TXN, 0, 5, self.end),
            Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, self.describe),
            Api(ApiKey.LIST_TRANSACTIONS, 0, 2, self.list_transactions),
        ]

    # --- producers

    def add_partitions(self, request: Request) -> Steps[Reply]:
        if request.version < ADD_BATCHED:
            return self._add_one(request)
        return self._add_many(request)

    def _add_one(self, request: Request) -> Steps[Reply]:
        body: AddPartitionsToTxnRequest = request.body
        reply = Reply()
        partitions, refusal = yield from self._look_up(body.v3_and_below_topics)
        if refusal:
            reply.resolve(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=refusal))
            return reply

        def told(result: TxnResult) -> None:
            error = for_client(result.error, ApiKey.ADD_PARTITIONS_TO_TXN, request.version)
            answer = _by_topic(dict.fromkeys(partitions, error))
            reply.resolve(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=answer))

        self._coordinator.add_partitions(
            body.v3_and_below_transactional_id,
            AddInput(
                body.v3_and_below_producer_id,
                body.v3_and_below_producer_epoch,
                frozenset(partitions),
                TV1,
            ),
            told,
        )
        return reply

    def _add_many(self, request: Request) -> Steps[Reply]:
        body: AddPartitionsToTxnRequest = request.body
        reply = Reply()
        response = AddPartitionsToTxnResponse()
        outstanding = 1

        def one_done() -> None:
            nonlocal outstanding
            outstanding -= 1
            if not outstanding:
                reply.resolve(response)

        def answer(shown: AddPartitionsToTxnResult, errors: Errors) -> None:
            shown.topic_results = _by_topic(errors)
            one_done()

        for each in body.transactions:
            yield ID_UNITS
            partitions, refusal = yield from self._look_up(each.topics)
            shown = AddPartitionsToTxnResult(transactional_id=each.transactional_id)
            response.results_by_transaction.append(shown)
            if refusal:
                shown.topic_results = refusal
                continue
            outstanding += 1
            given = AddInput(each.producer_id, each.producer_epoch, frozenset(partitions), TV2)
            told = partial(_tell_partitions, partitions, partial(answer, shown))
            if each.verify_only:
                self._coordinator.verify(each.transactional_id, given, told)
            else:
                self._coordinator.add_partitions(each.transactional_id, given, told, may_wait=True)
        one_done()
        return reply

    def _look_up(
        self, topics: Sequence[AddPartitionsToTxnTopic]
    ) -> Steps[tuple[list[TopicPartition], list[AddPartitionsToTxnTopicResult]]]:
        """The partitions, each once, of which there are no more than the cluster has; and, unless
        all are there, what each is told, however many were asked for."""
        there: dict[TopicPartition, None] = {}
        refusal: list[AddPartitionsToTxnTopicResult] = []
        is_missing = False
        for asked in topics:
            yield PARTITION_UNITS
            topic = self._topics.get(asked.name)
            count = 0 if topic is None else topic.partition_count
            refused = AddPartitionsToTxnTopicResult(asked.name)
            refusal.append(refused)
            for number in asked.partitions:
                yield PARTITION_UNITS
                if 0 <= number < count:
                    if (asked.name, number) in there:
                        continue
                    there[asked.name, number] = None
                    error = ErrorCode.OPERATION_NOT_ATTEMPTED
                else:
                    is_missing = True
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result = AddPartitionsToTxnPartitionResult(number, error)
                refused.results_by_partition.append(result)
        return [*there], refusal if is_missing else []

    def add_offsets(self, request: Request) -> Reply:
        body: AddOffsetsToTxnRequest = request.body
        reply = Reply()

        def told(result: TxnResult) -> None:
            error = for_client(result.error, ApiKey.ADD_OFFSETS_TO_TXN, request.version)
            reply.resolve(AddOffsetsToTxnResponse(error_code=error))

        group = (OFFSETS_TOPIC, self._offsets_topic.partition_for(body.group_id))
        given = AddInput(body.producer_id, body.producer_epoch, frozenset({group}), TV1)
        self._coordinator.add_partitions(body.transactional_id, given, told)
        return reply

    def end(self, request: Request) -> Reply:
        body: EndTxnRequest = request.body
        reply = Reply()

        def told(result: TxnResult) -> None:
            error = for_client(result.error, ApiKey.END_TXN, request.version)
            reply.resolve(
                EndTxnResponse(
                    error_code=error, producer_id=result.producer_id, producer_epoch=result.epoch
                )
            )

        version = TV2 if request.version >= END_TV2 else TV1
        given = EndInput(body.producer_id, body.producer_epoch, body.committed, version)
        self._coordinator.end(body.transactional_id, given, told)
        return reply

    # --- administration

    def describe(self, request: Request) -> Steps[DescribeTransactionsResponse]:
        body: DescribeTransactionsRequest = request.body
        response = DescribeTransactionsResponse()
        found: set[str] = set()
        for name in body.transactional_ids:
            yield ID_UNITS + len(name) // CHARACTERS_PER_UNIT
            if name in found:
                continue
            error, txn = self._coordinator.describe(name)
            if txn is None:
                shown = DescribeTransactionsResponseTransactionState(
                    error_code=error, transactional_id=name
                )
            else:
                found.add(name)
                yield PARTITION_UNITS * len(txn.partitions)
                shown = _described(txn)
            response.transaction_states.append(shown)
        return response

    def list_transactions(self, request: Request) -> HandlerResult:
        body: ListTransactionsRequest = request.body
        if body.transactional_id_pattern:
            return self._list_by_pattern(body, body.transactional_id_pattern)
        return self._list(body)

    def _list(self, body: ListTransactionsRequest) -> Steps[ListTransactionsResponse]:
        response, wanted = yield from self._head(body)
        if response.error_code:
            return response
        for txn in self._coordinator.list_transactions()[1]:
            yield LISTED_UNITS
            if wanted.has(txn):
                response.transaction_states.append(_listed(txn))
        return response

    async def _list_by_pattern(
        self, body: ListTransactionsRequest, text: str
    ) -> ListTransactionsResponse:
        """In slices: how long one match takes is known before."""
        response, wanted = await in_slices(self._head(body))
        if response.error_code:
            return response
        worker = self._coordinator.env.disk.run
        try:
            pattern = await compiled(text, worker)
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code)
        slices = Slices(PATTERN_UNITS_PER_TURN)
        response.error_code, listing = self._coordinator.list_transactions()
        for txn in listing:
            name = txn.transactional_id
            units = pattern.units(name) if wanted.has(txn) else 0
            if slices.due(LISTED_UNITS + min(units, UNITS_ON_LOOP)):
                await slices.turn()
            if not units:
                continue
            if units <= UNITS_ON_LOOP:
                is_match = pattern.matches(name)
            else:
                is_match = await worker(pattern.matches, name)
            if is_match:
                response.transaction_states.append(_listed(txn))
        return response

    def _head(
        self, body: ListTransactionsRequest
    ) -> Steps[tuple[ListTransactionsResponse, _Wanted]]:
        """The answer without what it lists, and what that is."""
        error, _ = self._coordinator.list_transactions()
        unknown = []
        wanted = _Wanted(body.duration_filter, self._coordinator.timers.now_ms())
        for state in body.state_filters:
            yield FILTER_UNITS
            if state in _SHOWN:
                wanted.states.add(state)
            elif state not in _NEVER_SHOWN:
                unknown.append(state)
        for producer_id in body.producer_id_filters:
            yield FILTER_UNITS
            wanted.producer_ids.add(producer_id)
        wanted.has_states = bool(body.state_filters)
        response = ListTransactionsResponse(
            error_code=error, unknown_state_filters=[] if error else unknown
        )
        return response, wanted


class _Wanted:
    """Which transactional ids a ListTransactions asks for, but for its pattern."""

    __slots__ = ("_duration_ms", "_now_ms", "has_states", "producer_ids", "states")

    def __init__(self, duration_ms: int, now_ms: int) -> None:
        self._duration_ms = duration_ms
        self._now_ms = now_ms
        #: Some are asked for, perhaps none that there is.
        self.has_states = False
        self.states: set[str] = set()
        self.producer_ids: set[int] = set()

    def has(self, txn: Transaction) -> bool:
        return not (
            (self.has_states and STATE_NAMES[txn.state] not in self.states)
            or (self.producer_ids and txn.producer_id not in self.producer_ids)
            or 0 <= self._duration_ms >= self._now_ms - txn.started_ms
        )


def _listed(txn: Transaction) -> ListTransactionsResponseTransactionState:
    return ListTransactionsResponseTransactionState(
        txn.transactional_id, txn.producer_id, STATE_NAMES[txn.state]
    )


def _described(txn: Transaction) -> DescribeTransactionsResponseTransactionState:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted((txn.is_ending and txn.unmarked) or txn.partitions):
        topics.setdefault(topic, []).append(number)
    return DescribeTransactionsResponseTransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=txn.transactional_id,
        transaction_state=STATE_NAMES[txn.state],
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.started_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        topics=[TopicData(topic, numbers) for topic, numbers in topics.items()],
    )


def _tell_partitions(
    partitions: list[TopicPartition], answered: Callable[[Errors], None], result: TxnResult
) -> None:
    """What is true of all, or which are not in the transaction."""
    answered(
        {
            each: result.error
            or (ErrorCode.TRANSACTION_ABORTABLE if each in result.missing else ErrorCode.NONE)
            for each in partitions
        }
    )


def _by_topic(errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    """In the order of the request, whose arrays may be gone by now."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (name, number), error in errors.items():
        topic = topics.setdefault(name, AddPartitionsToTxnTopicResult(name))
        topic.results_by_partition.append(AddPartitionsToTxnPartitionResult(number, error))
    return list(topics.values())
