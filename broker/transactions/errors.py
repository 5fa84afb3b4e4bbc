"""What clients are told, by the version of the request: errors that an old client does not know are
told as the older one that means most nearly the same.

"""

from __future__ import annotations

from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode

#: From which version on a client knows PRODUCER_FENCED (KIP-588); before, INVALID_PRODUCER_EPOCH.
FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
#: And TRANSACTION_ABORTABLE (KIP-890); before, INVALID_TXN_STATE.
ABORTABLE_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 4,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 4,
}

#: What clients are told if a record of `__transaction_state` could not be stored (Kafka's
#: `TransactionStateManager.appendTransactionToLog`); others pass as they are.
APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def for_client(error: ErrorCode, api: ApiKey, version: int) -> ErrorCode:
    """The error as a client of this version of the API knows it."""
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE[api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE[api]:
        return ErrorCode.INVALID_TXN_STATE
    return error
