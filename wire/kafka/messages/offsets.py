"""Committed offsets of groups (keys 8, 9, 47).

Declared: OffsetCommit 0-10 and OffsetFetch 0-10. Version 0 of both meant ZooKeeper once; the layout
is the same but for the fields that came later.
"""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
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
class OffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")
    committed_offset: int = field(INT64, "0+")
    # Version 1 alone; later versions have `retention_time_ms`, then neither.
    commit_timestamp: int = field(INT64, "1", default=-1)
    committed_leader_epoch: int = field(INT32, "6+", default=-1)
    committed_metadata: str | None = field(STRING, "0+", null="0+")


@declared
class OffsetCommitRequestTopic(Struct):
    name: str = field(STRING, "0-9")
    topic_id: uuid.UUID = field(UUID, "10+")
    partitions: list[OffsetCommitRequestPartition] = field(
        array(OffsetCommitRequestPartition), "0+"
    )


@request(ApiKey.OFFSET_COMMIT, "0-10", flexible="8+")
@declared
class OffsetCommitRequest(Message):
    """Commit offsets. 6: leader epochs (KIP-320); 7: static members; 10: topic ids (KIP-848)."""

    group_id: str = field(STRING, "0+")
    generation_id_or_member_epoch: int = field(INT32, "1+", default=-1)
    member_id: str = field(STRING, "1+")
    group_instance_id: str | None = field(STRING, "7+", null="7+", default=None)
    retention_time_ms: int = field(INT64, "2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = field(array(OffsetCommitRequestTopic), "0+")


@declared
class OffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@declared
class OffsetCommitResponseTopic(Struct):
    name: str = field(STRING, "0-9")
    topic_id: uuid.UUID = field(UUID, "10+")
    partitions: list[OffsetCommitResponsePartition] = field(
        array(OffsetCommitResponsePartition), "0+"
    )


@response(ApiKey.OFFSET_COMMIT, "0-10", flexible="8+")
@declared
class OffsetCommitResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "3+")
    topics: list[OffsetCommitResponseTopic] = field(array(OffsetCommitResponseTopic), "0+")


@declared
class OffsetFetchRequestTopic(Struct):
    name: str = field(STRING, "0-7")
    partition_indexes: list[int] = field(array(INT32), "0-7")


@declared
class OffsetFetchRequestTopics(Struct):
    name: str = field(STRING, "8-9")
    topic_id: uuid.UUID = field(UUID, "10+")
    partition_indexes: list[int] = field(array(INT32), "8+")


@declared
class OffsetFetchRequestGroup(Struct):
    group_id: str = field(STRING, "8+")
    member_id: str | None = field(STRING, "9+", null="9+", default=None)
    member_epoch: int = field(INT32, "9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field(
        array(OffsetFetchRequestTopics), "8+", null="8+"
    )


@request(ApiKey.OFFSET_FETCH, "0-10", flexible="6+")
@declared
class OffsetFetchRequest(Message):
    """Read committed offsets.

    2: null topics means all; 7: stable only (KIP-447); 8: several groups.
    """

    group_id: str = field(STRING, "0-7")
    topics: list[OffsetFetchRequestTopic] | None = field(
        array(OffsetFetchRequestTopic), "0-7", null="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = field(array(OffsetFetchRequestGroup), "8+")
    require_stable: bool = field(BOOL, "7+")


@declared
class OffsetFetchResponsePartition(Struct):
    partition_index: int = field(INT32, "0-7")
    committed_offset: int = field(INT64, "0-7")
    committed_leader_epoch: int = field(INT32, "5-7", default=-1)
    metadata: str | None = field(STRING, "0-7", null="0-7")
    error_code: int = field(INT16, "0-7")


@declared
class OffsetFetchResponseTopic(Struct):
    name: str = field(STRING, "0-7")
    partitions: list[OffsetFetchResponsePartition] = field(
        array(OffsetFetchResponsePartition), "0-7"
    )


@declared
class OffsetFetchResponsePartitions(Struct):
    partition_index: int = field(INT32, "8+")
    committed_offset: int = field(INT64, "8+")
    committed_leader_epoch: int = field(INT32, "8+", default=-1)
    metadata: str | None = field(STRING, "8+", null="8+")
    error_code: int = field(INT16, "8+")


@declared
class OffsetFetchResponseTopics(Struct):
    name: str = field(STRING, "8-9")
    topic_id: uuid.UUID = field(UUID, "10+")
    partitions: list[OffsetFetchResponsePartitions] = field(
        array(OffsetFetchResponsePartitions), "8+"
    )


@declared
class OffsetFetchResponseGroup(Struct):
    group_id: str = field(STRING, "8+")
    topics: list[OffsetFetchResponseTopics] = field(array(OffsetFetchResponseTopics), "8+")
    error_code: int = field(INT16, "8+")


@response(ApiKey.OFFSET_FETCH, "0-10", flexible="6+")
@declared
class OffsetFetchResponse(Message):
    """To version 7 one group in the top-level fields, later a list (KIP-709)."""

    throttle_time_ms: int = field(INT32, "3+")
    topics: list[OffsetFetchResponseTopic] = field(array(OffsetFetchResponseTopic), "0-7")
    error_code: int = field(INT16, "2-7")
    groups: list[OffsetFetchResponseGroup] = field(array(OffsetFetchResponseGroup), "8+")


@declared
class OffsetDeleteRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")


@declared
class OffsetDeleteRequestTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[OffsetDeleteRequestPartition] = field(
        array(OffsetDeleteRequestPartition), "0+"
    )


@request(ApiKey.OFFSET_DELETE, "0", flexible=None)
@declared
class OffsetDeleteRequest(Message):
    """Forget committed offsets (KIP-496)."""

    group_id: str = field(STRING, "0+")
    topics: list[OffsetDeleteRequestTopic] = field(array(OffsetDeleteRequestTopic), "0+")


@declared
class OffsetDeleteResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@declared
class OffsetDeleteResponseTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[OffsetDeleteResponsePartition] = field(
        array(OffsetDeleteResponsePartition), "0+"
    )


@response(ApiKey.OFFSET_DELETE, "0", flexible=None)
@declared
class OffsetDeleteResponse(Message):
    """A result per partition."""

    error_code: int = field(INT16, "0+")
    throttle_time_ms: int = field(INT32, "0+")
    topics: list[OffsetDeleteResponseTopic] = field(array(OffsetDeleteResponseTopic), "0+")
