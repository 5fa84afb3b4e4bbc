"""Transactions, as producers and administrators see them.

Part of the transaction coordinator, which is not served yet: nobody registers these.

| key | API | versions |
|---|---|---|
| 24 | AddPartitionsToTxn | 0-5 |
| 25 | AddOffsetsToTxn | 0-4 |
| 26 | EndTxn | 0-5 |
| 65 | DescribeTransactions | 0 |
| 66 | ListTransactions | 0-1 |

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
- DescribeTransactions shows the partitions that still lack their marker while one ends, and
  ListTransactions what all of this broker's partitions hold, by state, producer id and, from 1 on
  (KIP-994), by how long a transaction has taken. Both may be a moment old.

Known deviations: ListTransactions 2, by pattern, is not there. Nothing tells a broker from another
client: whoever may write to a transactional id may ask as a broker does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps
from broker.cluster.topic import OFFSETS_TOPIC
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
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
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
CHARACTERS_PER_UNIT = 20

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
            Api(ApiKey.LIST_TRANSACTIONS, 0, 1, self.list_transactions),
        ]

    # --- producers

    def add_partitions(self, request: Request) -> Steps[Reply]:
        if request.version < ADD_BATCHED:
            return self._add_one(request)
        return self._add_many(request)

    def _add_one(self, request: Request) -> Steps[Reply]:
        body: AddPartitionsToTxnRequest = request.body
        reply = Reply()
        partitions = _partitions(body.v3_and_below_topics)
        yield PARTITION_UNITS * len(partitions)

        def answer(errors: Errors) -> None:
            reply.resolve(
                AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(errors))
            )

        unknown = self._unknown(partitions)
        if unknown:
            answer(unknown)
            return reply

        def told(result: TxnResult) -> None:
            error = for_client(result.error, ApiKey.ADD_PARTITIONS_TO_TXN, request.version)
            answer(dict.fromkeys(partitions, error))

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
            yield ID_UNITS + PARTITION_UNITS * sum(len(topic.partitions) for topic in each.topics)
            shown = AddPartitionsToTxnResult(transactional_id=each.transactional_id)
            response.results_by_transaction.append(shown)
            outstanding += 1
            partitions = _partitions(each.topics)
            answered = partial(answer, shown)
            unknown = self._unknown(partitions)
            if unknown:
                answered(unknown)
                continue
            given = AddInput(each.producer_id, each.producer_epoch, frozenset(partitions), TV2)
            told = partial(_tell_partitions, partitions, answered)
            if each.verify_only:
                self._coordinator.verify(each.transactional_id, given, told)
            else:
                self._coordinator.add_partitions(each.transactional_id, given, told, may_wait=True)
        one_done()
        return reply

    def _unknown(self, partitions: list[TopicPartition]) -> Errors:
        """Empty if all are there; else what each is told."""
        missing = set()
        for name, number in partitions:
            topic = self._topics.get(name)
            if topic is None or not 0 <= number < topic.partition_count:
                missing.add((name, number))
        if not missing:
            return {}
        return {
            each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if each in missing
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for each in partitions
        }

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
        for name in body.transactional_ids:
            yield ID_UNITS + len(name) // CHARACTERS_PER_UNIT
            error, txn = self._coordinator.describe(name)
            if txn is None:
                shown = DescribeTransactionsResponseTransactionState(
                    error_code=error, transactional_id=name
                )
            else:
                yield PARTITION_UNITS * len(txn.partitions)
                shown = _described(txn)
            response.transaction_states.append(shown)
        return response

    def list_transactions(self, request: Request) -> Steps[ListTransactionsResponse]:
        body: ListTransactionsRequest = request.body
        states = set(body.state_filters)
        response = ListTransactionsResponse(
            unknown_state_filters=sorted(states - _SHOWN - _NEVER_SHOWN)
        )
        error, transactions = self._coordinator.list_transactions()
        response.error_code = error
        producer_ids = set(body.producer_id_filters)
        now_ms = self._coordinator.timers.now_ms()
        for txn in transactions:
            yield LISTED_UNITS
            state = STATE_NAMES[txn.state]
            if (
                (states and state not in states)
                or (producer_ids and txn.producer_id not in producer_ids)
                or 0 <= body.duration_filter >= now_ms - txn.started_ms
            ):
                continue
            response.transaction_states.append(
                ListTransactionsResponseTransactionState(
                    txn.transactional_id, txn.producer_id, state
                )
            )
        return response


def _described(txn: Transaction) -> DescribeTransactionsResponseTransactionState:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(txn.unmarked if txn.is_ending else txn.partitions):
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


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [(topic.name, number) for topic in topics for number in topic.partitions]


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
