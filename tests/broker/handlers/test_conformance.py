"""Every advertised (key, version) is driven with a sensible request and its answer is checked.

The list is the server's own answer to ApiVersions: an API that is advertised and has no case here
fails `test_every_advertised_version`. A case gets (client, version, world) and asserts; `world` is
a server with topic «t» (2 partitions, three records in the first).
"""

import dataclasses
import struct
import uuid
from base64 import urlsafe_b64encode

import pytest
import trio

from wire.kafka import messages as m
from wire.kafka.api_keys import ApiKey
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages import share_state
from wire.kafka.messages.acls import AclCreation, DeleteAclsFilter
from wire.kafka.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    FeatureUpdateKey,
)
from wire.kafka.messages.configs import (
    AlterClientQuotasRequestEntryData,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    ComponentData,
    DescribeConfigsResource,
    EntityData,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    OpData,
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
from wire.kafka.messages.security import ScramCredentialDeletion, ScramCredentialUpsertion
from wire.kafka.messages.share_groups import AcknowledgementBatch as ShareAcknowledgement
from wire.kafka.messages.share_groups import AcknowledgePartition as ShareAcknowledgePartition
from wire.kafka.messages.share_groups import AcknowledgeTopic as ShareAcknowledgeTopic
from wire.kafka.messages.share_groups import AlterShareGroupOffsetsRequestPartition as ShareOffset
from wire.kafka.messages.share_groups import AlterShareGroupOffsetsRequestTopic as ShareOffsetsTopic
from wire.kafka.messages.share_groups import (
    DeleteShareGroupOffsetsRequestTopic as ShareForgottenTopic,
)
from wire.kafka.messages.share_groups import (
    DescribeShareGroupOffsetsRequestGroup as ShareOffsetsOfGroup,
)
from wire.kafka.messages.share_groups import (
    DescribeShareGroupOffsetsRequestTopic as ShareOffsetsOfTopic,
)
from wire.kafka.messages.share_groups import FetchPartition as ShareFetchPartition
from wire.kafka.messages.share_groups import FetchTopic as ShareFetchTopic
from wire.kafka.messages.streams_groups import Endpoint as StreamsEndpoint
from wire.kafka.messages.streams_groups import (
    StreamsGroupHeartbeatRequestSubtopology as StreamsSubtopology,
)
from wire.kafka.messages.streams_groups import (
    StreamsGroupHeartbeatRequestTopology as StreamsTopology,
)
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsTopic,
    DeleteTopicState,
)
from wire.kafka.messages.transactions import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
)
from wire.kafka.messages.transactions_admin import TopicRequest as ProducersOfTopic

CASES = {}
TOPIC, BROKER, GROUP = 2, 4, 32  # configuration resource types
MEMBER_ID_REQUIRED = 79
SECURITY_DISABLED, TOKENS_NOT_ALLOWED, ILLEGAL_SASL_STATE = 54, 64, 34
UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION, LOG_DIR_NOT_FOUND = 3, 35, 57


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


async def begun(client, transactional_id):
    """A transaction with partition 1 of «t»: (producer id, epoch)."""
    answer = await client.call(m.FindCoordinatorRequest(key=transactional_id, key_type=1), 3)
    assert answer.error_code == 0
    answer = await client.call(
        m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000,
            producer_id=-1, producer_epoch=-1,
        ),
        5,
    )  # fmt: skip
    assert answer.error_code == 0
    producer = (answer.producer_id, answer.producer_epoch)
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[1])]
    answer = await client.call(
        m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=topics,
        ),
        3,
    )
    [topic] = answer.results_by_topic_v3_and_below
    assert [each.partition_error_code for each in topic.results_by_partition] == [0]
    return producer


async def ended(client, transactional_id, producer, version=4):
    return await client.call(
        m.EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer[0],
            producer_epoch=producer[1], committed=True,
        ),
        version,
    )  # fmt: skip


@case(ApiKey.ADD_PARTITIONS_TO_TXN)
async def add_partitions_to_txn(client, version, world):
    name = f"adds-{version}"
    producer_id, epoch = producer = await begun(client, name)
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
    if version < 4:
        answer = await client.call(
            m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name, v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch, v3_and_below_topics=topics,
            ),
            version,
        )  # fmt: skip
        [topic] = answer.results_by_topic_v3_and_below
    else:
        one = AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch,
            verify_only=False, topics=topics,
        )  # fmt: skip
        answer = await client.call(m.AddPartitionsToTxnRequest(transactions=[one]), version)
        [result] = answer.results_by_transaction
        assert (answer.error_code, result.transactional_id) == (0, name)
        [topic] = result.topic_results
    [each] = topic.results_by_partition
    assert (each.partition_index, each.partition_error_code) == (0, 0)
    assert (await ended(client, name, producer)).error_code == 0


@case(ApiKey.ADD_OFFSETS_TO_TXN)
async def add_offsets_to_txn(client, version, world):
    name = f"offsets-{version}"
    producer = await begun(client, name)
    await client.call(m.FindCoordinatorRequest(key="g", key_type=0), 3)
    answer = await client.call(m.AddOffsetsToTxnRequest(name, *producer, "g"), version)
    assert answer.error_code == 0
    assert (await ended(client, name, producer)).error_code == 0


@case(ApiKey.TXN_OFFSET_COMMIT)
async def txn_offset_commit(client, version, world):
    name = f"commits-{version}"
    group = f"of-{name}"
    producer = await begun(client, name)
    await client.call(m.FindCoordinatorRequest(key=group, key_type=0), 3)
    if version < 5:
        added = await client.call(m.AddOffsetsToTxnRequest(name, *producer, group), 3)
        assert added.error_code == 0
    topic = TxnOffsetCommitRequestTopic(
        "t", [TxnOffsetCommitRequestPartition(each, 7, committed_metadata=None) for each in (0, 9)]
    )
    answer = await client.call(
        m.TxnOffsetCommitRequest(name, group, *producer, topics=[topic]), version
    )
    [topic] = answer.topics
    assert {each.partition_index: each.error_code for each in topic.partitions} == {0: 0, 9: 3}
    assert (await ended(client, name, producer)).error_code == 0


@case(ApiKey.END_TXN)
async def end_txn(client, version, world):
    name = f"ends-{version}"
    producer_id, epoch = await begun(client, name)
    answer = await ended(client, name, (producer_id, epoch), version)
    assert answer.error_code == 0
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)


@case(ApiKey.WRITE_TXN_MARKERS)
async def write_txn_markers(client, version, world):
    marker = WritableTxnMarker(
        producer_id=4, producer_epoch=0, transaction_result=False, coordinator_epoch=0,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[1, 9])],
        transaction_version=0,
    )  # fmt: skip
    answer = await client.call(m.WriteTxnMarkersRequest(markers=[marker]), version)
    [topic] = answer.markers[0].topics
    assert {each.partition_index: each.error_code for each in topic.partitions} == {1: 0, 9: 3}


@case(ApiKey.DESCRIBE_PRODUCERS)
async def describe_producers(client, version, world):
    wanted = ProducersOfTopic(name="t", partition_indexes=[0, 9])
    answer = await client.call(m.DescribeProducersRequest(topics=[wanted]), version)
    [topic] = answer.topics
    assert {each.partition_index: each.error_code for each in topic.partitions} == {0: 0, 9: 3}


@case(ApiKey.DESCRIBE_TRANSACTIONS)
async def describe_transactions(client, version, world):
    name = f"described-{version}"
    producer = await begun(client, name)
    answer = await client.call(m.DescribeTransactionsRequest([name, "nobody"]), version)
    one, other = answer.transaction_states
    assert (one.error_code, one.transaction_state, one.producer_id) == (0, "Ongoing", producer[0])
    assert [(topic.topic, topic.partitions) for topic in one.topics] == [("t", [1])]
    assert other.error_code == 105
    assert (await ended(client, name, producer)).error_code == 0


@case(ApiKey.LIST_TRANSACTIONS)
async def list_transactions(client, version, world):
    name = f"listed-{version}"
    producer = await begun(client, name)
    wanted = m.ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[])
    answer = await client.call(wanted, version)
    assert answer.error_code == 0
    found = {each.transactional_id: each.transaction_state for each in answer.transaction_states}
    assert found == {name: "Ongoing"}
    assert (await ended(client, name, producer)).error_code == 0


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


async def consumer_member(client, version, group):
    ask = m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="" if version == 0 else "m",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return await client.call(ask, version)


@case(ApiKey.CONSUMER_GROUP_HEARTBEAT)
async def consumer_group_heartbeat(client, version, world):
    answer = await consumer_member(client, version, f"consumer{version}")
    assert (answer.error_code, bool(answer.member_id)) == (0, True)
    [topic] = answer.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (world.topic_id, [0, 1])


@case(ApiKey.CONSUMER_GROUP_DESCRIBE)
async def consumer_group_describe(client, version, world):
    group = f"described{version}"
    member = await consumer_member(client, 1, group)
    ask = m.ConsumerGroupDescribeRequest(group_ids=[group, "not there"])
    found, missing = (await client.call(ask, version)).groups
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "uniform")
    assert found.members[0].member_epoch == member.member_epoch == found.assignment_epoch
    assert found.members[0].member_type == (1 if version else -1)
    assert missing.error_code == 69  # GROUP_ID_NOT_FOUND


async def streams_member(client, version, group):
    subtopology = StreamsSubtopology("0", source_topics=["t"])
    ask = m.StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        rebalance_timeout_ms=1000,
        topology=StreamsTopology(0, [subtopology]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
        user_endpoint=StreamsEndpoint("here", 80),
    )
    return await client.call(ask, version)


@case(ApiKey.STREAMS_GROUP_HEARTBEAT)
async def streams_group_heartbeat(client, version, world):
    answer = await streams_member(client, version, f"streams{version}")
    assert (answer.error_code, answer.member_epoch, answer.active_tasks) == (0, 1, [])
    assert [each.status_code for each in answer.status] == [5]  # ASSIGNMENT_DELAYED


@case(ApiKey.STREAMS_GROUP_DESCRIBE)
async def streams_group_describe(client, version, world):
    group = f"described-streams{version}"
    member = await streams_member(client, 0, group)
    ask = m.StreamsGroupDescribeRequest(group_ids=[group, "not there"])
    found, missing = (await client.call(ask, version)).groups
    assert (found.error_code, found.group_state, found.group_epoch) == (0, "Assigning", 2)
    assert found.members[0].member_epoch == member.member_epoch == found.assignment_epoch
    assert found.topology.subtopologies[0].source_topics == ["t"]
    assert missing.error_code == 69  # GROUP_ID_NOT_FOUND


async def share_member(client, group, member_id="m"):
    """Of a share group, once it has both partitions of «t»: its last heartbeat's answer."""
    ask = m.ShareGroupHeartbeatRequest(group, member_id, 0, subscribed_topic_names=["t"])
    with trio.fail_after(20):
        answer = await client.call(ask, 1)
        while not (answer.assignment and answer.assignment.topic_partitions):
            assert answer.error_code == 0
            await trio.sleep(0.05)
            ask = m.ShareGroupHeartbeatRequest(group, member_id, answer.member_epoch)
            answer = await client.call(ask, 1)
    return answer


async def empty_share_group(client, group):
    """One that begins at offset 1 of partition 0 of «t»."""
    await share_member(client, group)
    left = await client.call(m.ShareGroupHeartbeatRequest(group, "m", -1), 1)
    assert (left.error_code, left.member_epoch) == (0, -1)
    wanted = ShareOffsetsTopic("t", [ShareOffset(0, 1)])
    answer = await client.call(m.AlterShareGroupOffsetsRequest(group, [wanted]))
    [topic] = answer.responses
    assert (answer.error_code, topic.topic_name) == (0, "t")
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, 0)]


@case(ApiKey.SHARE_GROUP_HEARTBEAT)
async def share_group_heartbeat(client, version, world):
    assert version == 1
    answer = await share_member(client, "share")
    assert answer.error_code == 0
    [topic] = answer.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (world.topic_id, [0, 1])


@case(ApiKey.SHARE_GROUP_DESCRIBE)
async def share_group_describe(client, version, world):
    member = await share_member(client, "described-share")
    ask = m.ShareGroupDescribeRequest(["described-share", "not there"])
    found, missing = (await client.call(ask, version)).groups
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "simple")
    assert found.members[0].member_epoch == member.member_epoch == found.assignment_epoch
    assert missing.error_code == 69  # GROUP_ID_NOT_FOUND


async def share_fetch(client, version, world, group):
    """The offset of the record that a member of a new group acquires: the first in partition 1."""
    await client.call(world.requests.produce((world.topic_id, 1, [b"x"])), 13)
    earliest = IncrementalAlterConfigsRequestAlterableConfig(
        "share.auto.offset.reset", 0, "earliest"
    )
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(GROUP, group, [earliest])
    altered = await client.call(m.IncrementalAlterConfigsRequest([resource]))
    assert altered.responses[0].error_code == 0
    await share_member(client, group)
    ask = m.ShareFetchRequest(
        group, "m", 0, max_wait_ms=10_000, min_bytes=1, max_bytes=1 << 20, max_records=1,
        batch_size=1, topics=[ShareFetchTopic(world.topic_id, [ShareFetchPartition(1)])],
    )  # fmt: skip
    answer = await client.call(ask, version)
    assert answer.error_code == 0
    [data] = answer.responses[0].partitions
    assert (data.partition_index, data.error_code) == (1, 0)
    [acquired] = data.acquired_records
    assert (acquired.first_offset, acquired.last_offset, acquired.delivery_count) == (0, 0, 1)
    assert world.requests.values(data.records)[0] == (0, b"x")
    return acquired.first_offset


@case(ApiKey.SHARE_FETCH)
async def share_fetches(client, version, world):
    await share_fetch(client, version, world, f"fetching{version}")


@case(ApiKey.SHARE_ACKNOWLEDGE)
async def share_acknowledge(client, version, world):
    group = f"acknowledging{version}"
    offset = await share_fetch(client, 1, world, group)
    batch = ShareAcknowledgement(offset, offset, [1])
    topic = ShareAcknowledgeTopic(world.topic_id, [ShareAcknowledgePartition(1, [batch])])
    ask = m.ShareAcknowledgeRequest(group, "m", 1, topics=[topic])
    answer = await client.call(ask, version)
    assert answer.error_code == 0
    [data] = answer.responses[0].partitions
    assert (data.partition_index, data.error_code) == (1, 0)


@case(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
async def describe_share_group_offsets(client, version, world):
    group = f"share-offsets{version}"
    await empty_share_group(client, group)
    asked = ShareOffsetsOfGroup(group, [ShareOffsetsOfTopic("t", [0])])
    [found] = (await client.call(m.DescribeShareGroupOffsetsRequest([asked]), version)).groups
    [topic] = found.topics
    assert (found.error_code, topic.topic_name, topic.topic_id) == (0, "t", world.topic_id)
    [data] = topic.partitions
    assert (data.partition_index, data.error_code, data.start_offset) == (0, 0, 1)


@case(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
async def alter_share_group_offsets(client, version, world):
    assert version == 0
    await empty_share_group(client, "share-altered")


@case(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
async def delete_share_group_offsets(client, version, world):
    await empty_share_group(client, "share-forgets")
    ask = m.DeleteShareGroupOffsetsRequest("share-forgets", [ShareForgottenTopic("t")])
    answer = await client.call(ask, version)
    [topic] = answer.responses
    assert (answer.error_code, topic.topic_name, topic.error_code) == (0, "t", 0)


async def of_one(client, body, version):
    """What is said of the one share partition."""
    [result] = (await client.call(body, version)).results
    [partition] = result.partitions
    assert (partition.partition, partition.error_code) == (0, 0)
    return partition


async def initialized(client, world, group):
    key = urlsafe_b64encode(world.topic_id.bytes).decode().rstrip("=")
    ask = m.FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{group}:{key}:0"])
    assert (await client.call(ask, 6)).coordinators[0].error_code == 0
    data = share_state.InitializeShareGroupStateRequestPartitionData(0, 1, 5)
    topic = share_state.InitializeStateData(world.topic_id, [data])
    await of_one(client, m.InitializeShareGroupStateRequest(group, [topic]), 0)


@case(ApiKey.INITIALIZE_SHARE_GROUP_STATE)
async def initialize_share_group_state(client, version, world):
    assert version == 0
    await initialized(client, world, "states-begun")


@case(ApiKey.READ_SHARE_GROUP_STATE)
async def read_share_group_state(client, version, world):
    await initialized(client, world, "states-read")
    data = share_state.ReadShareGroupStateRequestPartitionData(0, -1)
    topic = share_state.ReadStateData(world.topic_id, [data])
    found = await of_one(client, m.ReadShareGroupStateRequest("states-read", [topic]), version)
    assert (found.state_epoch, found.start_offset, found.state_batches) == (1, 5, [])


@case(ApiKey.WRITE_SHARE_GROUP_STATE)
async def write_share_group_state(client, version, world):
    group = f"states-written{version}"
    await initialized(client, world, group)
    batches = [share_state.StateBatch(7, 8, 2, 1)]
    data = share_state.WriteShareGroupStateRequestPartitionData(0, 1, -1, 6, 2, batches)
    topic = share_state.WriteStateData(world.topic_id, [data])
    await of_one(client, m.WriteShareGroupStateRequest(group, [topic]), version)
    data = share_state.ReadShareGroupStateRequestPartitionData(0, -1)
    topic = share_state.ReadStateData(world.topic_id, [data])
    found = await of_one(client, m.ReadShareGroupStateRequest(group, [topic]), 0)
    assert (found.start_offset, found.state_batches) == (6, batches)


@case(ApiKey.DELETE_SHARE_GROUP_STATE)
async def delete_share_group_state(client, version, world):
    await initialized(client, world, "states-deleted")
    data = share_state.DeleteShareGroupStateRequestPartitionData(0)
    topic = share_state.DeleteStateData(world.topic_id, [data])
    await of_one(client, m.DeleteShareGroupStateRequest("states-deleted", [topic]), version)


@case(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)
async def read_share_group_state_summary(client, version, world):
    group = f"states-summed{version}"
    await initialized(client, world, group)
    data = share_state.ReadShareGroupStateSummaryRequestPartitionData(0, -1)
    topic = share_state.ReadStateSummaryData(world.topic_id, [data])
    found = await of_one(client, m.ReadShareGroupStateSummaryRequest(group, [topic]), version)
    assert (found.state_epoch, found.start_offset) == (1, 5)


async def alter_quota(client, version, value):
    entity = [EntityData("user", "somebody"), EntityData("client-id", None)]
    ops = [OpData("producer_byte_rate", value or 0.0, value is None)]
    entry = AlterClientQuotasRequestEntryData(entity, ops)
    answer = await client.call(m.AlterClientQuotasRequest([entry]), version)
    [result] = answer.entries
    assert (result.error_code, result.entity) == (0, entity)


async def user_quotas(client, version):
    ask = m.DescribeClientQuotasRequest([ComponentData("user", 0, "somebody")])
    answer = await client.call(ask, version)
    assert answer.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {one.key: one.value for one in each.values},
        )
        for each in answer.entries
    ]


@case(ApiKey.DESCRIBE_CLIENT_QUOTAS)
async def describe_client_quotas(client, version, world):
    await alter_quota(client, 1, 1e6)
    [(entity, values)] = await user_quotas(client, version)
    assert entity == {"user": "somebody", "client-id": None}
    assert values == {"producer_byte_rate": 1e6}


@case(ApiKey.ALTER_CLIENT_QUOTAS)
async def alter_client_quotas(client, version, world):
    await alter_quota(client, version, 2e6)
    [(_, values)] = await user_quotas(client, 1)
    assert values == {"producer_byte_rate": 2e6}
    await alter_quota(client, version, None)
    assert await user_quotas(client, 1) == []


@case(ApiKey.DESCRIBE_ACLS)
async def describe_acls(client, version, world):
    answer = await client.call(m.DescribeAclsRequest(1, None, 1, None, None, 1, 1), version)
    assert answer.error_code == SECURITY_DISABLED


@case(ApiKey.CREATE_ACLS)
async def create_acls(client, version, world):
    acl = AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    answer = await client.call(m.CreateAclsRequest([acl]), version)
    assert [one.error_code for one in answer.results] == [SECURITY_DISABLED]


@case(ApiKey.DELETE_ACLS)
async def delete_acls(client, version, world):
    wanted = DeleteAclsFilter(2, "t", 3, None, None, 1, 1)
    answer = await client.call(m.DeleteAclsRequest([wanted]), version)
    assert [one.error_code for one in answer.filter_results] == [SECURITY_DISABLED]


@case(ApiKey.CREATE_DELEGATION_TOKEN)
async def create_delegation_token(client, version, world):
    answer = await client.call(m.CreateDelegationTokenRequest(max_lifetime_ms=-1), version)
    assert (answer.error_code, answer.principal_name) == (TOKENS_NOT_ALLOWED, "ANONYMOUS")


@case(ApiKey.RENEW_DELEGATION_TOKEN)
async def renew_delegation_token(client, version, world):
    answer = await client.call(m.RenewDelegationTokenRequest(b"x", 1), version)
    assert (answer.error_code, answer.expiry_timestamp_ms) == (TOKENS_NOT_ALLOWED, -1)


@case(ApiKey.EXPIRE_DELEGATION_TOKEN)
async def expire_delegation_token(client, version, world):
    answer = await client.call(m.ExpireDelegationTokenRequest(b"x", 1), version)
    assert (answer.error_code, answer.expiry_timestamp_ms) == (TOKENS_NOT_ALLOWED, -1)


@case(ApiKey.DESCRIBE_DELEGATION_TOKEN)
async def describe_delegation_token(client, version, world):
    answer = await client.call(m.DescribeDelegationTokenRequest(None), version)
    assert (answer.error_code, answer.tokens) == (TOKENS_NOT_ALLOWED, [])


@case(ApiKey.SASL_HANDSHAKE)
async def sasl_handshake(client, version, world):
    answer = await client.call(m.SaslHandshakeRequest("PLAIN"), version)
    assert (answer.error_code, answer.mechanisms) == (ILLEGAL_SASL_STATE, [])


@case(ApiKey.SASL_AUTHENTICATE)
async def sasl_authenticate(client, version, world):
    answer = await client.call(m.SaslAuthenticateRequest(b"x"), version)
    assert (answer.error_code, answer.auth_bytes) == (ILLEGAL_SASL_STATE, b"")


@case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
async def describe_user_scram_credentials(client, version, world):
    answer = await client.call(m.DescribeUserScramCredentialsRequest(None), version)
    assert (answer.error_code, answer.results) == (0, [])


@case(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
async def alter_user_scram_credentials(client, version, world):
    made = ScramCredentialUpsertion("conformance", 1, 4096, b"salt", bytes(32))
    gone = ScramCredentialDeletion("conformance", 1)
    for body in (
        m.AlterUserScramCredentialsRequest(upsertions=[made]),
        m.AlterUserScramCredentialsRequest(deletions=[gone]),
    ):
        answer = await client.call(body, version)
        assert [(one.user, one.error_code) for one in answer.results] == [("conformance", 0)]


@case(ApiKey.DESCRIBE_QUORUM)
async def describe_quorum(client, version, world):
    parts = [DescribeQuorumRequestPartitionData(0)]
    wanted = DescribeQuorumRequestTopicData("__cluster_metadata", parts)
    answer = await client.call(m.DescribeQuorumRequest([wanted]), version)
    assert answer.error_code == UNSUPPORTED_VERSION


@case(ApiKey.ADD_RAFT_VOTER)
async def add_raft_voter(client, version, world):
    body = m.AddRaftVoterRequest(None, 1000, 7, uuid.uuid4(), [])
    assert (await client.call(body, version)).error_code == UNSUPPORTED_VERSION


@case(ApiKey.REMOVE_RAFT_VOTER)
async def remove_raft_voter(client, version, world):
    body = m.RemoveRaftVoterRequest(None, 7, uuid.uuid4())
    assert (await client.call(body, version)).error_code == UNSUPPORTED_VERSION


@case(ApiKey.UPDATE_FEATURES)
async def update_features(client, version, world):
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
    answer = await client.call(m.UpdateFeaturesRequest(feature_updates=[update]), version)
    assert answer.error_code == 0
    assert len(answer.results) == (version < 2)


@case(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS)
async def get_telemetry_subscriptions(client, version, world):
    answer = await client.call(m.GetTelemetrySubscriptionsRequest(ZERO_UUID), version)
    assert (answer.error_code, answer.requested_metrics) == (0, [])
    assert answer.client_instance_id != ZERO_UUID


@case(ApiKey.PUSH_TELEMETRY)
async def push_telemetry(client, version, world):
    asked = await client.call(m.GetTelemetrySubscriptionsRequest(ZERO_UUID), version)
    body = m.PushTelemetryRequest(asked.client_instance_id, asked.subscription_id)
    assert (await client.call(body, version)).error_code == 0


@case(ApiKey.ALTER_REPLICA_LOG_DIRS)
async def alter_replica_log_dirs(client, version, world):
    described = await client.call(m.DescribeLogDirsRequest(topics=None))
    own = described.results[0].log_dir
    dirs = [
        AlterReplicaLogDir(path, [AlterReplicaLogDirTopic("t", numbers)])
        for path, numbers in ((own, [0, 9]), ("/nowhere", [1]))
    ]
    answer = await client.call(m.AlterReplicaLogDirsRequest(dirs), version)
    [topic] = answer.results
    found = {part.partition_index: part.error_code for part in topic.partitions}
    assert found == {0: 0, 9: UNKNOWN_TOPIC_OR_PARTITION, 1: LOG_DIR_NOT_FOUND}


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
