"""Where offsets are: by timestamp and by leader epoch (keys 2, 23).

Declared: ListOffsets 0-11 (version 0 asks for several offsets per partition and has fields of its
own), OffsetForLeaderEpoch 0-4.
"""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@declared
class ListOffsetsPartition(Struct):
    partition_index: int = field(INT32, "0+")
    current_leader_epoch: int = field(INT32, "4+", default=-1)
    timestamp: int = field(INT64, "0+")
    # Version 0 alone; Kafka 4 has dropped it from its definitions.
    max_num_offsets: int = field(INT32, "0", default=1)


@declared
class ListOffsetsTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[ListOffsetsPartition] = field(array(ListOffsetsPartition), "0+")


@request(ApiKey.LIST_OFFSETS, "0-11", flexible="6+")
@declared
class ListOffsetsRequest(Message):
    """Offsets by time. 7: max timestamp (KIP-734); 8, 9, 11: tiers; 10: timeout (KIP-1075)."""

    replica_id: int = field(INT32, "0+")
    isolation_level: int = field(INT8, "2+")
    topics: list[ListOffsetsTopic] = field(array(ListOffsetsTopic), "0+")
    timeout_ms: int = field(INT32, "10+")


@declared
class ListOffsetsPartitionResponse(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    # Version 0 alone: the starts of segments, newest first.
    old_style_offsets: list[int] = field(array(INT64), "0")
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


@declared
class ListOffsetsTopicResponse(Struct):
    name: str = field(STRING, "0+")
    partitions: list[ListOffsetsPartitionResponse] = field(
        array(ListOffsetsPartitionResponse), "0+"
    )


@response(ApiKey.LIST_OFFSETS, "0-11", flexible="6+")
@declared
class ListOffsetsResponse(Message):
    """An unknown timestamp or offset is -1."""

    throttle_time_ms: int = field(INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = field(array(ListOffsetsTopicResponse), "0+")


@declared
class OffsetForLeaderPartition(Struct):
    partition: int = field(INT32, "0+")
    current_leader_epoch: int = field(INT32, "2+", default=-1)
    leader_epoch: int = field(INT32, "0+")


@declared
class OffsetForLeaderTopic(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[OffsetForLeaderPartition] = field(array(OffsetForLeaderPartition), "0+")


@request(ApiKey.OFFSET_FOR_LEADER_EPOCH, "0-4", flexible="4+")
@declared
class OffsetForLeaderEpochRequest(Message):
    """The end offset of a leader epoch (KIP-101, KIP-320)."""

    replica_id: int = field(INT32, "3+", default=-2)
    topics: list[OffsetForLeaderTopic] = field(array(OffsetForLeaderTopic), "0+")


@declared
class EpochEndOffset(Struct):
    error_code: int = field(INT16, "0+")
    partition: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "1+", default=-1)
    end_offset: int = field(INT64, "0+", default=-1)


@declared
class OffsetForLeaderTopicResult(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[EpochEndOffset] = field(array(EpochEndOffset), "0+")


@response(ApiKey.OFFSET_FOR_LEADER_EPOCH, "0-4", flexible="4+")
@declared
class OffsetForLeaderEpochResponse(Message):
    """End offset -1 where the epoch is unknown."""

    throttle_time_ms: int = field(INT32, "2+")
    topics: list[OffsetForLeaderTopicResult] = field(array(OffsetForLeaderTopicResult), "0+")
