"""Topics, partitions and the removal of records (keys 19, 20, 21, 37)."""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    INT8,
    INT16,
    INT32,
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


@declared
class CreatableReplicaAssignment(Struct):
    partition_index: int = field(INT32, "0+")
    broker_ids: list[int] = field(array(INT32), "0+")


@declared
class CreatableTopicConfig(Struct):
    name: str = field(STRING, "0+")
    value: str | None = field(STRING, "0+", null="0+")


@declared
class CreatableTopic(Struct):
    name: str = field(STRING, "0+")
    num_partitions: int = field(INT32, "0+")
    replication_factor: int = field(INT16, "0+")
    assignments: list[CreatableReplicaAssignment] = field(array(CreatableReplicaAssignment), "0+")
    configs: list[CreatableTopicConfig] = field(array(CreatableTopicConfig), "0+")


@request(ApiKey.CREATE_TOPICS, "0-7", flexible="5+")
@declared
class CreateTopicsRequest(Message):
    """Create topics. 4: -1 means the default (KIP-464)."""

    topics: list[CreatableTopic] = field(array(CreatableTopic), "0+")
    timeout_ms: int = field(INT32, "0+", default=60000)
    validate_only: bool = field(BOOL, "1+")


@declared
class CreatableTopicConfigs(Struct):
    name: str = field(STRING, "5+")
    value: str | None = field(STRING, "5+", null="5+")
    read_only: bool = field(BOOL, "5+")
    config_source: int = field(INT8, "5+", default=-1)
    is_sensitive: bool = field(BOOL, "5+")


@declared
class CreatableTopicResult(Struct):
    name: str = field(STRING, "0+")
    topic_id: uuid.UUID = field(UUID, "7+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "1+", null="0+")
    topic_config_error_code: int = field(INT16, "5+", tag=0)
    num_partitions: int = field(INT32, "5+", default=-1)
    replication_factor: int = field(INT16, "5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = field(
        array(CreatableTopicConfigs), "5+", null="5+"
    )


@response(ApiKey.CREATE_TOPICS, "0-7", flexible="5+")
@declared
class CreateTopicsResponse(Message):
    """5: the effective configuration (KIP-525); 7: topic ids."""

    throttle_time_ms: int = field(INT32, "2+")
    topics: list[CreatableTopicResult] = field(array(CreatableTopicResult), "0+")


@declared
class DeleteTopicState(Struct):
    name: str | None = field(STRING, "6+", null="6+", default=None)
    topic_id: uuid.UUID = field(UUID, "6+")


@request(ApiKey.DELETE_TOPICS, "0-6", flexible="4+")
@declared
class DeleteTopicsRequest(Message):
    """Delete topics; 6: by name or id (KIP-516)."""

    topics: list[DeleteTopicState] = field(array(DeleteTopicState), "6+")
    topic_names: list[str] = field(array(STRING), "0-5")
    timeout_ms: int = field(INT32, "0+")


@declared
class DeletableTopicResult(Struct):
    name: str | None = field(STRING, "0+", null="6+")
    topic_id: uuid.UUID = field(UUID, "6+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "5+", null="5+", default=None)


@response(ApiKey.DELETE_TOPICS, "0-6", flexible="4+")
@declared
class DeleteTopicsResponse(Message):
    """5: error messages (KIP-599)."""

    throttle_time_ms: int = field(INT32, "1+")
    responses: list[DeletableTopicResult] = field(array(DeletableTopicResult), "0+")


@declared
class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = field(array(INT32), "0+")


@declared
class CreatePartitionsTopic(Struct):
    name: str = field(STRING, "0+")
    count: int = field(INT32, "0+")
    assignments: list[CreatePartitionsAssignment] | None = field(
        array(CreatePartitionsAssignment), "0+", null="0+"
    )


@request(ApiKey.CREATE_PARTITIONS, "0-3", flexible="2+")
@declared
class CreatePartitionsRequest(Message):
    """Raise partition counts (KIP-195)."""

    topics: list[CreatePartitionsTopic] = field(array(CreatePartitionsTopic), "0+")
    timeout_ms: int = field(INT32, "0+")
    validate_only: bool = field(BOOL, "0+")


@declared
class CreatePartitionsTopicResult(Struct):
    name: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@response(ApiKey.CREATE_PARTITIONS, "0-3", flexible="2+")
@declared
class CreatePartitionsResponse(Message):
    """A result per topic, echoing its name."""

    throttle_time_ms: int = field(INT32, "0+")
    results: list[CreatePartitionsTopicResult] = field(array(CreatePartitionsTopicResult), "0+")


@declared
class DeleteRecordsPartition(Struct):
    partition_index: int = field(INT32, "0+")
    offset: int = field(INT64, "0+")


@declared
class DeleteRecordsTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[DeleteRecordsPartition] = field(array(DeleteRecordsPartition), "0+")


@request(ApiKey.DELETE_RECORDS, "0-2", flexible="2+")
@declared
class DeleteRecordsRequest(Message):
    """Move log starts forward (KIP-107); offset -1 is the high watermark."""

    topics: list[DeleteRecordsTopic] = field(array(DeleteRecordsTopic), "0+")
    timeout_ms: int = field(INT32, "0+")


@declared
class DeleteRecordsPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    low_watermark: int = field(INT64, "0+")
    error_code: int = field(INT16, "0+")


@declared
class DeleteRecordsTopicResult(Struct):
    name: str = field(STRING, "0+")
    partitions: list[DeleteRecordsPartitionResult] = field(
        array(DeleteRecordsPartitionResult), "0+"
    )


@response(ApiKey.DELETE_RECORDS, "0-2", flexible="2+")
@declared
class DeleteRecordsResponse(Message):
    """The new log start per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    topics: list[DeleteRecordsTopicResult] = field(array(DeleteRecordsTopicResult), "0+")
