"""What operators ask about producers and transactions (KIP-664; keys 61, 65, 66)."""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import INT16, INT32, INT64, STRING, Message, array, field, request, response
from wire.kafka.structs import Struct, declared


@declared
class TopicRequest(Struct):
    name: str = field(STRING, "0+")
    partition_indexes: list[int] = field(array(INT32), "0+")


@request(ApiKey.DESCRIBE_PRODUCERS, "0", flexible="0+")
@declared
class DescribeProducersRequest(Message):
    """Active producers of partitions."""

    topics: list[TopicRequest] = field(array(TopicRequest), "0+")


@declared
class ProducerState(Struct):
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT32, "0+")
    last_sequence: int = field(INT32, "0+", default=-1)
    last_timestamp: int = field(INT64, "0+", default=-1)
    coordinator_epoch: int = field(INT32, "0+")
    current_txn_start_offset: int = field(INT64, "0+", default=-1)


@declared
class PartitionResponse(Struct):
    partition_index: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+", default=None)
    active_producers: list[ProducerState] = field(array(ProducerState), "0+")


@declared
class TopicResponse(Struct):
    name: str = field(STRING, "0+")
    partitions: list[PartitionResponse] = field(array(PartitionResponse), "0+")


@response(ApiKey.DESCRIBE_PRODUCERS, "0", flexible="0+")
@declared
class DescribeProducersResponse(Message):
    """A last timestamp or open offset of -1 is «none»."""

    throttle_time_ms: int = field(INT32, "0+")
    topics: list[TopicResponse] = field(array(TopicResponse), "0+")


@request(ApiKey.DESCRIBE_TRANSACTIONS, "0", flexible="0+")
@declared
class DescribeTransactionsRequest(Message):
    """Transactions by id."""

    transactional_ids: list[str] = field(array(STRING), "0+")


@declared
class TopicData(Struct):
    topic: str = field(STRING, "0+")
    partitions: list[int] = field(array(INT32), "0+")


@declared
class DescribeTransactionsResponseTransactionState(Struct):
    error_code: int = field(INT16, "0+")
    transactional_id: str = field(STRING, "0+")
    transaction_state: str = field(STRING, "0+")
    transaction_timeout_ms: int = field(INT32, "0+")
    transaction_start_time_ms: int = field(INT64, "0+")
    producer_id: int = field(INT64, "0+")
    producer_epoch: int = field(INT16, "0+")
    topics: list[TopicData] = field(array(TopicData), "0+")


@response(ApiKey.DESCRIBE_TRANSACTIONS, "0", flexible="0+")
@declared
class DescribeTransactionsResponse(Message):
    """A result per transactional id."""

    throttle_time_ms: int = field(INT32, "0+")
    transaction_states: list[DescribeTransactionsResponseTransactionState] = field(
        array(DescribeTransactionsResponseTransactionState), "0+"
    )


@request(ApiKey.LIST_TRANSACTIONS, "0-2", flexible="0+")
@declared
class ListTransactionsRequest(Message):
    """1: by duration (KIP-994); 2: by pattern (KIP-1152)."""

    state_filters: list[str] = field(array(STRING), "0+")
    producer_id_filters: list[int] = field(array(INT64), "0+")
    duration_filter: int = field(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = field(STRING, "2+", null="2+", default=None)


@declared
class ListTransactionsResponseTransactionState(Struct):
    transactional_id: str = field(STRING, "0+")
    producer_id: int = field(INT64, "0+")
    transaction_state: str = field(STRING, "0+")


@response(ApiKey.LIST_TRANSACTIONS, "0-2", flexible="0+")
@declared
class ListTransactionsResponse(Message):
    """State filters that are unknown are told back."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    unknown_state_filters: list[str] = field(array(STRING), "0+")
    transaction_states: list[ListTransactionsResponseTransactionState] = field(
        array(ListTransactionsResponseTransactionState), "0+"
    )
