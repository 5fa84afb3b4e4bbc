"""Records of `__consumer_offsets` about streams groups (KIP-1071).

    17 StreamsGroupMetadata                 19 StreamsGroupMemberMetadata
    20 StreamsGroupTargetAssignmentMetadata 21 StreamsGroupTargetAssignmentMember
    22 StreamsGroupCurrentMemberAssignment  23 StreamsGroupTopology

Keys have version 0 and are not flexible, values have version 0 and are. Names are those of Kafka's
JSON definitions in snake_case; times are in ms, epochs count from 1.
"""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import INT8, INT16, INT32, INT64, STRING, UINT16, Message, array, field
from wire.kafka.records.stored import stored
from wire.kafka.structs import Struct, declared

_HEARTBEAT = ApiKey.STREAMS_GROUP_HEARTBEAT


@declared
class KeyAndValue(Struct):
    key: str = field(STRING, "0+")
    value: str = field(STRING, "0+")


@stored(_HEARTBEAT, "0")
@declared
class StreamsGroupMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupMetadataValue(Message):
    """`metadata_hash` is of the topics of the topology; `validated_topology_epoch` -1: they are not
    as they have to be; `last_assignment_configs`: settings that the assignor was given."""

    epoch: int = field(INT32, "0+")
    metadata_hash: int = field(INT64, "0+")
    validated_topology_epoch: int = field(INT32, "0+", default=-1, tag=0)
    last_assignment_configs: list[KeyAndValue] | None = field(
        array(KeyAndValue), "0+", null="0+", default=None, tag=1
    )


@stored(_HEARTBEAT, "0")
@declared
class StreamsGroupMemberMetadataKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class UserEndpoint(Struct):
    host: str = field(STRING, "0+")
    port: int = field(UINT16, "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupMemberMetadataValue(Message):
    """What a member said of itself."""

    instance_id: str | None = field(STRING, "0+", null="0+")
    rack_id: str | None = field(STRING, "0+", null="0+")
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    rebalance_timeout_ms: int = field(INT32, "0+", default=-1)
    topology_epoch: int = field(INT32, "0+")
    process_id: str = field(STRING, "0+")
    user_endpoint: UserEndpoint | None = field(UserEndpoint, "0+", null="0+", default=None)
    client_tags: list[KeyAndValue] = field(array(KeyAndValue), "0+")


@stored(_HEARTBEAT, "0")
@declared
class StreamsGroupTargetAssignmentMetadataKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupTargetAssignmentMetadataValue(Message):
    """The group epoch that the targets were made for, and when."""

    assignment_epoch: int = field(INT32, "0+")
    assignment_timestamp: int = field(INT64, "0+", tag=0)


@stored(_HEARTBEAT, "0")
@declared
class StreamsGroupTargetAssignmentMemberKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class TargetTaskIds(Struct):
    subtopology_id: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupTargetAssignmentMemberValue(Message):
    """What a member is to have."""

    active_tasks: list[TargetTaskIds] = field(array(TargetTaskIds), "0+")
    standby_tasks: list[TargetTaskIds] = field(array(TargetTaskIds), "0+")
    warmup_tasks: list[TargetTaskIds] = field(array(TargetTaskIds), "0+")


@stored(_HEARTBEAT, "0")
@declared
class StreamsGroupCurrentMemberAssignmentKey(Message):
    """Which member of which group."""

    group_id: str = field(STRING, "0")
    member_id: str = field(STRING, "0")


@declared
class CurrentTaskIds(Struct):
    """`assignment_epochs` are one for each partition, of active tasks only; otherwise None."""

    subtopology_id: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")
    assignment_epochs: list[int] | None = field(array(INT32), "0+", null="0+", default=None, tag=0)


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupCurrentMemberAssignmentValue(Message):
    """What a member has, and what it still has to give back."""

    member_epoch: int = field(INT32, "0+")
    previous_member_epoch: int = field(INT32, "0+")
    state: int = field(INT8, "0+")
    active_tasks: list[CurrentTaskIds] = field(array(CurrentTaskIds), "0+")
    standby_tasks: list[CurrentTaskIds] = field(array(CurrentTaskIds), "0+")
    warmup_tasks: list[CurrentTaskIds] = field(array(CurrentTaskIds), "0+")
    active_tasks_pending_revocation: list[CurrentTaskIds] = field(array(CurrentTaskIds), "0+")
    standby_tasks_pending_revocation: list[CurrentTaskIds] = field(array(CurrentTaskIds), "0+")
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = field(array(CurrentTaskIds), "0+")


@stored(_HEARTBEAT, "0")
@declared
class StreamsGroupTopologyKey(Message):
    """Which group."""

    group_id: str = field(STRING, "0")


@declared
class StoredTopic(Struct):
    """0 partitions: as many as follow from the others; replication factor 0: the default."""

    name: str = field(STRING, "0+")
    partitions: int = field(INT32, "0+")
    replication_factor: int = field(INT16, "0+")
    topic_configs: list[KeyAndValue] = field(array(KeyAndValue), "0+")


@declared
class StoredCopartitionGroup(Struct):
    """Indices into the subtopology's lists of the same names."""

    source_topics: list[int] = field(array(INT16), "0+")
    source_topic_regex: list[int] = field(array(INT16), "0+")
    repartition_source_topics: list[int] = field(array(INT16), "0+")


@declared
class StoredSubtopology(Struct):
    subtopology_id: str = field(STRING, "0+")
    source_topics: list[str] = field(array(STRING), "0+")
    source_topic_regex: list[str] = field(array(STRING), "0+")
    state_changelog_topics: list[StoredTopic] = field(array(StoredTopic), "0+")
    repartition_sink_topics: list[str] = field(array(STRING), "0+")
    repartition_source_topics: list[StoredTopic] = field(array(StoredTopic), "0+")
    copartition_groups: list[StoredCopartitionGroup] = field(array(StoredCopartitionGroup), "0+")


@stored(_HEARTBEAT, "0", flexible="0+")
@declared
class StreamsGroupTopologyValue(Message):
    """The application's subtopologies."""

    epoch: int = field(INT32, "0+")
    subtopologies: list[StoredSubtopology] = field(array(StoredSubtopology), "0+")


StreamsGroupKey = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
