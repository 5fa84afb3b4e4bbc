"""The share groups' persister: broker to share coordinator (KIP-932; keys 83-87)."""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
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
class InitializeShareGroupStateRequestPartitionData(Struct):
    partition: int = field(INT32, "0+")
    state_epoch: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")


@declared
class InitializeStateData(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[InitializeShareGroupStateRequestPartitionData] = field(
        array(InitializeShareGroupStateRequestPartitionData), "0+"
    )


@request(ApiKey.INITIALIZE_SHARE_GROUP_STATE, "0", flexible="0+")
@declared
class InitializeShareGroupStateRequest(Message):
    """Make the state of partitions."""

    group_id: str = field(STRING, "0+")
    topics: list[InitializeStateData] = field(array(InitializeStateData), "0+")


@declared
class InitializeShareGroupStateResponsePartitionResult(Struct):
    partition: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@declared
class InitializeStateResult(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[InitializeShareGroupStateResponsePartitionResult] = field(
        array(InitializeShareGroupStateResponsePartitionResult), "0+"
    )


@response(ApiKey.INITIALIZE_SHARE_GROUP_STATE, "0", flexible="0+")
@declared
class InitializeShareGroupStateResponse(Message):
    """A result per partition."""

    results: list[InitializeStateResult] = field(array(InitializeStateResult), "0+")


@declared
class ReadShareGroupStateRequestPartitionData(Struct):
    partition: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")


@declared
class ReadStateData(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[ReadShareGroupStateRequestPartitionData] = field(
        array(ReadShareGroupStateRequestPartitionData), "0+"
    )


@request(ApiKey.READ_SHARE_GROUP_STATE, "0", flexible="0+")
@declared
class ReadShareGroupStateRequest(Message):
    """Read state batches."""

    group_id: str = field(STRING, "0+")
    topics: list[ReadStateData] = field(array(ReadStateData), "0+")


@declared
class StateBatch(Struct):
    first_offset: int = field(INT64, "0+")
    last_offset: int = field(INT64, "0+")
    delivery_state: int = field(INT8, "0+")
    delivery_count: int = field(INT16, "0+")


@declared
class ReadShareGroupStateResponsePartitionResult(Struct):
    partition: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    state_epoch: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")
    state_batches: list[StateBatch] = field(array(StateBatch), "0+")


@declared
class ReadStateResult(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[ReadShareGroupStateResponsePartitionResult] = field(
        array(ReadShareGroupStateResponsePartitionResult), "0+"
    )


@response(ApiKey.READ_SHARE_GROUP_STATE, "0", flexible="0+")
@declared
class ReadShareGroupStateResponse(Message):
    """State batches per partition."""

    results: list[ReadStateResult] = field(array(ReadStateResult), "0+")


@declared
class WriteShareGroupStateRequestPartitionData(Struct):
    partition: int = field(INT32, "0+")
    state_epoch: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")
    delivery_complete_count: int = field(INT32, "1+", default=-1)
    state_batches: list[StateBatch] = field(array(StateBatch), "0+")


@declared
class WriteStateData(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[WriteShareGroupStateRequestPartitionData] = field(
        array(WriteShareGroupStateRequestPartitionData), "0+"
    )


@request(ApiKey.WRITE_SHARE_GROUP_STATE, "0-1", flexible="0+")
@declared
class WriteShareGroupStateRequest(Message):
    """Write state batches. 1: complete deliveries (KIP-1226)."""

    group_id: str = field(STRING, "0+")
    topics: list[WriteStateData] = field(array(WriteStateData), "0+")


@declared
class WriteShareGroupStateResponsePartitionResult(Struct):
    partition: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@declared
class WriteStateResult(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[WriteShareGroupStateResponsePartitionResult] = field(
        array(WriteShareGroupStateResponsePartitionResult), "0+"
    )


@response(ApiKey.WRITE_SHARE_GROUP_STATE, "0-1", flexible="0+")
@declared
class WriteShareGroupStateResponse(Message):
    """A result per partition."""

    results: list[WriteStateResult] = field(array(WriteStateResult), "0+")


@declared
class DeleteShareGroupStateRequestPartitionData(Struct):
    partition: int = field(INT32, "0+")


@declared
class DeleteStateData(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[DeleteShareGroupStateRequestPartitionData] = field(
        array(DeleteShareGroupStateRequestPartitionData), "0+"
    )


@request(ApiKey.DELETE_SHARE_GROUP_STATE, "0", flexible="0+")
@declared
class DeleteShareGroupStateRequest(Message):
    """Remove the state of partitions."""

    group_id: str = field(STRING, "0+")
    topics: list[DeleteStateData] = field(array(DeleteStateData), "0+")


@declared
class DeleteShareGroupStateResponsePartitionResult(Struct):
    partition: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)


@declared
class DeleteStateResult(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[DeleteShareGroupStateResponsePartitionResult] = field(
        array(DeleteShareGroupStateResponsePartitionResult), "0+"
    )


@response(ApiKey.DELETE_SHARE_GROUP_STATE, "0", flexible="0+")
@declared
class DeleteShareGroupStateResponse(Message):
    """A result per partition."""

    results: list[DeleteStateResult] = field(array(DeleteStateResult), "0+")


@declared
class ReadShareGroupStateSummaryRequestPartitionData(Struct):
    partition: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")


@declared
class ReadStateSummaryData(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[ReadShareGroupStateSummaryRequestPartitionData] = field(
        array(ReadShareGroupStateSummaryRequestPartitionData), "0+"
    )


@request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "0-1", flexible="0+")
@declared
class ReadShareGroupStateSummaryRequest(Message):
    """Start offsets without the batches."""

    group_id: str = field(STRING, "0+")
    topics: list[ReadStateSummaryData] = field(array(ReadStateSummaryData), "0+")


@declared
class ReadShareGroupStateSummaryResponsePartitionResult(Struct):
    partition: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    state_epoch: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")
    delivery_complete_count: int = field(INT32, "1+", default=-1)


@declared
class ReadStateSummaryResult(Struct):
    topic_id: uuid.UUID = field(UUID, "0+")
    partitions: list[ReadShareGroupStateSummaryResponsePartitionResult] = field(
        array(ReadShareGroupStateSummaryResponsePartitionResult), "0+"
    )


@response(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "0-1", flexible="0+")
@declared
class ReadShareGroupStateSummaryResponse(Message):
    """1: complete deliveries (KIP-1226)."""

    results: list[ReadStateSummaryResult] = field(array(ReadStateSummaryResult), "0+")
