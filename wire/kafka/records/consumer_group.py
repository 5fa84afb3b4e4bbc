"""Records of `__consumer_offsets` about groups of the consumer protocol (KIP-848), and the bytes
that consumers of the classic protocol put into its opaque fields.

    3 ConsumerGroupMetadata               5 ConsumerGroupMemberMetadata
    6 ConsumerGroupTargetAssignmentMetadata     7 ConsumerGroupTargetAssignmentMember
    8 ConsumerGroupCurrentMemberAssignment     16 ConsumerGroupRegularExpression

Keys have version 0 and are not flexible, values have version 0 and are. Names are those of Kafka's
JSON definitions in snake_case; times are in ms, epochs count from 1.
"""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import BYTES, INT8, INT32, INT64, STRING, UUID, Message, array, field
from wire.kafka.records.stored import stored
from wire.kafka.structs import Struct, declared

_HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT


@stored(_HEARTBEAT, "0")
@declared
class ConsumerGroupMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ConsumerGroupMetadataValue(Message):
    """`metadata_hash` is of the topics that the group reads; 0: of none."""

    epoch: int = field(INT32, "0+")
    metadata_hash: int = field(INT64, "0+", tag=0)


@stored(_HEARTBEAT, "0")
@declared
class ConsumerGroupMemberMetadataKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class ClassicProtocol(Struct):
    name: str = field(STRING, "0+")
    metadata: bytes = field(BYTES, "0+")


@declared
class ClassicMemberMetadata(Struct):
    """Of a member that still speaks the classic protocol."""

    session_timeout_ms: int = field(INT32, "0+")
    supported_protocols: list[ClassicProtocol] = field(array(ClassicProtocol), "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ConsumerGroupMemberMetadataValue(Message):
    """What a member said of itself."""

    instance_id: str | None = field(STRING, "0+", null="0+")
    rack_id: str | None = field(STRING, "0+", null="0+")
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    subscribed_topic_names: list[str] = field(array(STRING), "0+")
    subscribed_topic_regex: str | None = field(STRING, "0+", null="0+")
    rebalance_timeout_ms: int = field(INT32, "0+", default=-1)
    server_assignor: str | None = field(STRING, "0+", null="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        ClassicMemberMetadata, "0+", null="0+", default=None, tag=0
    )


@stored(_HEARTBEAT, "0")
@declared
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The group epoch that the targets were made for, and when."""

    assignment_epoch: int = field(INT32, "0+")
    assignment_timestamp: int = field(INT64, "0+", tag=0)


@stored(_HEARTBEAT, "0")
@declared
class ConsumerGroupTargetAssignmentMemberKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class TargetTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """What a member is to have."""

    topic_partitions: list[TargetTopicPartitions] = field(array(TargetTopicPartitions), "0+")


@stored(_HEARTBEAT, "0")
@declared
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class CurrentTopicPartitions(Struct):
    """`assignment_epochs` (KIP-1251) are one for each partition; None before that was known."""

    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")
    assignment_epochs: list[int] | None = field(array(INT32), "0+", null="0+", default=None, tag=0)


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """What a member has, and what it still has to give back."""

    member_epoch: int = field(INT32, "0+")
    previous_member_epoch: int = field(INT32, "0+")
    state: int = field(INT8, "0+")
    assigned_partitions: list[CurrentTopicPartitions] = field(array(CurrentTopicPartitions), "0+")
    partitions_pending_revocation: list[CurrentTopicPartitions] = field(
        array(CurrentTopicPartitions), "0+"
    )


@stored(_HEARTBEAT, "0")
@declared
class ConsumerGroupRegularExpressionKey(Message):
    """Which pattern of which group."""

    group_id: str = field(STRING, "0")
    regular_expression: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ConsumerGroupRegularExpressionValue(Message):
    """Which topics it stands for, by the cluster's metadata of that version and time."""

    topics: list[str] = field(array(STRING), "0+")
    version: int = field(INT64, "0+")
    timestamp: int = field(INT64, "0+")


@declared
class ConsumerProtocolTopicPartition(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@stored(ApiKey.JOIN_GROUP, "0-3")
@declared
class ConsumerProtocolSubscription(Message):
    """What a classic consumer sends as a protocol's metadata."""

    topics: list[str] = field(array(STRING), "0+")
    user_data: bytes | None = field(BYTES, "0+", null="0+", default=None)
    owned_partitions: list[ConsumerProtocolTopicPartition] = field(
        array(ConsumerProtocolTopicPartition), "1+"
    )
    generation_id: int = field(INT32, "2+", default=-1)
    rack_id: str | None = field(STRING, "3+", null="3+", default=None)


@stored(ApiKey.SYNC_GROUP, "0-3")
@declared
class ConsumerProtocolAssignment(Message):
    """What it is given by SyncGroup."""

    assigned_partitions: list[ConsumerProtocolTopicPartition] = field(
        array(ConsumerProtocolTopicPartition), "0+"
    )
    user_data: bytes | None = field(BYTES, "0+", null="0+", default=None)
