"""Guards of transactions: their ids, partitions and offsets, and who uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.authorization import AclOperation, Extent, ResourceType
from broker.cluster.topic import INTERNAL_TOPICS
from broker.guards import refusals
from broker.guards.tools import (
    QUESTION_UNITS,
    All,
    Each,
    One,
    Refused,
    only,
)
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import transactions, transactions_admin

if TYPE_CHECKING:
    from broker.api import Request, Steps
    from broker.rights import Rights

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
WRITE, READ, DESCRIBE = AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE
#: From this version on brokers ask, for several transactions.
_OF_BROKERS_FROM = 4


def init_producer_id(request: Request, rights: Rights) -> Steps[Any]:
    """Without a transaction: whoever may write to some topic, whichever."""
    body: transactions.InitProducerIdRequest = request.body
    yield QUESTION_UNITS
    if body.transactional_id is not None:
        if rights.allows(WRITE, TRANSACTIONAL_ID, body.transactional_id):
            return None
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        if rights.allows_cluster(AclOperation.IDEMPOTENT_WRITE, is_told=False):
            return None
        if rights.allows(WRITE, TOPIC, Extent.ANY):
            return None
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return transactions.InitProducerIdResponse(
        error_code=int(code), producer_id=-1, producer_epoch=-1
    )


_of_broker = One(ResourceType.CLUSTER, AclOperation.CLUSTER_ACTION)
_own_transaction = One(
    TRANSACTIONAL_ID, WRITE, "v3_and_below_transactional_id", refusals.all_txn_topics
)


def add_partitions(request: Request, rights: Rights) -> Steps[Any]:
    """Of a client's all partitions are added or none. Internal topics are the coordinators'."""
    if request.version >= _OF_BROKERS_FROM:
        return (yield from _of_broker(request, rights))
    outcome = yield from _own_transaction(request, rights)
    if outcome is not None:
        return outcome
    body: transactions.AddPartitionsToTxnRequest = request.body
    refused: set[str] = set()
    for topic in body.v3_and_below_topics:
        yield QUESTION_UNITS
        if topic.name in INTERNAL_TOPICS or not rights.allows(WRITE, TOPIC, topic.name):
            refused.add(topic.name)
    if not refused:
        return None
    response = transactions.AddPartitionsToTxnResponse()
    for topic in body.v3_and_below_topics:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
        if topic.name in refused:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not rights.has_topic(topic.name):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = yield from refusals.txn_topic(topic, code)
        response.results_by_topic_v3_and_below.append(answer)
    return response


own_transaction = One(TRANSACTIONAL_ID, WRITE, "transactional_id")
add_offsets = All(own_transaction, One(GROUP, READ, "group_id"))
commit_offsets = All(
    One(TRANSACTIONAL_ID, WRITE, "transactional_id", refusals.all_txn_commits),
    One(GROUP, READ, "group_id", refusals.all_txn_commits),
    Each(TOPIC, READ, "topics", "name", "topics", refusals.txn_commit_topic),
)

_by_cluster = One(ResourceType.CLUSTER, AclOperation.CLUSTER_ACTION, "", refusals.all_markers)


def write_markers(request: Request, rights: Rights) -> Steps[Any]:
    """A broker's, or an administrator's who ends a transaction that hangs."""
    yield QUESTION_UNITS
    if rights.allows_cluster(AclOperation.ALTER, is_told=False):
        return None
    return (yield from _by_cluster(request, rights))


describe_producers = Each(
    TOPIC,
    READ,
    "topics",
    "name",
    "topics",
    Refused(
        transactions_admin.TopicResponse,
        transactions_admin.PartitionResponse,
        numbers=lambda topic: topic.partition_indexes,
        more={"error_message": "Topic authorization failed."},
    ),
)

_described = Each(
    TRANSACTIONAL_ID,
    DESCRIBE,
    "transactional_ids",
    "",
    "transaction_states",
    lambda name, code: transactions_admin.DescribeTransactionsResponseTransactionState(
        error_code=int(code), transactional_id=name
    ),
)


def describe_transactions(request: Request, rights: Rights) -> Steps[Any]:
    """Of their topics those that the client may describe."""
    outcome = yield from _described(request, rights)
    if outcome is not None and not callable(outcome):
        return outcome

    def finish(response: transactions_admin.DescribeTransactionsResponse) -> Steps[None]:
        for state in response.transaction_states:
            kept = []
            for topic in state.topics:
                yield QUESTION_UNITS
                if rights.describes_topic(topic.topic):
                    kept.append(topic)
            state.topics = kept
        if outcome is not None:
            yield from outcome(response)

    return finish


_seen = only("transaction_states", DESCRIBE, TRANSACTIONAL_ID, "transactional_id")


def list_transactions(request: Request, rights: Rights) -> Steps[Any]:
    yield 1
    return _seen(rights)
