"""A client's transaction: all partitions are added or none, and no internal topic."""

from broker.authorization import AclOperation
from tests.broker.guards.test_table import asked
from tests.broker.rules import Rules
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic

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
