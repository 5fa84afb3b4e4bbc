"""Produce (key 0).

Declared: 3-13. Versions 0-2 are recognised by their request header and refused; Kafka 4 does the
same, while it advertises 0 as the minimum (KAFKA-18659).
"""

import uuid

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    INT16,
    INT32,
    INT64,
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
class PartitionProduceData(Struct):
    index: int = field(INT32, "0+")
    records: RecordsValue = field(RECORDS, "0+", null="0+")


@declared
class TopicProduceData(Struct):
    name: str = field(STRING, "0-12")
    topic_id: uuid.UUID = field(UUID, "13+")
    partition_data: list[PartitionProduceData] = field(array(PartitionProduceData), "0+")


@request(ApiKey.PRODUCE, "3-13", flexible="9+")
@declared
class ProduceRequest(Message):
    """Append record batches.

    7: zstd (KIP-110); 12: transactions V2 (KIP-890); 13: topic ids (KIP-516).
    """

    transactional_id: str | None = field(STRING, "3+", null="3+", default=None)
    acks: int = field(INT16, "0+")
    timeout_ms: int = field(INT32, "0+")
    topic_data: list[TopicProduceData] = field(array(TopicProduceData), "0+")


@declared
class BatchIndexAndErrorMessage(Struct):
    batch_index: int = field(INT32, "8+")
    batch_index_error_message: str | None = field(STRING, "8+", null="8+", default=None)


@declared
class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


@declared
class PartitionProduceResponse(Struct):
    index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    base_offset: int = field(INT64, "0+")
    log_append_time_ms: int = field(INT64, "2+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(array(BatchIndexAndErrorMessage), "8+")
    error_message: str | None = field(STRING, "8+", null="8+", default=None)
    current_leader: LeaderIdAndEpoch | None = field(LeaderIdAndEpoch, "10+", default=None, tag=0)


@declared
class TopicProduceResponse(Struct):
    name: str = field(STRING, "0-12")
    topic_id: uuid.UUID = field(UUID, "13+")
    partition_responses: list[PartitionProduceResponse] = field(
        array(PartitionProduceResponse), "0+"
    )


@declared
class NodeEndpoint(Struct):
    node_id: int = field(INT32, "10+")
    host: str = field(STRING, "10+")
    port: int = field(INT32, "10+")
    rack: str | None = field(STRING, "10+", null="10+", default=None)


@response(ApiKey.PRODUCE, "3-13", flexible="9+")
@declared
class ProduceResponse(Message):
    """8: per-record errors (KIP-467); 10: the new leader, when it moved (KIP-951)."""

    responses: list[TopicProduceResponse] = field(array(TopicProduceResponse), "0+")
    throttle_time_ms: int = field(INT32, "1+")
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), "10+", tag=0)
