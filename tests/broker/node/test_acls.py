"""Rights in a cluster of brokers, which are User:ANONYMOUS to one another."""

import pytest
import trio

from broker.cluster.config_acls import STANDARD_AUTHORIZER
from tests.broker.security.acls.conftest import acl_of
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import WriteTxnMarkersRequest
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from wire.kafka.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic

WAIT_SECONDS = 60
ACTION = "ANONYMOUS@127.0.0.1 CLUSTER_ACTION CLUSTER"


@pytest.fixture
async def two(start, wait_until):
    brokers = [await start(number, authorizer_class_name=STANDARD_AUTHORIZER) for number in (1, 2)]
    for broker in brokers:
        members = broker.parts.member.membership
        await wait_until(lambda members=members: len(members.live) == 2, WAIT_SECONDS)
    yield brokers
    for broker in brokers:
        broker.scope.cancel()
    with trio.fail_after(WAIT_SECONDS):
        for broker in brokers:
            await broker.stopped.wait()


async def asked(one, other, message, version):
    """What broker `one` is told when it asks `other` as brokers do."""
    came, answers = trio.Event(), []
    brokers = one.parts.transactions.brokers
    [endpoint] = [each for each in one.parts.view.brokers("PLAINTEXT") if each.node_id == other]

    def answered(answer):
        answers.append(answer)
        came.set()

    brokers.peers.ask(endpoint, message, version, answered)
    with trio.fail_after(WAIT_SECONDS):
        await came.wait()
    return answers[0]


async def test_brokers_ask_one_another_with_cluster_action(two, caplog, wait_until):
    """And an ACL that one of them stores is the other's a moment later."""
    one, other = two
    assert "brokers_refuse_each_other" in caplog.text
    marker = WriteTxnMarkersRequest(markers=[markers_of("t")])

    async def code():
        answer = await asked(one, 2, marker, 1)
        [partition] = answer.markers[0].topics[0].partitions
        return ErrorCode(partition.error_code)

    assert await code() is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    store = one.parts.acls.store
    assert await store.add([acl_of(ACTION)]) == {}
    await wait_until(lambda: len(other.parts.acls.store.index) == 1, WAIT_SECONDS)
    assert await code() is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ends = ListOffsetsRequest(-1, 0, [ends_of("t")])
    answer = await asked(one, 2, ends, 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await store.remove([acl_of(ACTION)])
    await wait_until(lambda: len(other.parts.acls.store.index) == 0, WAIT_SECONDS)
    assert await code() is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    answer = await asked(one, 2, ends, 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_super_user_without_a_login_is_warned_of(start, caplog):
    broker = await start(
        1, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin;User:ANONYMOUS"
    )
    assert "anonymous_is_super_user" in caplog.text
    assert "brokers_refuse_each_other" not in caplog.text
    broker.scope.cancel()
    with trio.fail_after(WAIT_SECONDS):
        await broker.stopped.wait()


async def test_without_an_authorizer_its_settings_are_told_to_do_nothing(start, caplog):
    broker = await start(1, super_users="User:admin")
    assert broker.parts.acls is None
    assert any(
        "super.users has no effect without authorizer.class.name" in str(record.args)
        for record in caplog.records
    )
    broker.scope.cancel()
    with trio.fail_after(WAIT_SECONDS):
        await broker.stopped.wait()


def markers_of(topic):
    return WritableTxnMarker(1, 0, False, [WritableTxnMarkerTopic(topic, [0])], 0)


def ends_of(topic):
    return ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=-1)])
