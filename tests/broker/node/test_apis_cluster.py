"""Every version of the APIs that only brokers of a cluster serve, over a socket."""

import pytest
import trio

from wire.kafka.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
)

WAIT_SECONDS = 60
NONE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 0, 3, 42
INVALID_REPLICATION_FACTOR, ELECTION_NOT_NEEDED, NOT_REGISTERED = 38, 84, 102


@pytest.fixture
async def client(start, connect, wait_until):
    """Of broker 1 of two; topic «t» has four partitions."""
    one, two = await start(1), await start(2)
    for broker in (one, two):
        members = broker.parts.member.membership
        await wait_until(lambda members=members: len(members.live) == 2, WAIT_SECONDS)
    client = await connect(one)
    await client.create_topic("t", 4)
    client.brokers = (one, two)
    yield client
    for broker in (one, two):
        broker.scope.cancel()
    with trio.fail_after(WAIT_SECONDS):
        await one.stopped.wait()
        await two.stopped.wait()


async def test_elect_leaders(client):
    topics = [TopicPartitions("t", [0]), TopicPartitions("u", [0])]
    for version in range(3):
        answer = await client.call(ElectLeadersRequest(0, topics, 5_000), version)
        assert answer.error_code == NONE
        found = {
            one.topic: [each.error_code for each in one.partition_result]
            for one in answer.replica_election_results
        }
        assert found == {"t": [ELECTION_NOT_NEEDED], "u": [UNKNOWN_TOPIC_OR_PARTITION]}


async def test_reassignments(client, wait_until):
    """The partition is moved to and fro, and listed until it has come there."""
    ownership = client.brokers[0].parts.member.ownership
    topic_id = client.brokers[0].parts.logs._catalog.get("t").id

    def leads():
        return ownership.get(topic_id).partitions[0].leader

    async def moved(node_id, version):
        part = ReassignablePartition(0, [node_id])
        body = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", [part])])
        answer = await client.call(body, version)
        assert [one.error_code for one in answer.responses[0].partitions] == [NONE]
        await wait_until(lambda: leads() == node_id, WAIT_SECONDS)

        async def is_over():
            listed = await client.call(ListPartitionReassignmentsRequest(topics=None), 0)
            assert listed.error_code == NONE
            return not listed.topics

        await wait_until(is_over, WAIT_SECONDS)

    first = leads()
    for version in range(2):
        await moved(3 - first, version)
        await moved(first, version)
        part = ReassignablePartition(0, [1, 2])
        body = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", [part])])
        answer = await client.call(body, version)
        found = [one.error_code for one in answer.responses[0].partitions]
        assert found == [INVALID_REPLICATION_FACTOR]


async def test_unregister_broker(client):
    for node_id, error in ((2, INVALID_REQUEST), (9, NOT_REGISTERED)):
        answer = await client.call(UnregisterBrokerRequest(broker_id=node_id), 0)
        assert answer.error_code == error
