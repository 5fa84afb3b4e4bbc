"""Topics of the coordinators: made by their rules whoever asks first, never emptied or grown."""

import logging

import pytest
import trio

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from wire.kafka.messages.configs import (
    DescribeConfigsResource,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from wire.kafka.messages.metadata import MetadataRequestTopic
from wire.kafka.messages.offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
)
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsTopic,
)
from wire.kafka.records.batch import scan_batches
from wire.kafka.records.compression import Compression

OFFSETS, TRANSACTIONS, SHARES = "__consumer_offsets", "__transaction_state", "__share_group_state"
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.segment.bytes": "2097152",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "5",
    # What an ordinary topic would have:
    "num.partitions": "2",
    "log.retention.ms": "1",
    "log.retention.check.interval.ms": "20",
}


async def described(client, name):
    """{setting: value} of a topic."""
    body = DescribeConfigsRequest(resources=[DescribeConfigsResource(2, name, None)])
    (result,) = (await client.call(body)).results
    assert not result.error_code
    return {one.name: one.value for one in result.configs}


async def partition_count(client, name):
    body = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    (topic,) = (await client.call(body)).topics
    assert not topic.error_code
    assert topic.is_internal
    return len(topic.partitions)


async def commit(client, offset, *, group="g", retention_ms=-1, version=4):
    body = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset)])
        ],
    )
    answer = await client.call(body, version)
    return ErrorCode(answer.topics[0].partitions[0].error_code).name


async def committed(client, group="g"):
    body = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic("t", partition_indexes=[0])]
    )
    answer = await client.call(body, 5)
    assert not answer.error_code
    return answer.topics[0].partitions[0].committed_offset


async def find_coordinator(client, group="g"):
    """And waits until it has loaded the group."""
    body = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    assert not (await client.call(body)).coordinators[0].error_code
    fetch = OffsetFetchRequest(group_id=group, topics=[])
    with trio.fail_after(10):
        while (await client.call(fetch, 5)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.sleep(0.01)


async def alter(client, name, setting, value, operation=0):
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        2, name, [IncrementalAlterConfigsRequestAlterableConfig(setting, operation, value)]
    )
    (result,) = (await client.call(IncrementalAlterConfigsRequest(resources=[resource]))).responses
    return ErrorCode(result.error_code).name, result.error_message


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        (OFFSETS, 3, {"cleanup.policy": "compact", "segment.bytes": "2097152"}),
        (TRANSACTIONS, 4, {"cleanup.policy": "compact", "compression.type": "uncompressed"}),
        (SHARES, 5, {"retention.ms": "-1", "retention.bytes": "-1"}),
    ],
)
@pytest.mark.parametrize("by", ["metadata", "create"])
async def test_made_by_the_coordinators_rules(start_server, name, count, expected, by):
    client = await (await start_server(SETTINGS)).connect()
    if by == "create":
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        (result,) = (await client.call(CreateTopicsRequest(topics=[topic]))).topics
        assert (result.error_code, result.num_partitions) == (0, count)
    assert await partition_count(client, name) == count
    configs = await described(client, name)
    assert {setting: configs[setting] for setting in expected} == expected


async def test_create_takes_a_clients_own_number_and_settings(start_server):
    """As Kafka: who makes it first may say how many partitions it has."""
    client = await (await start_server(SETTINGS)).connect()
    configs = [CreatableTopicConfig("segment.bytes", "1048576")]
    topic = CreatableTopic(name=OFFSETS, num_partitions=7, replication_factor=1, configs=configs)
    (result,) = (await client.call(CreateTopicsRequest(topics=[topic]))).topics
    assert (result.error_code, result.num_partitions) == (0, 7)
    configs = await described(client, OFFSETS)
    assert (configs["segment.bytes"], configs["cleanup.policy"]) == ("1048576", "compact")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        (OFFSETS, "cleanup.policy", "delete"),
        (OFFSETS, "cleanup.policy", "compact,delete"),
        (OFFSETS, "cleanup.policy", ""),
        (TRANSACTIONS, "cleanup.policy", "delete"),
        (SHARES, "retention.ms", "1000"),
        (SHARES, "retention.bytes", "0"),
    ],
)
async def test_settings_that_would_delete_are_refused(start_server, name, setting, value):
    client = await (await start_server(SETTINGS)).connect()
    configs = [CreatableTopicConfig(setting, value)]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    (result,) = (await client.call(CreateTopicsRequest(topics=[topic]))).topics
    assert ErrorCode(result.error_code).name == "INVALID_CONFIG"
    assert f"would delete what {name} keeps" in result.error_message
    await partition_count(client, name)
    before = await described(client, name)
    code, message = await alter(client, name, setting, value)
    assert (code, "would delete" in message) == ("INVALID_CONFIG", True)
    assert await described(client, name) == before
    # Taking the override back changes nothing of what is in force.
    assert (await alter(client, name, setting, None, operation=1))[0] == "NONE"
    assert (await described(client, name))[setting] == before[setting]


async def test_partitions_cannot_be_added(start_server):
    """A group's partition is its hash modulo their number."""
    client = await (await start_server(SETTINGS)).connect()
    await client.create_topic("t")
    await find_coordinator(client)
    assert await commit(client, 5) == "NONE"
    for validate_only in (True, False):
        body = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=OFFSETS, count=50, assignments=None)],
            validate_only=validate_only,
        )
        (result,) = (await client.call(body)).results
        assert ErrorCode(result.error_code).name == "INVALID_TOPIC_EXCEPTION"
    assert await partition_count(client, OFFSETS) == 3
    assert await committed(client) == 5


async def test_clients_neither_delete_from_it_nor_write_to_it(start_server):
    client = await (await start_server(SETTINGS)).connect()
    await partition_count(client, OFFSETS)
    partitions = [DeleteRecordsPartition(partition_index=0, offset=-1)]
    body = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=OFFSETS, partitions=partitions)])
    answer = (await client.call(body)).topics[0].partitions[0]
    assert ErrorCode(answer.error_code).name == "INVALID_TOPIC_EXCEPTION"
    answer = await client.produce(OFFSETS, [(b"k", b"v")])
    assert ErrorCode(answer.error_code).name == "INVALID_TOPIC_EXCEPTION"


async def test_retention_spares_commits_of_an_ill_made_topic(start_server, wait_until, caplog):
    """One that an earlier version made, like any other topic: a restart finds it."""
    caplog.set_level(logging.WARNING)
    server = await start_server(SETTINGS)
    client = await server.connect()
    await client.create_topic("t")
    await server.parts["TopicCatalog"].create(OFFSETS, 1, {})
    await server.stop()

    server = await start_server(SETTINGS)
    notes = [
        record.args
        for record in caplog.records
        if record.getMessage() == "internal_topic_not_as_its_coordinator_makes_it"
    ]
    assert {(note["topic"], note["partitions"], note["in_force"]) for note in notes} == {
        (OFFSETS, 1, "cleanup.policy=compact")
    }
    client = await server.connect()
    await client.create_topic("ordinary", 1)
    await find_coordinator(client)
    assert await commit(client, 7) == "NONE"
    await client.produce("ordinary", [b"x"])
    offsets, ordinary = (server.parts["LogManager"].get(name, 0) for name in (OFFSETS, "ordinary"))
    await wait_until(lambda: ordinary.log_start_offset == 1)  # so would the other one's have been
    await trio.sleep(0.1)
    assert (offsets.log_start_offset, offsets.high_watermark) == (0, 1)
    await server.stop()
    server = await start_server(SETTINGS)
    client = await server.connect()
    await find_coordinator(client)
    assert await committed(client) == 7


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**62, -(2**63), -2, 0])
async def test_a_commits_retention_may_be_any_number(start_server, retention_ms):
    """A commit that is to be kept for ever must not end in a number that no record can hold."""
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    await find_coordinator(client)
    assert await commit(client, 9, retention_ms=retention_ms) == "NONE"
    assert await committed(client) == 9
    await server.stop()
    client = await (await start_server()).connect()
    await find_coordinator(client)
    assert await committed(client) == 9


async def test_offsets_topic_compression_codec(start_server):
    settings = {**SETTINGS, "offsets.topic.num.partitions": "1"}
    server = await start_server({**settings, "offsets.topic.compression.codec": "4"})
    client = await server.connect()
    await client.create_topic("t")
    await find_coordinator(client)
    assert await commit(client, 3) == "NONE"
    got = await client.fetch(OFFSETS, 0)
    assert [batch.compression for batch in scan_batches(got.records)] == [Compression.ZSTD]
    await server.stop()
    client = await (await start_server(settings)).connect()
    await find_coordinator(client)
    assert await committed(client) == 3
