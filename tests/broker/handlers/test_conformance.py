"""Every advertised (key, version) is driven with a sensible request and its answer is checked.

The list is the server's own answer to ApiVersions: an API that is advertised and has no case here
fails `test_every_advertised_version`. A case gets (client, version, world) and asserts; `world` is
a server with topic «t» (2 partitions, three records in the first).
"""

import dataclasses
import struct
import uuid

import pytest

from wire.kafka import messages as m
from wire.kafka.api_keys import ApiKey
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.cluster import DescribableLogDirTopic
from wire.kafka.messages.configs import (
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from wire.kafka.messages.groups import (
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequestAssignment,
)
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.kafka.messages.metadata import MetadataRequestTopic, TopicRequest
from wire.kafka.messages.offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsTopic,
    DeleteTopicState,
)

CASES = {}
TOPIC, BROKER = 2, 4  # configuration resource types
MEMBER_ID_REQUIRED = 79


def case(key):
    def add(function):
        assert key not in CASES
        CASES[key] = function
        return function

    return add


@dataclasses.dataclass
class World:
    topic_id: uuid.UUID
    requests: object


@case(ApiKey.PRODUCE)
async def produce(client, version, world):
    topic = world.topic_id if version >= 13 else "t"
    answer = await client.call(world.requests.produce((topic, 1, [b"x"])), version)
    assert answer.responses[0].partition_responses[0].error_code == 0


@case(ApiKey.FETCH)
async def fetch(client, version, world):
    topic = world.topic_id if version >= 13 else "t"
    answer = await client.call(world.requests.fetch((topic, 0, 1)), version)
    [data] = answer.responses[0].partitions
    assert (data.error_code, data.high_watermark) == (0, 3)
    assert world.requests.values(data.records) == [(0, b"a"), (1, b"b"), (2, b"c")]


@case(ApiKey.LIST_OFFSETS)
async def list_offsets(client, version, world):
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    answer = await client.call(
        m.ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)]
        ),
        version,
    )
    assert answer.topics[0].partitions[0].offset == 3


@case(ApiKey.METADATA)
async def metadata(client, version, world):
    answer = await client.call(m.MetadataRequest(topics=[MetadataRequestTopic(name="t")]), version)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("t", 0)]
    assert answer.brokers[0].port == client.server.address[1]


async def join(client, version, group, instance=None):
    """A group of this one member, joined and synced: (member id, generation)."""
    ask = m.JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        protocol_type="consumer", group_instance_id=instance,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"meta")],
    )  # fmt: skip
    answer = await client.call(ask, version)
    if version >= 4 and instance is None:
        assert answer.error_code == MEMBER_ID_REQUIRED
        ask.member_id = answer.member_id
        answer = await client.call(ask, version)
    assert answer.error_code == 0
    assert answer.leader == answer.member_id
    assert answer.protocol_name == "range"
    assert [(one.member_id, one.metadata) for one in answer.members] == [
        (answer.member_id, b"meta")
    ]
    return answer.member_id, answer.generation_id


async def sync(client, version, group, member_id, generation):
    answer = await client.call(
        m.SyncGroupRequest(
            group_id=group, generation_id=generation, member_id=member_id,
            protocol_type="consumer", protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")],
        ),
        version,
    )  # fmt: skip
    assert (answer.error_code, answer.assignment) == (0, b"all")


@case(ApiKey.JOIN_GROUP)
async def join_group(client, version, world):
    member_id, generation = await join(client, version, f"join{version}")
    assert member_id
    assert generation == 1
    if version >= 5:
        await join(client, version, f"static{version}", instance="one")


@case(ApiKey.SYNC_GROUP)
async def sync_group(client, version, world):
    await sync(client, version, f"sync{version}", *await join(client, 9, f"sync{version}"))


@case(ApiKey.HEARTBEAT)
async def heartbeat(client, version, world):
    group = f"beat{version}"
    member_id, generation = await join(client, 9, group)
    await sync(client, 5, group, member_id, generation)
    ask = m.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
    assert (await client.call(ask, version)).error_code == 0
    ask.generation_id += 1
    assert (await client.call(ask, version)).error_code == 22  # ILLEGAL_GENERATION


@case(ApiKey.LEAVE_GROUP)
async def leave_group(client, version, world):
    group = f"leave{version}"
    member_id, generation = await join(client, 9, group)
    await sync(client, 5, group, member_id, generation)
    ask = m.LeaveGroupRequest(group_id=group)
    if version < 3:
        ask.member_id = member_id
    else:
        ask.members = [MemberIdentity(member_id=member_id)]
    answer = await client.call(ask, version)
    assert answer.error_code == 0
    assert [one.error_code for one in answer.members] == ([0] if version >= 3 else [])


@case(ApiKey.DESCRIBE_GROUPS)
async def describe_groups(client, version, world):
    group = f"describe{version}"
    member_id, generation = await join(client, 9, group)
    await sync(client, 5, group, member_id, generation)
    answer = await client.call(m.DescribeGroupsRequest(groups=[group]), version)
    [described] = answer.groups
    assert (described.error_code, described.group_id) == (0, group)
    assert (described.group_state, described.protocol_type) == ("Stable", "consumer")
    assert [(one.member_id, one.member_assignment) for one in described.members] == [
        (member_id, b"all")
    ]


@case(ApiKey.LIST_GROUPS)
async def list_groups(client, version, world):
    group = f"list{version}"
    await commit(client, 8, group)
    answer = await client.call(m.ListGroupsRequest(), version)
    assert answer.error_code == 0
    [listed] = [one for one in answer.groups if one.group_id == group]
    assert listed.group_state == ("Empty" if version >= 4 else "")
    assert listed.group_type == ("classic" if version >= 5 else "")


@case(ApiKey.DELETE_GROUPS)
async def delete_groups(client, version, world):
    group = f"delete{version}"
    await commit(client, 8, group)
    answer = await client.call(m.DeleteGroupsRequest(groups_names=[group, "none"]), version)
    assert {one.group_id: one.error_code for one in answer.results} == {group: 0, "none": 69}


@case(ApiKey.FIND_COORDINATOR)
async def find_coordinator(client, version, world):
    ask = m.FindCoordinatorRequest(key_type=0)
    if version >= 4:
        ask.coordinator_keys = ["g1", "g2"]
    else:
        ask.key = "g1"
    answer = await client.call(ask, version)
    found = answer.coordinators if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    for one in found:
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 0, *client.server.address)


async def commit(client, version, group, topic_id=None, offset=2):
    topic = OffsetCommitRequestTopic(
        partitions=[
            OffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_metadata="note"
            )
        ]
    )
    if topic_id is None:
        topic.name = "t"
    else:
        topic.topic_id = topic_id
    answer = await client.call(m.OffsetCommitRequest(group_id=group, topics=[topic]), version)
    assert answer.topics[0].partitions[0].error_code == 0


@case(ApiKey.OFFSET_COMMIT)
async def offset_commit(client, version, world):
    await commit(client, version, f"commit{version}", world.topic_id if version >= 10 else None)


@case(ApiKey.OFFSET_FETCH)
async def offset_fetch(client, version, world):
    group = f"offsets{version}"
    await commit(client, 8, group)
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        answer = await client.call(m.OffsetFetchRequest(group_id=group, topics=topics), version)
        assert answer.error_code == 0
        [topic] = answer.topics
    else:
        topic = OffsetFetchRequestTopics(partition_indexes=[0, 1])
        if version >= 10:
            topic.topic_id = world.topic_id
        else:
            topic.name = "t"
        ask = OffsetFetchRequestGroup(group_id=group, topics=[topic])
        answer = await client.call(m.OffsetFetchRequest(groups=[ask]), version)
        [result] = answer.groups
        assert (result.group_id, result.error_code) == (group, 0)
        [topic] = result.topics
    assert [
        (one.partition_index, one.committed_offset, one.metadata, one.error_code)
        for one in topic.partitions
    ] == [(0, 2, "note", 0), (1, -1, "", 0)]


@case(ApiKey.OFFSET_DELETE)
async def offset_delete(client, version, world):
    group = f"forget{version}"
    await commit(client, 8, group)
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    answer = await client.call(
        m.OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)]
        ),
        version,
    )
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)


@case(ApiKey.API_VERSIONS)
async def api_versions(client, version, world):
    answer = await client.call(m.ApiVersionsRequest("a-client", "1.0"), version)
    assert answer.error_code == 0
    assert {one.api_key for one in answer.api_keys} >= {0, 1, 3, 18}


@case(ApiKey.CREATE_TOPICS)
async def create_topics(client, version, world):
    topic = CreatableTopic(name=f"made{version}", num_partitions=3, replication_factor=1)
    answer = await client.call(m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), version)
    [result] = answer.topics
    assert (result.name, result.error_code) == (f"made{version}", 0)
    if version >= 5:
        assert result.num_partitions == 3
        assert any(one.name == "retention.ms" for one in result.configs)
    assert (result.topic_id != ZERO_UUID) == (version >= 7)


@case(ApiKey.DELETE_TOPICS)
async def delete_topics(client, version, world):
    name = f"doomed{version}"
    await client.create_topic(name)
    ask = m.DeleteTopicsRequest(timeout_ms=5000)
    if version >= 6:
        ask.topics = [DeleteTopicState(name=name)]
    else:
        ask.topic_names = [name]
    answer = await client.call(ask, version)
    assert [(one.name, one.error_code) for one in answer.responses] == [(name, 0)]


@case(ApiKey.CREATE_PARTITIONS)
async def create_partitions(client, version, world):
    name = f"grows{version}"
    await client.create_topic(name)
    ask = m.CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=3, assignments=None)], timeout_ms=5000
    )
    answer = await client.call(ask, version)
    assert [(one.name, one.error_code) for one in answer.results] == [(name, 0)]
    await client.call(m.MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
    assert (await client.produce(name, [b"x"], partition=2)).error_code == 0


@case(ApiKey.DELETE_RECORDS)
async def delete_records(client, version, world):
    partitions = [DeleteRecordsPartition(partition_index=0, offset=0)]
    answer = await client.call(
        m.DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=5000
        ),
        version,
    )
    [result] = answer.topics[0].partitions
    assert (result.error_code, result.low_watermark) == (0, 0)


@case(ApiKey.INIT_PRODUCER_ID)
async def init_producer_id(client, version, world):
    answer = await client.call(m.InitProducerIdRequest(transactional_id=None), version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)


@case(ApiKey.OFFSET_FOR_LEADER_EPOCH)
async def offset_for_leader_epoch(client, version, world):
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    answer = await client.call(
        m.OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])]
        ),
        version,
    )
    [result] = answer.topics[0].partitions
    assert (result.error_code, result.leader_epoch, result.end_offset) == (0, 0, 3)


@case(ApiKey.DESCRIBE_CONFIGS)
async def describe_configs(client, version, world):
    wanted = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=None),
        DescribeConfigsResource(resource_type=BROKER, resource_name="0", configuration_keys=None),
    ]
    answer = await client.call(
        m.DescribeConfigsRequest(resources=wanted, include_synonyms=True), version
    )
    assert [one.error_code for one in answer.results] == [0, 0]
    found = {one.name: one.value for one in answer.results[0].configs}
    assert found["cleanup.policy"] == "delete"


async def segment_bytes(client):
    wanted = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=["segment.bytes"]
    )
    answer = await client.call(m.DescribeConfigsRequest(resources=[wanted]))
    return answer.results[0].configs[0].value


@case(ApiKey.ALTER_CONFIGS)
async def alter_configs(client, version, world):
    value = str((20 + version) << 20)
    configs = [AlterConfigsRequestAlterableConfig(name="segment.bytes", value=value)]
    resource = AlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=configs
    )
    answer = await client.call(m.AlterConfigsRequest(resources=[resource]), version)
    assert [one.error_code for one in answer.responses] == [0]
    assert await segment_bytes(client) == value


@case(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def incremental_alter_configs(client, version, world):
    value = str((30 + version) << 20)
    configs = [
        IncrementalAlterConfigsRequestAlterableConfig(
            name="segment.bytes", config_operation=0, value=value
        )
    ]
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=configs
    )
    answer = await client.call(m.IncrementalAlterConfigsRequest(resources=[resource]), version)
    assert [one.error_code for one in answer.responses] == [0]
    assert await segment_bytes(client) == value


@case(ApiKey.LIST_CONFIG_RESOURCES)
async def list_config_resources(client, version, world):
    ask = m.ListConfigResourcesRequest(resource_types=[TOPIC] if version else [])
    answer = await client.call(ask, version)
    assert answer.error_code == 0
    if version:
        assert "t" in {one.resource_name for one in answer.config_resources}


@case(ApiKey.DESCRIBE_LOG_DIRS)
async def describe_log_dirs(client, version, world):
    ask = m.DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[0])])
    answer = await client.call(ask, version)
    [result] = answer.results
    assert result.error_code == 0
    [topic] = result.topics
    assert topic.partitions[0].partition_size > 60


@case(ApiKey.DESCRIBE_CLUSTER)
async def describe_cluster(client, version, world):
    answer = await client.call(m.DescribeClusterRequest(), version)
    assert answer.error_code == 0
    assert [(one.broker_id, one.port) for one in answer.brokers] == [(0, client.server.address[1])]


@case(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
async def describe_topic_partitions(client, version, world):
    answer = await client.call(
        m.DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), version
    )
    [topic] = answer.topics
    assert (topic.error_code, topic.topic_id, len(topic.partitions)) == (0, world.topic_id, 2)


# --------------------------------------------------------------------------------------------------


@pytest.fixture
async def world(server, requests):
    client = await server.connect()
    topic_id = await client.create_topic("t", 2)
    await client.produce("t", [b"a", b"b", b"c"])
    # As every group's client does first; it makes the topic of the offsets.
    found = await client.call(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert found.coordinators[0].error_code == 0
    return World(topic_id, requests)


async def advertised(client):
    answer = await client.call(m.ApiVersionsRequest("a-client", "1.0"), 4)
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


async def test_every_advertised_version(server, world):
    client = await server.connect()
    driven = 0
    for key, (first, last) in (await advertised(client)).items():
        assert key in CASES, f"{ApiKey(key).name} is advertised and has no case here"
        for version in range(first, last + 1):
            if key == ApiKey.PRODUCE and version < 3:
                continue  # test_produce_0_to_2
            try:
                await CASES[key](client, version, world)
            except Exception as error:
                error.add_note(f"in {ApiKey(key).name} version {version}")
                raise
            driven += 1
    assert driven > 100


async def test_nothing_is_tested_that_is_not_advertised(server):
    client = await server.connect()
    assert set(CASES) == set(await advertised(client))


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_produce_0_to_2(server, version):
    """Advertised for librdkafka's sake (KAFKA-18659), refused by closing, as Kafka 4 does."""
    client = await server.connect()
    assert (await advertised(client))[ApiKey.PRODUCE][0] == 0
    body = struct.pack(">hii", 1, 1000, 0)
    head = struct.pack(">hhih", ApiKey.PRODUCE, version, 5, -1)
    await client.stream.send_all(struct.pack(">i", len(head + body)) + head + body)
    assert await client.is_closed()


async def test_what_is_not_advertised_closes_the_connection(server):
    first = await server.connect()
    ranges = await advertised(first)
    for key in ApiKey:
        known = ranges.get(key)
        versions = [0] if known is None else [known[1] + 1, *([known[0] - 1] if known[0] else [])]
        for version in versions:
            if key == ApiKey.API_VERSIONS:
                continue
            client = await server.connect()
            head = struct.pack(">hhih", key, version, 5, -1) + b"\0" * 40
            await client.stream.send_all(struct.pack(">i", len(head)) + head)
            assert await client.is_closed(), f"{key.name} version {version}"
    assert await advertised(first) == ranges
