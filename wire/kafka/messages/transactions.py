"""Producer ids and transactions (keys 22, 24-28).

Declared: InitProducerId 0-5; version 6 (two-phase commit, KIP-939) is unstable in Kafka 4.3.
"""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
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


@request(ApiKey.INIT_PRODUCER_ID, "0-5", flexible="2+")
@declared
class InitProducerIdRequest(Message):
    """Get or renew a producer id. 3: the caller's own id and epoch (KIP-360)."""

    transactional_id: str | None = field(STRING, "0+", null="0+")
    transaction_timeout_ms: int = field(INT32, "0+")
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)


@response(ApiKey.INIT_PRODUCER_ID, "0-5", flexible="2+")
@declared
class InitProducerIdResponse(Message):
    """The id and epoch to use."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    producer_id: int = field(INT64, "0+", default=-1)
    producer_epoch: int = field(INT16, "0+")


@declared
class AddPartitionsToTxnTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = field(STRING, "4+")
    producer_id: int = field(INT64, "4+")
    producer_epoch: int = field(INT16, "4+")
    verify_only: bool = field(BOOL, "4+")
    topics: list[AddPartitionsToTxnTopic] = field(array(AddPartitionsToTxnTopic), "4+")


@request(ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", flexible="3+")
@declared
class AddPartitionsToTxnRequest(Message):
    """Partitions enter a transaction; 4: several transactions, for brokers (KIP-890)."""

    transactions: list[AddPartitionsToTxnTransaction] = field(
        array(AddPartitionsToTxnTransaction), "4+"
    )
    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(
        array(AddPartitionsToTxnTopic), "0-3"
    )


@declared
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    partition_error_code: int = field(INT16, "0+")


@declared
class AddPartitionsToTxnTopicResult(Struct):
    name: str = field(STRING, "0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(
        array(AddPartitionsToTxnPartitionResult), "0+"
    )


@declared
class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field(STRING, "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field(
        array(AddPartitionsToTxnTopicResult), "4+"
    )


@response(ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", flexible="3+")
@declared
class AddPartitionsToTxnResponse(Message):
    """To version 3 one transaction in the top-level fields, later a list."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = field(
        array(AddPartitionsToTxnResult), "4+"
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        array(AddPartitionsToTxnTopicResult), "0-3"
    )


@request(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", flexible="3+")
@declared
class AddOffsetsToTxnRequest(Message):
    """A group's offsets enter a transaction (KIP-98)."""

    transactional_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    group_id: str = field(STRING, "0+")


@response(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", flexible="3+")
@declared
class AddOffsetsToTxnResponse(Message):
    """4: TRANSACTION_ABORTABLE (KIP-890)."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@request(ApiKey.END_TXN, "0-5", flexible="3+")
@declared
class EndTxnRequest(Message):
    """Commit or abort."""

    transactional_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    committed: bool = field(BOOL, "0+")


@response(ApiKey.END_TXN, "0-5", flexible="3+")
@declared
class EndTxnResponse(Message):
    """5: the epoch is raised by every transaction (KIP-890)."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    producer_id: int = field(INT64, "5+", default=-1)
    producer_epoch: int = field(INT16, "5+", default=-1)


@declared
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32, "0+")
    committed_offset: int = field(INT64, "0+")
    committed_leader_epoch: int = field(INT32, "2+", default=-1)
    committed_metadata: str | None = field(STRING, "0+", null="0+")


@declared
class TxnOffsetCommitRequestTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[TxnOffsetCommitRequestPartition] = field(
        array(TxnOffsetCommitRequestPartition), "0+"
    )


@request(ApiKey.TXN_OFFSET_COMMIT, "0-5", flexible="3+")
@declared
class TxnOffsetCommitRequest(Message):
    """Offsets that a transaction commits. 3: the group member (KIP-447); 5: transactions V2."""

    transactional_id: str = field(STRING, "0+")
    group_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", null="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field(array(TxnOffsetCommitRequestTopic), "0+")


@declared
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@declared
class TxnOffsetCommitResponseTopic(Struct):
    name: str = field(STRING, "0+")
    partitions: list[TxnOffsetCommitResponsePartition] = field(
        array(TxnOffsetCommitResponsePartition), "0+"
    )


@response(ApiKey.TXN_OFFSET_COMMIT, "0-5", flexible="3+")
@declared
class TxnOffsetCommitResponse(Message):
    """A result per partition."""

    throttle_time_ms: int = field(INT32, "0+")
    topics: list[TxnOffsetCommitResponseTopic] = field(array(TxnOffsetCommitResponseTopic), "0+")


@declared
class WritableTxnMarkerTopic(Struct):
    name: str = field(STRING, "0+")
    partition_indexes: list[int] = field(array(INT32), "0+")


@declared
class WritableTxnMarker(Struct):
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    transaction_result: bool = field(BOOL, "0+")
    topics: list[WritableTxnMarkerTopic] = field(array(WritableTxnMarkerTopic), "0+")
    coordinator_epoch: int = field(INT32, "0+")
    transaction_version: int = field(INT8, "2+")


@request(ApiKey.WRITE_TXN_MARKERS, "0-2", flexible="1+")
@declared
class WriteTxnMarkersRequest(Message):
    """Transaction markers, coordinator to partition leaders. 2: transaction version (KIP-1228)."""

    markers: list[WritableTxnMarker] = field(array(WritableTxnMarker), "0+")


@declared
class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")


@declared
class WritableTxnMarkerTopicResult(Struct):
    name: str = field(STRING, "0+")
    partitions: list[WritableTxnMarkerPartitionResult] = field(
        array(WritableTxnMarkerPartitionResult), "0+"
    )


@declared
class WritableTxnMarkerResult(Struct):
    producer_id: int = field(INT64, "0+")
    topics: list[WritableTxnMarkerTopicResult] = field(array(WritableTxnMarkerTopicResult), "0+")


@response(ApiKey.WRITE_TXN_MARKERS, "0-2", flexible="1+")
@declared
class WriteTxnMarkersResponse(Message):
    """A result per marker and partition."""

    markers: list[WritableTxnMarkerResult] = field(array(WritableTxnMarkerResult), "0+")
