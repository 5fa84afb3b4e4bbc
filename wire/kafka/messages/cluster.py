"""Replicas, log directories, features and voters (keys 34, 35, 43, 45, 46, 55, 57, 64, 80, 81)."""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@declared
class AlterReplicaLogDirTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class AlterReplicaLogDir(Struct):
    path: str = field(STRING, "0+")
    topics: list[AlterReplicaLogDirTopic] = field(array(AlterReplicaLogDirTopic), "0+")


@request(ApiKey.ALTER_REPLICA_LOG_DIRS, "0-2", flexible="2+")
@declared
class AlterReplicaLogDirsRequest(Message):
    """Move replicas between log directories (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = field(array(AlterReplicaLogDir), "0+")


@declared
class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@declared
class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = field(STRING, "0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = field(
        array(AlterReplicaLogDirPartitionResult), "0+"
    )


@response(ApiKey.ALTER_REPLICA_LOG_DIRS, "0-2", flexible="2+")
@declared
class AlterReplicaLogDirsResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    results: list[AlterReplicaLogDirTopicResult] = field(array(AlterReplicaLogDirTopicResult), "0+")


@declared
class DescribableLogDirTopic(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@request(ApiKey.DESCRIBE_LOG_DIRS, "0-5", flexible="2+")
@declared
class DescribeLogDirsRequest(Message):
    """Sizes by log directory (KIP-113); null topics means all."""

    topics: list[DescribableLogDirTopic] | None = field(
        array(DescribableLogDirTopic), "0+", null="0+"
    )


@declared
class DescribeLogDirsPartition(Struct):
    partition_index: int = field(INT32, "0+")
    partition_size: int = field(INT64, "0+")
    offset_lag: int = field(INT64, "0+")
    is_future_key: bool = field(BOOL, "0+")


@declared
class DescribeLogDirsTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[DescribeLogDirsPartition] = field(array(DescribeLogDirsPartition), "0+")


@declared
class DescribeLogDirsResult(Struct):
    error_code: int = field(INT16, "0+")
    log_dir: str = field(STRING, "0+")
    topics: list[DescribeLogDirsTopic] = field(array(DescribeLogDirsTopic), "0+")
    total_bytes: int = field(INT64, "4+", default=-1)
    usable_bytes: int = field(INT64, "4+", default=-1)
    is_cordoned: bool = field(BOOL, "5+")


@response(ApiKey.DESCRIBE_LOG_DIRS, "0-5", flexible="2+")
@declared
class DescribeLogDirsResponse(Message):
    """4: total and usable bytes (KIP-827); 5: cordoned (KIP-1066)."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "3+")
    results: list[DescribeLogDirsResult] = field(array(DescribeLogDirsResult), "0+")


@declared
class TopicPartitions(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@request(ApiKey.ELECT_LEADERS, "0-2", flexible="2+")
@declared
class ElectLeadersRequest(Message):
    """Elect leaders (KIP-460); null topics means all."""

    election_type: int = field(INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = field(array(TopicPartitions), "0+", null="0+")
    timeout_ms: int = field(INT32, "0+", default=60000)


@declared
class PartitionResult(Struct):
    partition_id: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@declared
class ReplicaElectionResult(Struct):
    topic: str = field(STRING, "0+")
    partition_result: list[PartitionResult] = field(array(PartitionResult), "0+")


@response(ApiKey.ELECT_LEADERS, "0-2", flexible="2+")
@declared
class ElectLeadersResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = field(
        array(ReplicaElectionResult), "0+"
    )


@declared
class ReassignablePartition(Struct):
    partition_index: int = field(INT32, "0+")
    replicas: list[int] | None = field(array(INT32), "0+", null="0+", default=None)


@declared
class ReassignableTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[ReassignablePartition] = field(array(ReassignablePartition), "0+")


@request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", flexible="0+")
@declared
class AlterPartitionReassignmentsRequest(Message):
    """Start or cancel (null replicas) reassignments (KIP-455)."""

    timeout_ms: int = field(INT32, "0+", default=60000)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    topics: list[ReassignableTopic] = field(array(ReassignableTopic), "0+")


@declared
class ReassignablePartitionResponse(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@declared
class ReassignableTopicResponse(Struct):
    name: str = field(STRING, "0+")
    partitions: list[ReassignablePartitionResponse] = field(
        array(ReassignablePartitionResponse), "0+"
    )


@response(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", flexible="0+")
@declared
class AlterPartitionReassignmentsResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    responses: list[ReassignableTopicResponse] = field(array(ReassignableTopicResponse), "0+")


@declared
class ListPartitionReassignmentsTopics(Struct):
    name: str = field(STRING, "0+")
    partition_indexes: list[int] = field(array(INT32), "0+")


@request(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", flexible="0+")
@declared
class ListPartitionReassignmentsRequest(Message):
    """Ongoing reassignments (KIP-455); null topics means all."""

    timeout_ms: int = field(INT32, "0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        array(ListPartitionReassignmentsTopics), "0+", null="0+", default=None
    )


@declared
class OngoingPartitionReassignment(Struct):
    partition_index: int = field(INT32, "0+")
    replicas: list[int] = field(array(INT32), "0+")
    adding_replicas: list[int] = field(array(INT32), "0+")
    removing_replicas: list[int] = field(array(INT32), "0+")


@declared
class OngoingTopicReassignment(Struct):
    name: str = field(STRING, "0+")
    partitions: list[OngoingPartitionReassignment] = field(
        array(OngoingPartitionReassignment), "0+"
    )


@response(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", flexible="0+")
@declared
class ListPartitionReassignmentsResponse(Message):
    """Replicas being added and removed."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    topics: list[OngoingTopicReassignment] = field(array(OngoingTopicReassignment), "0+")


@declared
class DescribeQuorumRequestPartitionData(Struct):
    partition_index: int = field(INT32, "0+")


@declared
class DescribeQuorumRequestTopicData(Struct):
    topic_name: str = field(STRING, "0+")
    partitions: list[DescribeQuorumRequestPartitionData] = field(
        array(DescribeQuorumRequestPartitionData), "0+"
    )


@request(ApiKey.DESCRIBE_QUORUM, "0-2", flexible="0+")
@declared
class DescribeQuorumRequest(Message):
    """The metadata quorum (KIP-595)."""

    topics: list[DescribeQuorumRequestTopicData] = field(
        array(DescribeQuorumRequestTopicData), "0+"
    )


@declared
class ReplicaState(Struct):
    replica_id: int = field(INT32, "0+")
    replica_directory_id: uuid.UUID = field(UUID, "2+")
    log_end_offset: int = field(INT64, "0+")
    last_fetch_timestamp: int = field(INT64, "1+", default=-1)
    last_caught_up_timestamp: int = field(INT64, "1+", default=-1)


@declared
class DescribeQuorumResponsePartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "2+", null="2+")
    leader_id: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    high_watermark: int = field(INT64, "0+")
    current_voters: list[ReplicaState] = field(array(ReplicaState), "0+")
    observers: list[ReplicaState] = field(array(ReplicaState), "0+")


@declared
class DescribeQuorumResponseTopicData(Struct):
    topic_name: str = field(STRING, "0+")
    partitions: list[DescribeQuorumResponsePartitionData] = field(
        array(DescribeQuorumResponsePartitionData), "0+"
    )


@declared
class DescribeQuorumResponseListener(Struct):
    name: str = field(STRING, "2+")
    host: str = field(STRING, "2+")
    port: int = field(UINT16, "2+")


@declared
class Node(Struct):
    node_id: int = field(INT32, "2+")
    listeners: list[DescribeQuorumResponseListener] = field(
        array(DescribeQuorumResponseListener), "2+"
    )


@response(ApiKey.DESCRIBE_QUORUM, "0-2", flexible="0+")
@declared
class DescribeQuorumResponse(Message):
    """1: fetch times (KIP-836); 2: directories and nodes (KIP-853)."""

    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "2+", null="2+")
    topics: list[DescribeQuorumResponseTopicData] = field(
        array(DescribeQuorumResponseTopicData), "0+"
    )
    nodes: list[Node] = field(array(Node), "2+")


@declared
class FeatureUpdateKey(Struct):
    feature: str = field(STRING, "0+")
    max_version_level: int = field(INT16, "0+")
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)


@request(ApiKey.UPDATE_FEATURES, "0-2", flexible="0+")
@declared
class UpdateFeaturesRequest(Message):
    """Finalize feature levels (KIP-584); 1: upgrade types (KIP-778)."""

    timeout_ms: int = field(INT32, "0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = field(array(FeatureUpdateKey), "0+")
    validate_only: bool = field(BOOL, "1+")


@declared
class UpdatableFeatureResult(Struct):
    feature: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@response(ApiKey.UPDATE_FEATURES, "0-2", flexible="0+")
@declared
class UpdateFeaturesResponse(Message):
    """2: no result per feature."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    results: list[UpdatableFeatureResult] = field(array(UpdatableFeatureResult), "0-1")


@request(ApiKey.UNREGISTER_BROKER, "0", flexible="0+")
@declared
class UnregisterBrokerRequest(Message):
    """Forget a broker (KIP-500)."""

    broker_id: int = field(INT32, "0+")


@response(ApiKey.UNREGISTER_BROKER, "0", flexible="0+")
@declared
class UnregisterBrokerResponse(Message):
    """The outcome."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@declared
class AddRaftVoterRequestListener(Struct):
    name: str = field(STRING, "0+")
    host: str = field(STRING, "0+")
    port: int = field(UINT16, "0+")


@request(ApiKey.ADD_RAFT_VOTER, "0-1", flexible="0+")
@declared
class AddRaftVoterRequest(Message):
    """Add a controller to the quorum (KIP-853)."""

    cluster_id: str | None = field(STRING, "0+", null="0+")
    timeout_ms: int = field(INT32, "0+")
    voter_id: int = field(INT32, "0+")
    voter_directory_id: uuid.UUID = field(UUID, "0+")
    listeners: list[AddRaftVoterRequestListener] = field(array(AddRaftVoterRequestListener), "0+")
    ack_when_committed: bool = field(BOOL, "1+", default=True)


@response(ApiKey.ADD_RAFT_VOTER, "0-1", flexible="0+")
@declared
class AddRaftVoterResponse(Message):
    """The outcome."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@request(ApiKey.REMOVE_RAFT_VOTER, "0", flexible="0+")
@declared
class RemoveRaftVoterRequest(Message):
    """Remove a controller from the quorum (KIP-853)."""

    cluster_id: str | None = field(STRING, "0+", null="0+")
    voter_id: int = field(INT32, "0+")
    voter_directory_id: uuid.UUID = field(UUID, "0+")


@response(ApiKey.REMOVE_RAFT_VOTER, "0", flexible="0+")
@declared
class RemoveRaftVoterResponse(Message):
    """The outcome."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
