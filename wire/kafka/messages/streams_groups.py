"""Streams groups (KIP-1071; keys 88, 89)."""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT32_MIN,
    INT64,
    STRING,
    UINT16,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@declared
class KeyValue(Struct):
    key: str = field(STRING, "0+")
    value: str = field(STRING, "0+")


@declared
class TopicInfo(Struct):
    name: str = field(STRING, "0+")
    partitions: int = field(INT32, "0+")
    replication_factor: int = field(INT16, "0+")
    topic_configs: list[KeyValue] = field(array(KeyValue), "0+")


@declared
class CopartitionGroup(Struct):
    source_topics: list[int] = field(array(INT16), "0+")
    source_topic_regex: list[int] = field(array(INT16), "0+")
    repartition_source_topics: list[int] = field(array(INT16), "0+")


@declared
class StreamsGroupHeartbeatRequestSubtopology(Struct):
    subtopology_id: str = field(STRING, "0+")
    source_topics: list[str] = field(array(STRING), "0+")
    source_topic_regex: list[str] = field(array(STRING), "0+")
    state_changelog_topics: list[TopicInfo] = field(array(TopicInfo), "0+")
    repartition_sink_topics: list[str] = field(array(STRING), "0+")
    repartition_source_topics: list[TopicInfo] = field(array(TopicInfo), "0+")
    copartition_groups: list[CopartitionGroup] = field(array(CopartitionGroup), "0+")


@declared
class StreamsGroupHeartbeatRequestTopology(Struct):
    epoch: int = field(INT32, "0+")
    subtopologies: list[StreamsGroupHeartbeatRequestSubtopology] = field(
        array(StreamsGroupHeartbeatRequestSubtopology), "0+"
    )


@declared
class TaskIds(Struct):
    subtopology_id: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class Endpoint(Struct):
    host: str = field(STRING, "0+")
    port: int = field(UINT16, "0+")


@declared
class TaskOffset(Struct):
    subtopology_id: str = field(STRING, "0+")
    partition: int = field(INT32, "0+")
    offset: int = field(INT64, "0+")


@request(ApiKey.STREAMS_GROUP_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupHeartbeatRequest(Message):
    """The one request of a Streams member; the topology on joining."""

    group_id: str = field(STRING, "0+")
    member_id: str = field(STRING, "0+")
    member_epoch: int = field(INT32, "0+")
    endpoint_information_epoch: int = field(INT32, "0+")
    instance_id: str | None = field(STRING, "0+", null="0+", default=None)
    rack_id: str | None = field(STRING, "0+", null="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, "0+", default=-1)
    topology: StreamsGroupHeartbeatRequestTopology | None = field(
        StreamsGroupHeartbeatRequestTopology, "0+", null="0+", default=None
    )
    active_tasks: list[TaskIds] | None = field(array(TaskIds), "0+", null="0+", default=None)
    standby_tasks: list[TaskIds] | None = field(array(TaskIds), "0+", null="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field(array(TaskIds), "0+", null="0+", default=None)
    process_id: str | None = field(STRING, "0+", null="0+", default=None)
    user_endpoint: Endpoint | None = field(Endpoint, "0+", null="0+", default=None)
    client_tags: list[KeyValue] | None = field(array(KeyValue), "0+", null="0+", default=None)
    task_offsets: list[TaskOffset] | None = field(array(TaskOffset), "0+", null="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = field(
        array(TaskOffset), "0+", null="0+", default=None
    )
    shutdown_application: bool = field(BOOL, "0+")


@declared
class Status(Struct):
    status_code: int = field(INT8, "0+")
    status_detail: str = field(STRING, "0+")


@declared
class TopicPartition(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = field(Endpoint, "0+")
    active_partitions: list[TopicPartition] = field(array(TopicPartition), "0+")
    standby_partitions: list[TopicPartition] = field(array(TopicPartition), "0+")


@response(ApiKey.STREAMS_GROUP_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupHeartbeatResponse(Message):
    """Null tasks mean that they did not change."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    member_id: str = field(STRING, "0+")
    member_epoch: int = field(INT32, "0+")
    heartbeat_interval_ms: int = field(INT32, "0+")
    acceptable_recovery_lag: int = field(INT32, "0+")
    task_offset_interval_ms: int = field(INT32, "0+")
    status: list[Status] | None = field(array(Status), "0+", null="0+")
    active_tasks: list[TaskIds] | None = field(array(TaskIds), "0+", null="0+", default=None)
    standby_tasks: list[TaskIds] | None = field(array(TaskIds), "0+", null="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field(array(TaskIds), "0+", null="0+", default=None)
    endpoint_information_epoch: int = field(INT32, "0+")
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(
        array(EndpointToPartitions), "0+", null="0+", default=None
    )


@request(ApiKey.STREAMS_GROUP_DESCRIBE, "0", flexible="0+")
@declared
class StreamsGroupDescribeRequest(Message):
    """Describe Streams groups."""

    group_ids: list[str] = field(array(STRING), "0+")
    include_authorized_operations: bool = field(BOOL, "0+")


@declared
class StreamsGroupDescribeResponseSubtopology(Struct):
    subtopology_id: str = field(STRING, "0+")
    source_topics: list[str] = field(array(STRING), "0+")
    repartition_sink_topics: list[str] = field(array(STRING), "0+")
    state_changelog_topics: list[TopicInfo] = field(array(TopicInfo), "0+")
    repartition_source_topics: list[TopicInfo] = field(array(TopicInfo), "0+")


@declared
class StreamsGroupDescribeResponseTopology(Struct):
    epoch: int = field(INT32, "0+")
    subtopologies: list[StreamsGroupDescribeResponseSubtopology] | None = field(
        array(StreamsGroupDescribeResponseSubtopology), "0+", null="0+", default=None
    )


@declared
class Assignment(Struct):
    active_tasks: list[TaskIds] = field(array(TaskIds), "0+")
    standby_tasks: list[TaskIds] = field(array(TaskIds), "0+")
    warmup_tasks: list[TaskIds] = field(array(TaskIds), "0+")


@declared
class Member(Struct):
    member_id: str = field(STRING, "0+")
    member_epoch: int = field(INT32, "0+")
    instance_id: str | None = field(STRING, "0+", null="0+", default=None)
    rack_id: str | None = field(STRING, "0+", null="0+", default=None)
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    topology_epoch: int = field(INT32, "0+")
    process_id: str = field(STRING, "0+")
    user_endpoint: Endpoint | None = field(Endpoint, "0+", null="0+", default=None)
    client_tags: list[KeyValue] = field(array(KeyValue), "0+")
    task_offsets: list[TaskOffset] = field(array(TaskOffset), "0+")
    task_end_offsets: list[TaskOffset] = field(array(TaskOffset), "0+")
    assignment: Assignment = field(Assignment, "0+")
    target_assignment: Assignment = field(Assignment, "0+")
    is_classic: bool = field(BOOL, "0+")


@declared
class DescribedGroup(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    group_id: str = field(STRING, "0+")
    group_state: str = field(STRING, "0+")
    group_epoch: int = field(INT32, "0+")
    assignment_epoch: int = field(INT32, "0+")
    topology: StreamsGroupDescribeResponseTopology | None = field(
        StreamsGroupDescribeResponseTopology, "0+", null="0+", default=None
    )
    members: list[Member] = field(array(Member), "0+")
    authorized_operations: int = field(INT32, "0+", default=INT32_MIN)


@response(ApiKey.STREAMS_GROUP_DESCRIBE, "0", flexible="0+")
@declared
class StreamsGroupDescribeResponse(Message):
    """Topology, members and their tasks."""

    throttle_time_ms: int = field(INT32, "0+")
    groups: list[DescribedGroup] = field(array(DescribedGroup), "0+")
