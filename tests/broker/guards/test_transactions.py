"""A client's transaction: all partitions are added or none, and no internal topic. Who is
shown a transaction sees of its topics those that he may describe."""

from broker.api import all_steps
from broker.authorization import AclOperation
from tests.broker.guards.test_table import asked
from tests.broker.rules import Rules
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.kafka.messages.transactions_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    TopicData,
)

REFUSED, NOT_TRIED, UNKNOWN = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def added(rules, *names):
    body = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[AddPartitionsToTxnTopic(name, [0, 1]) for name in names],
    )
    answer, _ = asked(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body, rules)
    if answer is None:
        return None
    return {
        one.name: {each.partition_error_code for each in one.results_by_partition}
        for one in answer.results_by_topic_v3_and_below
    }


def test_one_that_is_refused_refuses_all():
    rules = Rules(
        ("WRITE", "TRANSACTIONAL_ID", "x"),
        ("WRITE", "TOPIC", "mine"),
        ("WRITE", "TOPIC", "gone"),
        topics={1: "mine", 2: "theirs"},
    )
    assert added(rules, "mine") is None
    assert added(rules, "mine", "theirs", "gone") == {
        "mine": {NOT_TRIED},
        "theirs": {REFUSED},
        "gone": {UNKNOWN},
    }


def test_internal_topics_are_the_coordinators():
    rules = Rules(everything=True, topics={1: "t", 2: "__consumer_offsets"})
    assert added(rules, "t", "__consumer_offsets") == {
        "t": {NOT_TRIED},
        "__consumer_offsets": {REFUSED},
    }


def test_of_a_transaction_that_is_anothers_nothing_is_added():
    rules = Rules(("WRITE", "TOPIC", "t"), topics={1: "t"})
    assert added(rules, "t") == {"t": {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}}
    assert all(operation == AclOperation.WRITE.name for operation, *_ in rules.asked)


def test_a_transactions_topics_are_those_that_may_be_described():
    rules = Rules(("DESCRIBE", "TRANSACTIONAL_ID", "x"), ("DESCRIBE", "TOPIC", "mine"))
    body = DescribeTransactionsRequest(["x", "theirs"])
    finish, _ = asked(ApiKey.DESCRIBE_TRANSACTIONS, 0, body, rules)
    assert body.transactional_ids == ["x"], "the handler hears of no other"
    topics = [TopicData("mine", [0]), TopicData("hidden", [0, 1])]
    state = DescribeTransactionsResponseTransactionState(transactional_id="x", topics=topics)
    answer = DescribeTransactionsResponse(transaction_states=[state])
    all_steps(finish(answer))
    assert [
        (one.transactional_id, one.error_code, [each.topic for each in one.topics])
        for one in answer.transaction_states
    ] == [
        ("x", 0, ["mine"]),
        ("theirs", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, []),
    ]
