"""Metadata over real sockets: all versions, by name, by id, null and empty, auto-create."""

import uuid

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages import MetadataRequest
from wire.kafka.messages.metadata import MetadataRequestTopic


def ask(*names, **fields):
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


def by_id(topic_id, name=None):
    return MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=name)])


def told(answer):
    return [(topic.name, ErrorCode(topic.error_code).name) for topic in answer.topics]


async def test_every_version(client):
    for version in range(14):
        answer = await client.call(ask("t"), version)
        [topic] = answer.topics
        assert (topic.name, topic.error_code, len(topic.partitions)) == ("t", 0, 2)
        assert (topic.topic_id != ZERO_UUID) == (version >= 10)
        [broker] = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (0, *client.server.address)
        assert answer.controller_id == (0 if version >= 1 else -1)
        assert bool(answer.cluster_id) == (version >= 2)
        assert answer.throttle_time_ms == 0
        for index, partition in enumerate(topic.partitions):
            assert partition.partition_index == index
            assert (partition.error_code, partition.leader_id) == (0, 0)
            assert (partition.replica_nodes, partition.isr_nodes) == ([0], [0])
            assert (partition.leader_epoch >= 0) == (version >= 7)
            assert not partition.offline_replicas


async def test_all_and_none(client):
    await client.create_topic("u")
    for version in range(14):
        everything = ["t", "u"]
        if version >= 1:
            answer = await client.call(MetadataRequest(topics=None), version)
            assert sorted(topic.name for topic in answer.topics) == everything
        answer = await client.call(MetadataRequest(topics=[]), version)
        assert sorted(topic.name for topic in answer.topics) == ([] if version else everything)


async def test_auto_create(client):
    for version in range(14):
        name = f"new{version}"
        if version >= 4:
            refused = await client.call(ask(name, allow_auto_topic_creation=False), version)
            assert told(refused) == [(name, "UNKNOWN_TOPIC_OR_PARTITION")]
        answer = await client.call(ask(name, allow_auto_topic_creation=True), version)
        assert told(answer) == [(name, "NONE")]
        assert [part.error_code for part in answer.topics[0].partitions] == [0, 0]
        # It is served when the answer is there: no retry is needed.
        assert (await client.produce(name, [b"x"], partition=1)).error_code == 0


async def test_auto_create_can_be_off(start_server):
    server = await start_server({"auto.create.topics.enable": "false"})
    client = await server.connect()
    for version in (0, 3, 12):
        answer = await client.call(ask("new", allow_auto_topic_creation=True), version)
        assert told(answer) == [("new", "UNKNOWN_TOPIC_OR_PARTITION")]


@pytest.mark.parametrize("allowed", [True, False])
async def test_names_that_no_topic_may_have(client, allowed):
    answer = await client.call(ask("a b", "t", "", allow_auto_topic_creation=allowed), 9)
    assert told(answer) == [
        ("a b", "INVALID_TOPIC_EXCEPTION"), ("t", "NONE"), ("", "INVALID_TOPIC_EXCEPTION"),
    ]  # fmt: skip


async def test_by_topic_id(client):
    topic_id = await client.create_topic("u")
    for version in (12, 13):
        answer = await client.call(by_id(topic_id), version)
        assert told(answer) == [("u", "NONE")]
        assert answer.topics[0].topic_id == topic_id
        unknown = await client.call(by_id(uuid.UUID(int=9)), version)
        assert told(unknown) == [(None, "UNKNOWN_TOPIC_ID")]
        assert unknown.topics[0].topic_id == uuid.UUID(int=9)


async def test_an_unknown_id_creates_no_topic_of_the_name_beside_it(client):
    answer = await client.call(by_id(uuid.UUID(int=9), "beside"), 12)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    listed = await client.call(MetadataRequest(topics=None), 12)
    assert [topic.name for topic in listed.topics] == ["t"]


async def test_neither_name_nor_id(client):
    """Versions 10 and 11 can say it but not answer it: the response's name is not nullable."""
    for version in range(10, 14):
        answer = await client.call(by_id(ZERO_UUID), version)
        assert ErrorCode(answer.topics[0].error_code) in (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REQUEST,
        )
        assert (await client.call(ask("t"), version)).topics[0].error_code == 0


async def test_ids_before_version_12(client):
    topic_id = await client.create_topic("u")
    for asked in (topic_id, uuid.UUID(int=9)):
        answer = await client.call(by_id(asked), 10)
        assert answer.topics
    assert (await client.call(ask("u"), 10)).topics[0].error_code == 0


async def test_authorized_operations(client):
    answer = await client.call(ask("t", include_topic_authorized_operations=True), 10)
    assert answer.topics[0].topic_authorized_operations > 0
    answer = await client.call(ask("t"), 10)
    assert answer.topics[0].topic_authorized_operations == -(2**31)
    answer = await client.call(ask("t", include_cluster_authorized_operations=True), 10)
    assert answer.cluster_authorized_operations > 0


async def test_right_after_a_restart_all_is_served(start_server):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t", 20)
    for partition in range(20):
        await client.produce("t", [b"x"], partition=partition)
    await server.stop()
    server = await start_server()
    client = await server.connect()
    answer = await client.call(ask("t"), 12)
    assert [part.error_code for part in answer.topics[0].partitions] == [0] * 20
    epochs = {part.leader_epoch for part in answer.topics[0].partitions}
    assert min(epochs) >= 1
