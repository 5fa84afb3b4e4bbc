"""The share coordinator's requests on the wire, by a real server on which they are switched on."""

from __future__ import annotations

import dataclasses
import uuid
from base64 import urlsafe_b64encode

import pytest

from broker.coordinator.topic import partition_for
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from wire.kafka.messages.groups import FindCoordinatorRequest
from wire.kafka.messages.metadata import ApiVersionsRequest
from wire.kafka.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateRequestPartitionData,
    DeleteStateData,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequestPartitionData,
    InitializeStateData,
    ReadShareGroupStateRequest,
    ReadShareGroupStateRequestPartitionData,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryRequestPartitionData,
    ReadStateData,
    ReadStateSummaryData,
    StateBatch,
    WriteShareGroupStateRequest,
    WriteShareGroupStateRequestPartitionData,
    WriteStateData,
)

SETTINGS = {"share.coordinator.state.topic.num.partitions": "3"}
GONE = uuid.UUID(int=99)


@pytest.fixture
async def client(start_server):
    server = await start_server(SETTINGS)
    client = await server.connect()
    client.topic_id = await client.create_topic("t", 4)
    (found,) = await find(client, key_of(client.topic_id, 0))
    assert found.error_code == 0
    return client


def key_of(topic_id, partition, group="g"):
    return f"{group}:{urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}:{partition}"


async def find(client, *keys, version=6, key_type=2):
    body = FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        body.coordinator_keys = [*keys]
    else:
        (body.key,) = keys
    answer = await client.call(body, version)
    return answer.coordinators if version >= 4 else [answer]


async def one(client, body, version=None):
    """The answer of the one partition."""
    (result,) = (await client.call(body, version)).results
    (partition,) = result.partitions
    return partition


def initialize(topic_id, *, group="g", partition=0, state_epoch=1, start=-1):
    data = InitializeShareGroupStateRequestPartitionData(partition, state_epoch, start)
    return InitializeShareGroupStateRequest(group, [InitializeStateData(topic_id, [data])])


def read(topic_id, *, group="g", partition=0, leader_epoch=-1):
    data = ReadShareGroupStateRequestPartitionData(partition, leader_epoch)
    return ReadShareGroupStateRequest(group, [ReadStateData(topic_id, [data])])


def summary(topic_id, *, group="g", partition=0, leader_epoch=-1):
    data = ReadShareGroupStateSummaryRequestPartitionData(partition, leader_epoch)
    return ReadShareGroupStateSummaryRequest(group, [ReadStateSummaryData(topic_id, [data])])


def write(topic_id, *batches, group="g", partition=0, epochs=(1, -1), start=-1, count=-1):
    rows = [StateBatch(*each) for each in batches]
    data = WriteShareGroupStateRequestPartitionData(partition, *epochs, start, count, rows)
    return WriteShareGroupStateRequest(group, [WriteStateData(topic_id, [data])])


def delete(topic_id, *, group="g", partition=0):
    data = DeleteShareGroupStateRequestPartitionData(partition)
    return DeleteShareGroupStateRequest(group, [DeleteStateData(topic_id, [data])])


async def test_every_version(client):
    topic_id = client.topic_id
    assert (await one(client, initialize(topic_id))).error_code == 0
    assert (await one(client, read(topic_id, leader_epoch=2))).start_offset == -1
    for version in (0, 1):
        body = write(topic_id, (10 * version, 10 * version + 4, 2, 1), start=0, count=5 + version)
        assert (await one(client, body, version)).error_code == 0
        told = await one(client, summary(topic_id), version)
        assert (told.error_code, told.state_epoch, told.leader_epoch) == (0, 1, 2)
        assert told.start_offset == 0
        # Version 0 neither says nor is told how many are done.
        assert told.delivery_complete_count == (-1 if version == 0 else 6)
    state = await one(client, read(topic_id, leader_epoch=2))
    assert (state.state_epoch, state.start_offset) == (1, 0)
    assert state.state_batches == [StateBatch(0, 4, 2, 1), StateBatch(10, 14, 2, 1)]
    assert (await one(client, delete(topic_id))).error_code == 0
    gone = await one(client, summary(topic_id))
    assert (gone.error_code, gone.start_offset, gone.state_epoch) == (0, -1, 0)


async def test_what_is_announced(client):
    def versions(answer):
        keys = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        return {key: keys[key] for key in range(83, 88) if key in keys}

    told = versions(await client.call(ApiVersionsRequest("c", "1"), 3))
    assert told == {83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1)}


async def test_refusals(client, name):
    topic_id = client.topic_id

    async def error(body):
        answer = await one(client, body)
        assert bool(answer.error_message) is bool(answer.error_code)
        return name(answer.error_code)

    assert await error(read(topic_id)) == "INVALID_REQUEST", "not initialised"
    assert await error(write(topic_id, (0, 1, 2, 1))) == "INVALID_REQUEST"
    assert await error(initialize(topic_id, state_epoch=5)) == "NONE"
    assert await error(initialize(topic_id, state_epoch=4)) == "FENCED_STATE_EPOCH"
    assert await error(read(topic_id, leader_epoch=7)) == "NONE"
    assert await error(read(topic_id, leader_epoch=6)) == "FENCED_LEADER_EPOCH"
    assert await error(write(topic_id, epochs=(5, 6))) == "FENCED_LEADER_EPOCH"
    assert await error(write(topic_id, epochs=(4, 7))) == "FENCED_STATE_EPOCH"
    assert await error(write(topic_id, (3, 2, 2, 1), epochs=(5, 7))) == "INVALID_REQUEST"
    assert await error(write(topic_id, (2, 3, 1, 1), epochs=(5, 7))) == "INVALID_REQUEST"
    for body in (initialize, read, summary, write):
        assert await error(body(GONE)) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert await error(body(topic_id, partition=4)) == "UNKNOWN_TOPIC_OR_PARTITION"
    for body in (initialize, read, summary, write, delete):
        assert await error(body(topic_id, partition=-1)) == "INVALID_REQUEST"
        assert await error(body(uuid.UUID(int=0))) == "INVALID_REQUEST"
        assert await error(body(topic_id, group="")) == "INVALID_GROUP_ID"
    assert await error(delete(GONE)) == "NONE"


async def test_old_leader_writes(client):
    """It comes back after another has led the partition, and what it has to say is refused."""
    topic_id = client.topic_id
    await one(client, initialize(topic_id))
    assert (await one(client, read(topic_id, leader_epoch=1))).error_code == 0
    assert (await one(client, read(topic_id, leader_epoch=2))).error_code == 0
    late = await one(client, write(topic_id, (0, 9, 2, 1), epochs=(1, 1)))
    assert late.error_code == E.FENCED_LEADER_EPOCH
    assert (await one(client, read(topic_id, leader_epoch=2))).state_batches == []


async def test_many_partitions_in_one_request(client):
    data = [InitializeShareGroupStateRequestPartitionData(at, 1, at) for at in (0, 1, 2, 3, 9)]
    body = InitializeShareGroupStateRequest(
        "g", [InitializeStateData(client.topic_id, data), InitializeStateData(GONE, [])]
    )
    while True:
        first, second = (await client.call(body)).results
        if E.COORDINATOR_LOAD_IN_PROGRESS not in {each.error_code for each in first.partitions}:
            break  # each key's partition of the topic is loaded in its own time
    assert [each.partition for each in first.partitions] == [0, 1, 2, 3, 9]
    assert [each.error_code for each in first.partitions] == [0] * 4 + [3]
    assert (second.topic_id, second.partitions) == (GONE, [])
    assert (await client.call(ReadShareGroupStateRequest("g", []))).results == []


async def test_a_large_write(client):
    rows = [(2 * at, 2 * at, 2, 1) for at in range(4_000)]
    await one(client, initialize(client.topic_id))
    assert (await one(client, write(client.topic_id, *rows))).error_code == 0
    state = await one(client, read(client.topic_id))
    assert [dataclasses.astuple(each) for each in state.state_batches] == rows


async def test_find_coordinator(client, name):
    topic_id = client.topic_id
    keys = [key_of(topic_id, at, group) for at in range(4) for group in ("g", "a:b", "é")]
    for found, key in zip(await find(client, *keys), keys, strict=True):
        assert (found.error_code, found.node_id, found.key) == (0, 0, key)
    for key in ("", "g", "g:x:1", f"g:{topic_id}:1", key_of(topic_id, -1), key_of(topic_id, 0, "")):
        (refused,) = await find(client, key)
        assert name(refused.error_code) == "INVALID_REQUEST", key
    for version in (3, 5):
        (refused,) = await find(client, keys[0], version=version)
        assert name(refused.error_code) == "INVALID_REQUEST"


async def test_the_topic_is_as_kafka_makes_it(client):
    body = DescribeConfigsRequest([DescribeConfigsResource(2, "__share_group_state", None)])
    (result,) = (await client.call(body)).results
    configs = {each.name: each.value for each in result.configs}
    assert configs["cleanup.policy"] == "delete"
    assert configs["retention.ms"] == "-1"
    assert configs["segment.bytes"] == "104857600"


async def test_it_outlives_the_server(start_server):
    server = await start_server(SETTINGS)
    client = await server.connect()
    topic_id = await client.create_topic("t", 4)
    await find(client, key_of(topic_id, 0))
    for at in range(4):
        await one(client, initialize(topic_id, partition=at))
        for number in range(5):
            body = write(topic_id, (number, number, 2, 1), partition=at, start=0)
            assert (await one(client, body)).error_code == 0
    await server.stop()
    client = await (await start_server(SETTINGS)).connect()
    await find(client, key_of(topic_id, 0))
    for at in range(4):
        key = key_of(topic_id, at)
        assert partition_for(key, 3) in range(3)
        state = await one(client, read(topic_id, partition=at))
        while state.error_code == E.COORDINATOR_LOAD_IN_PROGRESS:
            state = await one(client, read(topic_id, partition=at))
        assert state.state_batches == [StateBatch(0, 4, 2, 1)]
