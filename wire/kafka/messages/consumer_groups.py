"""Groups whose assignment is the broker's (KIP-848; keys 68, 69)."""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT32_MIN,
    STRING,
    UUID,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@declared
class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@request(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", flexible="0+")
@declared
class ConsumerGroupHeartbeatRequest(Message):
    """The one request of a member. 1: regex, and member ids made by clients (KIP-1082)."""

    group_id: str = field(STRING, "0+")
    member_id: str = field(STRING, "0+")
    member_epoch: int = field(INT32, "0+")
    instance_id: str | None = field(STRING, "0+", null="0+", default=None)
    rack_id: str | None = field(STRING, "0+", null="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, "0+", default=-1)
    subscribed_topic_names: list[str] | None = field(array(STRING), "0+", null="0+", default=None)
    subscribed_topic_regex: str | None = field(STRING, "1+", null="1+", default=None)
    server_assignor: str | None = field(STRING, "0+", null="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = field(
        array(ConsumerGroupHeartbeatRequestTopicPartitions), "0+", null="0+", default=None
    )


@declared
class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class ConsumerGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = field(
        array(ConsumerGroupHeartbeatResponseTopicPartitions), "0+"
    )


@response(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", flexible="0+")
@declared
class ConsumerGroupHeartbeatResponse(Message):
    """`assignment` is null when it did not change."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    member_id: str | None = field(STRING, "0+", null="0+", default=None)
    member_epoch: int = field(INT32, "0+")
    heartbeat_interval_ms: int = field(INT32, "0+")
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = field(
        ConsumerGroupHeartbeatResponseAssignment, "0+", null="0+", default=None
    )


@request(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", flexible="0+")
@declared
class ConsumerGroupDescribeRequest(Message):
    """Describe groups of the new protocol."""

    group_ids: list[str] = field(array(STRING), "0+")
    include_authorized_operations: bool = field(BOOL, "0+")


@declared
class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    topic_name: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = field(
        array(ConsumerGroupDescribeResponseTopicPartitions), "0+"
    )


@declared
class Member(Struct):
    member_id: str = field(STRING, "0+")
    instance_id: str | None = field(STRING, "0+", null="0+", default=None)
    rack_id: str | None = field(STRING, "0+", null="0+", default=None)
    member_epoch: int = field(INT32, "0+")
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    subscribed_topic_names: list[str] = field(array(STRING), "0+")
    subscribed_topic_regex: str | None = field(STRING, "0+", null="0+", default=None)
    assignment: ConsumerGroupDescribeResponseAssignment = field(
        ConsumerGroupDescribeResponseAssignment, "0+"
    )
    target_assignment: ConsumerGroupDescribeResponseAssignment = field(
        ConsumerGroupDescribeResponseAssignment, "0+"
    )
    member_type: int = field(INT8, "1+", default=-1)


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


@response(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", flexible="0+")
@declared
class ConsumerGroupDescribeResponse(Message):
    """1: member type (KIP-1099)."""

    throttle_time_ms: int = field(INT32, "0+")
    groups: list[DescribedGroup] = field(array(DescribedGroup), "0+")
