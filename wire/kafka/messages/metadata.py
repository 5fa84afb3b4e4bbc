"""What a client asks first: versions, brokers, topics (keys 3, 18, 60, 75)."""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT32_MIN,
    INT64,
    STRING,
    UUID,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@request(ApiKey.API_VERSIONS, "0-4", flexible="3+")
@declared
class ApiVersionsRequest(Message):
    """What does this broker speak? (KIP-35); 3: client software (KIP-511)."""

    client_software_name: str = field(STRING, "3+")
    client_software_version: str = field(STRING, "3+")


@declared
class ApiVersion(Struct):
    api_key: int = field(INT16, "0+")
    min_version: int = field(INT16, "0+")
    max_version: int = field(INT16, "0+")


@declared
class SupportedFeatureKey(Struct):
    name: str = field(STRING, "3+")
    min_version: int = field(INT16, "3+")
    max_version: int = field(INT16, "3+")


@declared
class FinalizedFeatureKey(Struct):
    name: str = field(STRING, "3+")
    max_version_level: int = field(INT16, "3+")
    min_version_level: int = field(INT16, "3+")


@response(ApiKey.API_VERSIONS, "0-4", flexible="3+")
@declared
class ApiVersionsResponse(Message):
    """Framed by response header v0 in every version; 3: features (KIP-584)."""

    error_code: int = field(INT16, "0+")
    api_keys: list[ApiVersion] = field(array(ApiVersion), "0+")
    throttle_time_ms: int = field(INT32, "1+")
    supported_features: list[SupportedFeatureKey] = field(array(SupportedFeatureKey), "3+", tag=0)
    finalized_features_epoch: int = field(INT64, "3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field(array(FinalizedFeatureKey), "3+", tag=2)
    zk_migration_ready: bool = field(BOOL, "3+", tag=3)


@declared
class MetadataRequestTopic(Struct):
    topic_id: uuid.UUID = field(UUID, "10+")
    name: str | None = field(STRING, "0+", null="10+")


@request(ApiKey.METADATA, "0-13", flexible="9+")
@declared
class MetadataRequest(Message):
    """Brokers and topics; `topics` null means all (an empty list in version 0). 12: by topic id."""

    topics: list[MetadataRequestTopic] | None = field(array(MetadataRequestTopic), "0+", null="1+")
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10")
    include_topic_authorized_operations: bool = field(BOOL, "8+")


@declared
class MetadataResponseBroker(Struct):
    node_id: int = field(INT32, "0+")
    host: str = field(STRING, "0+")
    port: int = field(INT32, "0+")
    rack: str | None = field(STRING, "1+", null="1+", default=None)


@declared
class MetadataResponsePartition(Struct):
    error_code: int = field(INT16, "0+")
    partition_index: int = field(INT32, "0+")
    leader_id: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "7+", default=-1)
    replica_nodes: list[int] = field(array(INT32), "0+")
    isr_nodes: list[int] = field(array(INT32), "0+")
    offline_replicas: list[int] = field(array(INT32), "5+")


@declared
class MetadataResponseTopic(Struct):
    error_code: int = field(INT16, "0+")
    name: str | None = field(STRING, "0+", null="12+")
    topic_id: uuid.UUID = field(UUID, "10+")
    is_internal: bool = field(BOOL, "1+")
    partitions: list[MetadataResponsePartition] = field(array(MetadataResponsePartition), "0+")
    topic_authorized_operations: int = field(INT32, "8+", default=INT32_MIN)


@response(ApiKey.METADATA, "0-13", flexible="9+")
@declared
class MetadataResponse(Message):
    """13: a top-level error (KIP-1102)."""

    throttle_time_ms: int = field(INT32, "3+")
    brokers: list[MetadataResponseBroker] = field(array(MetadataResponseBroker), "0+")
    cluster_id: str | None = field(STRING, "2+", null="2+", default=None)
    controller_id: int = field(INT32, "1+", default=-1)
    topics: list[MetadataResponseTopic] = field(array(MetadataResponseTopic), "0+")
    cluster_authorized_operations: int = field(INT32, "8-10", default=INT32_MIN)
    error_code: int = field(INT16, "13+")


@declared
class TopicRequest(Struct):
    name: str = field(STRING, "0+")


@declared
class Cursor(Struct):
    topic_name: str = field(STRING, "0+")
    partition_index: int = field(INT32, "0+")


@request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", flexible="0+")
@declared
class DescribeTopicPartitionsRequest(Message):
    """Topics page by page (KIP-966)."""

    topics: list[TopicRequest] = field(array(TopicRequest), "0+")
    response_partition_limit: int = field(INT32, "0+", default=2000)
    cursor: Cursor | None = field(Cursor, "0+", null="0+", default=None)


@declared
class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = field(INT16, "0+")
    partition_index: int = field(INT32, "0+")
    leader_id: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+", default=-1)
    replica_nodes: list[int] = field(array(INT32), "0+")
    isr_nodes: list[int] = field(array(INT32), "0+")
    eligible_leader_replicas: list[int] | None = field(array(INT32), "0+", null="0+", default=None)
    last_known_elr: list[int] | None = field(array(INT32), "0+", null="0+", default=None)
    offline_replicas: list[int] = field(array(INT32), "0+")


@declared
class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = field(INT16, "0+")
    name: str | None = field(STRING, "0+", null="0+")
    topic_id: uuid.UUID = field(UUID, "0+")
    is_internal: bool = field(BOOL, "0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        array(DescribeTopicPartitionsResponsePartition), "0+"
    )
    topic_authorized_operations: int = field(INT32, "0+", default=INT32_MIN)


@response(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", flexible="0+")
@declared
class DescribeTopicPartitionsResponse(Message):
    """`next_cursor` is null on the last page."""

    throttle_time_ms: int = field(INT32, "0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = field(
        array(DescribeTopicPartitionsResponseTopic), "0+"
    )
    next_cursor: Cursor | None = field(Cursor, "0+", null="0+", default=None)


@request(ApiKey.DESCRIBE_CLUSTER, "0-2", flexible="0+")
@declared
class DescribeClusterRequest(Message):
    """Brokers of the cluster (KIP-700); 1: endpoint type (KIP-919); 2: fenced ones (KIP-1073)."""

    include_cluster_authorized_operations: bool = field(BOOL, "0+")
    endpoint_type: int = field(INT8, "1+", default=1)
    include_fenced_brokers: bool = field(BOOL, "2+")


@declared
class DescribeClusterBroker(Struct):
    broker_id: int = field(INT32, "0+")
    host: str = field(STRING, "0+")
    port: int = field(INT32, "0+")
    rack: str | None = field(STRING, "0+", null="0+", default=None)
    is_fenced: bool = field(BOOL, "2+")


@response(ApiKey.DESCRIBE_CLUSTER, "0-2", flexible="0+")
@declared
class DescribeClusterResponse(Message):
    """The endpoints of the type that was asked for."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    endpoint_type: int = field(INT8, "1+", default=1)
    cluster_id: str = field(STRING, "0+")
    controller_id: int = field(INT32, "0+", default=-1)
    brokers: list[DescribeClusterBroker] = field(array(DescribeClusterBroker), "0+")
    cluster_authorized_operations: int = field(INT32, "0+", default=INT32_MIN)
