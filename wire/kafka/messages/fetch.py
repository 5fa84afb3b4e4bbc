"""Fetch (key 1).

Declared: 0-18. Kafka 4 serves 4 and above; 0-3 differ by absent fields alone.
"""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    INT8,
    INT16,
    INT32,
    INT32_MAX,
    INT64,
    INT64_MAX,
    RECORDS,
    STRING,
    UUID,
    Message,
    RecordsValue,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@declared
class ReplicaState(Struct):
    replica_id: int = field(INT32, "15+", default=-1)
    replica_epoch: int = field(INT64, "15+", default=-1)


@declared
class FetchPartition(Struct):
    partition: int = field(INT32, "0+")
    current_leader_epoch: int = field(INT32, "9+", default=-1)
    fetch_offset: int = field(INT64, "0+")
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1)
    partition_max_bytes: int = field(INT32, "0+")
    replica_directory_id: uuid.UUID = field(UUID, "17+", tag=0)
    high_watermark: int = field(INT64, "18+", default=INT64_MAX, tag=1)


@declared
class FetchTopic(Struct):
    topic: str = field(STRING, "0-12")
    topic_id: uuid.UUID = field(UUID, "13+")
    partitions: list[FetchPartition] = field(array(FetchPartition), "0+")


@declared
class ForgottenTopic(Struct):
    topic: str = field(STRING, "7-12")
    topic_id: uuid.UUID = field(UUID, "13+")
    partitions: list[int] = field(array(INT32), "7+")


@request(ApiKey.FETCH, "0-18", flexible="12+")
@declared
class FetchRequest(Message):
    """Read records.

    7: sessions (KIP-227); 11: rack (KIP-392); 12: divergence (KIP-595); 13: topic ids.
    """

    cluster_id: str | None = field(STRING, "12+", null="12+", default=None, tag=0)
    replica_id: int = field(INT32, "0-14", default=-1)
    replica_state: ReplicaState | None = field(ReplicaState, "15+", default=None, tag=1)
    max_wait_ms: int = field(INT32, "0+")
    min_bytes: int = field(INT32, "0+")
    max_bytes: int = field(INT32, "3+", default=INT32_MAX)
    isolation_level: int = field(INT8, "4+")
    session_id: int = field(INT32, "7+")
    session_epoch: int = field(INT32, "7+", default=-1)
    topics: list[FetchTopic] = field(array(FetchTopic), "0+")
    forgotten_topics_data: list[ForgottenTopic] = field(array(ForgottenTopic), "7+")
    rack_id: str = field(STRING, "11+")


@declared
class EpochEndOffset(Struct):
    epoch: int = field(INT32, "12+", default=-1)
    end_offset: int = field(INT64, "12+", default=-1)


@declared
class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, "12+", default=-1)
    leader_epoch: int = field(INT32, "12+", default=-1)


@declared
class SnapshotId(Struct):
    end_offset: int = field(INT64, "0+", default=-1)
    epoch: int = field(INT32, "0+", default=-1)


@declared
class AbortedTransaction(Struct):
    producer_id: int = field(INT64, "4+")
    first_offset: int = field(INT64, "4+")


@declared
class PartitionData(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    high_watermark: int = field(INT64, "0+")
    last_stable_offset: int = field(INT64, "4+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1)
    diverging_epoch: EpochEndOffset | None = field(EpochEndOffset, "12+", default=None, tag=0)
    current_leader: LeaderIdAndEpoch | None = field(LeaderIdAndEpoch, "12+", default=None, tag=1)
    snapshot_id: SnapshotId | None = field(SnapshotId, "12+", default=None, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(
        array(AbortedTransaction), "4+", null="4+"
    )
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    records: RecordsValue = field(RECORDS, "0+", null="0+")


@declared
class FetchableTopicResponse(Struct):
    topic: str = field(STRING, "0-12")
    topic_id: uuid.UUID = field(UUID, "13+")
    partitions: list[PartitionData] = field(array(PartitionData), "0+")


@declared
class NodeEndpoint(Struct):
    node_id: int = field(INT32, "16+")
    host: str = field(STRING, "16+")
    port: int = field(INT32, "16+")
    rack: str | None = field(STRING, "16+", null="16+", default=None)


@response(ApiKey.FETCH, "0-18", flexible="12+")
@declared
class FetchResponse(Message):
    """The batches as they are stored; `records` is not copied on its way out."""

    throttle_time_ms: int = field(INT32, "1+")
    error_code: int = field(INT16, "7+")
    session_id: int = field(INT32, "7+")
    responses: list[FetchableTopicResponse] = field(array(FetchableTopicResponse), "0+")
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), "16+", tag=0)
