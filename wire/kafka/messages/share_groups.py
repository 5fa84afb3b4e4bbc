"""Share groups (KIP-932; keys 76-79, 90-92).

Declared from 1: version 0 of the first four was early access in Kafka 4.0 and differs.
"""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT32_MAX,
    INT32_MIN,
    INT64,
    RECORDS,
    STRING,
    UUID,
    Message,
    RecordsValue,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@request(ApiKey.SHARE_GROUP_HEARTBEAT, "1", flexible="0+")
@declared
class ShareGroupHeartbeatRequest(Message):
    """The one membership request of a share group member."""

    group_id: str = field(STRING, "0+")
    member_id: str = field(STRING, "0+")
    member_epoch: int = field(INT32, "0+")
    rack_id: str | None = field(STRING, "0+", null="0+", default=None)
    subscribed_topic_names: list[str] | None = field(array(STRING), "0+", null="0+", default=None)


@declared
class ShareGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class ShareGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ShareGroupHeartbeatResponseTopicPartitions] = field(
        array(ShareGroupHeartbeatResponseTopicPartitions), "0+"
    )


@response(ApiKey.SHARE_GROUP_HEARTBEAT, "1", flexible="0+")
@declared
class ShareGroupHeartbeatResponse(Message):
    """`assignment` is null when it did not change."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    member_id: str | None = field(STRING, "0+", null="0+", default=None)
    member_epoch: int = field(INT32, "0+")
    heartbeat_interval_ms: int = field(INT32, "0+")
    assignment: ShareGroupHeartbeatResponseAssignment | None = field(
        ShareGroupHeartbeatResponseAssignment, "0+", null="0+", default=None
    )


@request(ApiKey.SHARE_GROUP_DESCRIBE, "1", flexible="0+")
@declared
class ShareGroupDescribeRequest(Message):
    """Describe share groups."""

    group_ids: list[str] = field(array(STRING), "0+")
    include_authorized_operations: bool = field(BOOL, "0+")


@declared
class ShareGroupDescribeResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    topic_name: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class ShareGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions] = field(
        array(ShareGroupDescribeResponseTopicPartitions), "0+"
    )


@declared
class Member(Struct):
    member_id: str = field(STRING, "0+")
    rack_id: str | None = field(STRING, "0+", null="0+", default=None)
    member_epoch: int = field(INT32, "0+")
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    subscribed_topic_names: list[str] = field(array(STRING), "0+")
    assignment: ShareGroupDescribeResponseAssignment = field(
        ShareGroupDescribeResponseAssignment, "0+"
    )


@declared
class DescribedGroup(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    group_id: str = field(STRING, "0+")
    group_state: str = field(STRING, "0+")
    group_epoch: int = field(INT32, "0+")
    assignment_epoch: int = field(INT32, "0+")
    assignor_name: str = field(STRING, "0+")
    members: list[Member] = field(array(Member), "0+")
    authorized_operations: int = field(INT32, "0+", default=INT32_MIN)


@response(ApiKey.SHARE_GROUP_DESCRIBE, "1", flexible="0+")
@declared
class ShareGroupDescribeResponse(Message):
    """A description per group."""

    throttle_time_ms: int = field(INT32, "0+")
    groups: list[DescribedGroup] = field(array(DescribedGroup), "0+")


@declared
class AcknowledgementBatch(Struct):
    first_offset: int = field(INT64, "0+")
    last_offset: int = field(INT64, "0+")
    acknowledge_types: list[int] = field(array(INT8), "0+")


@declared
class FetchPartition(Struct):
    partition_index: int = field(INT32, "0+")
    acknowledgement_batches: list[AcknowledgementBatch] = field(array(AcknowledgementBatch), "0+")


@declared
class FetchTopic(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[FetchPartition] = field(array(FetchPartition), "0+")


@declared
class ForgottenTopic(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@request(ApiKey.SHARE_FETCH, "1-2", flexible="0+")
@declared
class ShareFetchRequest(Message):
    """Acquire records, acknowledge others. 2: acquire mode and renewal (KIP-1206, KIP-1222)."""

    group_id: str | None = field(STRING, "0+", null="0+", default=None)
    member_id: str | None = field(STRING, "0+", null="0+")
    share_session_epoch: int = field(INT32, "0+")
    max_wait_ms: int = field(INT32, "0+")
    min_bytes: int = field(INT32, "0+")
    max_bytes: int = field(INT32, "0+", default=INT32_MAX)
    max_records: int = field(INT32, "1+")
    batch_size: int = field(INT32, "1+")
    share_acquire_mode: int = field(INT8, "2+")
    is_renew_ack: bool = field(BOOL, "2+")
    topics: list[FetchTopic] = field(array(FetchTopic), "0+")
    forgotten_topics_data: list[ForgottenTopic] = field(array(ForgottenTopic), "0+")


@declared
class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")


@declared
class AcquiredRecords(Struct):
    first_offset: int = field(INT64, "0+")
    last_offset: int = field(INT64, "0+")
    delivery_count: int = field(INT16, "0+")


@declared
class ShareFetchResponsePartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    acknowledge_error_code: int = field(INT16, "0+")
    acknowledge_error_message: str | None = field(STRING, "0+", null="0+", default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, "0+")
    records: RecordsValue = field(RECORDS, "0+")
    acquired_records: list[AcquiredRecords] = field(array(AcquiredRecords), "0+")


@declared
class ShareFetchableTopicResponse(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[ShareFetchResponsePartitionData] = field(
        array(ShareFetchResponsePartitionData), "0+"
    )


@declared
class NodeEndpoint(Struct):
    node_id: int = field(INT32, "0+")
    host: str = field(STRING, "0+")
    port: int = field(INT32, "0+")
    rack: str | None = field(STRING, "0+", null="0+", default=None)


@response(ApiKey.SHARE_FETCH, "1-2", flexible="0+")
@declared
class ShareFetchResponse(Message):
    """The batches and which of their offsets were acquired."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    acquisition_lock_timeout_ms: int = field(INT32, "1+")
    responses: list[ShareFetchableTopicResponse] = field(array(ShareFetchableTopicResponse), "0+")
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), "0+")


@declared
class AcknowledgePartition(Struct):
    partition_index: int = field(INT32, "0+")
    acknowledgement_batches: list[AcknowledgementBatch] = field(array(AcknowledgementBatch), "0+")


@declared
class AcknowledgeTopic(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[AcknowledgePartition] = field(array(AcknowledgePartition), "0+")


@request(ApiKey.SHARE_ACKNOWLEDGE, "1-2", flexible="0+")
@declared
class ShareAcknowledgeRequest(Message):
    """Acknowledge acquired records. 2: renewal (KIP-1222)."""

    group_id: str | None = field(STRING, "0+", null="0+", default=None)
    member_id: str | None = field(STRING, "0+", null="0+")
    share_session_epoch: int = field(INT32, "0+")
    is_renew_ack: bool = field(BOOL, "2+")
    topics: list[AcknowledgeTopic] = field(array(AcknowledgeTopic), "0+")


@declared
class ShareAcknowledgeResponsePartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, "0+")


@declared
class ShareAcknowledgeTopicResponse(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[ShareAcknowledgeResponsePartitionData] = field(
        array(ShareAcknowledgeResponsePartitionData), "0+"
    )


@response(ApiKey.SHARE_ACKNOWLEDGE, "1-2", flexible="0+")
@declared
class ShareAcknowledgeResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    acquisition_lock_timeout_ms: int = field(INT32, "2+")
    responses: list[ShareAcknowledgeTopicResponse] = field(
        array(ShareAcknowledgeTopicResponse), "0+"
    )
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), "0+")


@declared
class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = field(STRING, "0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(
        array(DescribeShareGroupOffsetsRequestTopic), "0+", null="0+"
    )


@request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "0-1", flexible="0+")
@declared
class DescribeShareGroupOffsetsRequest(Message):
    """Start offsets of share groups; null topics means all."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(
        array(DescribeShareGroupOffsetsRequestGroup), "0+"
    )


@declared
class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")
    leader_epoch: int = field(INT32, "0+")
    lag: int = field(INT64, "1+", default=-1)
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@declared
class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING, "0+")
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(
        array(DescribeShareGroupOffsetsResponsePartition), "0+"
    )


@declared
class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = field(STRING, "0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(
        array(DescribeShareGroupOffsetsResponseTopic), "0+"
    )
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@response(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "0-1", flexible="0+")
@declared
class DescribeShareGroupOffsetsResponse(Message):
    """1: lag (KIP-1226)."""

    throttle_time_ms: int = field(INT32, "0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(
        array(DescribeShareGroupOffsetsResponseGroup), "0+"
    )


@declared
class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")


@declared
class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING, "0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(
        array(AlterShareGroupOffsetsRequestPartition), "0+"
    )


@request(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "0", flexible="0+")
@declared
class AlterShareGroupOffsetsRequest(Message):
    """Set start offsets of an empty share group."""

    group_id: str = field(STRING, "0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(
        array(AlterShareGroupOffsetsRequestTopic), "0+"
    )


@declared
class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@declared
class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING, "0+")
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(
        array(AlterShareGroupOffsetsResponsePartition), "0+"
    )


@response(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "0", flexible="0+")
@declared
class AlterShareGroupOffsetsResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(
        array(AlterShareGroupOffsetsResponseTopic), "0+"
    )


@declared
class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING, "0+")


@request(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "0", flexible="0+")
@declared
class DeleteShareGroupOffsetsRequest(Message):
    """Forget topics of an empty share group."""

    group_id: str = field(STRING, "0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(
        array(DeleteShareGroupOffsetsRequestTopic), "0+"
    )


@declared
class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING, "0+")
    topic_id: uuid.UUID = field(UUID, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@response(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "0", flexible="0+")
@declared
class DeleteShareGroupOffsetsResponse(Message):
    """A result per topic."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(
        array(DeleteShareGroupOffsetsResponseTopic), "0+"
    )
