"""Records of `__consumer_offsets` about share groups (KIP-932).

    10 ShareGroupMemberMetadata              11 ShareGroupMetadata
    12 ShareGroupTargetAssignmentMetadata    13 ShareGroupTargetAssignmentMember
    14 ShareGroupCurrentMemberAssignment     15 ShareGroupStatePartitionMetadata

Keys have version 0 and are not flexible, values have version 0 and are. Names are those of Kafka's
JSON definitions in snake_case; times are in ms, epochs count from 1.
"""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import INT8, INT32, INT64, STRING, UUID, Message, array, field
from wire.kafka.records.stored import stored
from wire.kafka.structs import Struct, declared

_HEARTBEAT = ApiKey.SHARE_GROUP_HEARTBEAT


@stored(_HEARTBEAT, "0")
@declared
class ShareGroupMemberMetadataKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ShareGroupMemberMetadataValue(Message):
    """What a member said of itself."""

    rack_id: str | None = field(STRING, "0+", null="0+")
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    subscribed_topic_names: list[str] = field(array(STRING), "0+")


@stored(_HEARTBEAT, "0")
@declared
class ShareGroupMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ShareGroupMetadataValue(Message):
    """`metadata_hash` is of the topics that the group reads; 0: of none."""

    epoch: int = field(INT32, "0+")
    metadata_hash: int = field(INT64, "0+")


@stored(_HEARTBEAT, "0")
@declared
class ShareGroupTargetAssignmentMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ShareGroupTargetAssignmentMetadataValue(Message):
    """The group epoch that the targets were made for, and when."""

    assignment_epoch: int = field(INT32, "0+")
    assignment_timestamp: int = field(INT64, "0+", tag=0)


@stored(_HEARTBEAT, "0")
@declared
class ShareGroupTargetAssignmentMemberKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class ShareTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ShareGroupTargetAssignmentMemberValue(Message):
    """What a member is to have."""

    topic_partitions: list[ShareTopicPartitions] = field(array(ShareTopicPartitions), "0+")


@stored(_HEARTBEAT, "0")
@declared
class ShareGroupCurrentMemberAssignmentKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ShareGroupCurrentMemberAssignmentValue(Message):
    """What a member has. `state` is always 0, stable: nothing has to be given back first."""

    member_epoch: int = field(INT32, "0+")
    previous_member_epoch: int = field(INT32, "0+")
    state: int = field(INT8, "0+")
    assigned_partitions: list[ShareTopicPartitions] = field(array(ShareTopicPartitions), "0+")


@stored(_HEARTBEAT, "0")
@declared
class ShareGroupStatePartitionMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@declared
class ShareTopicPartitionsInfo(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    topic_name: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class ShareTopicInfo(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    topic_name: str = field(STRING, "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class ShareGroupStatePartitionMetadataValue(Message):
    """Of which partitions the share coordinator keeps a state for the group, is being asked to
    begin one, and to delete it."""

    initializing_topics: list[ShareTopicPartitionsInfo] = field(
        array(ShareTopicPartitionsInfo), "0+"
    )
    initialized_topics: list[ShareTopicPartitionsInfo] = field(
        array(ShareTopicPartitionsInfo), "0+"
    )
    deleting_topics: list[ShareTopicInfo] = field(array(ShareTopicInfo), "0+")
