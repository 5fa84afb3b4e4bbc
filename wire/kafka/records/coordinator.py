"""What the coordinators' topics hold: records of `__consumer_offsets` and `__transaction_state`.

A key is `record type i16` and its fields, a value `version i16` and its fields, so that any Kafka
broker or tool (GroupMetadataMessageFormatter, TransactionLogMessageFormatter) reads them. A null
value is a tombstone: the offset expired or was deleted, the group or transactional id is gone.

    __consumer_offsets    0 and 1 OffsetCommitKey -> OffsetCommitValue (0: from before Kafka 0.9)
                          2 GroupMetadataKey -> GroupMetadataValue: a group of the classic protocol
                          3, 5, 6, 7, 8, 16: groups of the consumer protocol (consumer_group.py)
                          10 to 15: share groups (share_group.py)
                          17, 19 to 23: streams groups (streams_group.py)
    __transaction_state   0 TransactionLogKey -> TransactionLogValue

Keys of types that are not known are for readers to leave alone (KIP-915). Names are those of
Kafka's JSON definitions in snake_case; times are in ms since 1970.
"""

import struct
import uuid
from typing import TypeVar

from wire.buffers import Buffer
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode, encode
from wire.kafka.errors import WireError
from wire.kafka.message import BYTES, INT8, INT16, INT32, INT64, STRING, UUID, Message, array, field
from wire.kafka.records.consumer_group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from wire.kafka.records.share_group import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from wire.kafka.records.stored import stored
from wire.kafka.records.streams_group import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from wire.kafka.structs import Struct, declared

M = TypeVar("M", bound=Message)
_INT16 = struct.Struct(">h")


@stored(ApiKey.OFFSET_COMMIT, "0")
@declared
class OffsetCommitKey(Message):
    """Whose offset, of what."""

    group: str = field(STRING, "0")
    topic: str = field(STRING, "0")
    partition: int = field(INT32, "0")


@stored(ApiKey.OFFSET_COMMIT, "0-4", flexible="4+")
@declared
class OffsetCommitValue(Message):
    """A group's committed offset. `expire_timestamp` is of clients older than KIP-211."""

    offset: int = field(INT64, "0+")
    leader_epoch: int = field(INT32, "3+", default=-1)
    metadata: str = field(STRING, "0+")
    commit_timestamp: int = field(INT64, "0+")
    expire_timestamp: int = field(INT64, "1", default=-1)
    topic_id: uuid.UUID = field(UUID, "4+", tag=0)


@stored(ApiKey.JOIN_GROUP, "0")
@declared
class GroupMetadataKey(Message):
    """Which group."""

    group: str = field(STRING, "0")


@declared
class MemberMetadata(Struct):
    """A member as of the last completed rebalance; timeouts in ms."""

    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "3+", null="3+", default=None)
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    rebalance_timeout: int = field(INT32, "1+", default=-1)
    session_timeout: int = field(INT32, "0+")
    subscription: bytes = field(BYTES, "0+")
    assignment: bytes = field(BYTES, "0+")


@stored(ApiKey.JOIN_GROUP, "0-4", flexible="4+")
@declared
class GroupMetadataValue(Message):
    """A classic group's generation; without members it is empty, its offsets still count."""

    protocol_type: str = field(STRING, "0+")
    generation: int = field(INT32, "0+")
    protocol: str | None = field(STRING, "0+", null="0+")
    leader: str | None = field(STRING, "0+", null="0+")
    current_state_timestamp: int = field(INT64, "2+", default=-1)
    members: list[MemberMetadata] = field(array(MemberMetadata), "0+")


@stored(ApiKey.INIT_PRODUCER_ID, "0")
@declared
class TransactionLogKey(Message):
    """Which transactional id."""

    transactional_id: str = field(STRING, "0")


@declared
class PartitionsSchema(Struct):
    """Partitions of one topic that take part in a transaction."""

    topic: str = field(STRING, "0+")
    partition_ids: list[int] = field(array(INT32), "0+")


@stored(ApiKey.INIT_PRODUCER_ID, "0-1", flexible="1+")
@declared
class TransactionLogValue(Message):
    """A transactional id's state. The partitions are null while there is no transaction."""

    producer_id: int = field(INT64, "0+")
    previous_producer_id: int = field(INT64, "1+", tag=0, default=-1)
    next_producer_id: int = field(INT64, "1+", tag=1, default=-1)
    producer_epoch: int = field(INT16, "0+")
    next_producer_epoch: int = field(INT16, "1+", tag=3, default=-1)
    transaction_timeout_ms: int = field(INT32, "0+")
    transaction_status: int = field(INT8, "0+")
    transaction_partitions: list[PartitionsSchema] | None = field(
        array(PartitionsSchema), "0+", null="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64, "0+")
    transaction_start_timestamp_ms: int = field(INT64, "0+")
    client_transaction_version: int = field(INT16, "1+", tag=2, default=0)


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ShareGroupKey = (
    ShareGroupMetadataKey
    | ShareGroupMemberMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)
GroupKey = OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey | ShareGroupKey | StreamsGroupKey

LEGACY_OFFSET_COMMIT_TYPE = 0

#: The record type that each kind of key is written with.
RECORD_TYPES: dict[type[Message], int] = {
    OffsetCommitKey: 1,
    GroupMetadataKey: 2,
    ConsumerGroupMetadataKey: 3,
    ConsumerGroupMemberMetadataKey: 5,
    ConsumerGroupTargetAssignmentMetadataKey: 6,
    ConsumerGroupTargetAssignmentMemberKey: 7,
    ConsumerGroupCurrentMemberAssignmentKey: 8,
    ConsumerGroupRegularExpressionKey: 16,
    ShareGroupMemberMetadataKey: 10,
    ShareGroupMetadataKey: 11,
    ShareGroupTargetAssignmentMetadataKey: 12,
    ShareGroupTargetAssignmentMemberKey: 13,
    ShareGroupCurrentMemberAssignmentKey: 14,
    ShareGroupStatePartitionMetadataKey: 15,
    StreamsGroupMetadataKey: 17,
    StreamsGroupMemberMetadataKey: 19,
    StreamsGroupTargetAssignmentMetadataKey: 20,
    StreamsGroupTargetAssignmentMemberKey: 21,
    StreamsGroupCurrentMemberAssignmentKey: 22,
    StreamsGroupTopologyKey: 23,
    TransactionLogKey: 0,
}

#: Of a group, what its records say: the class of the value by that of the key.
GROUP_VALUES: dict[type[Message], type[Message]] = {
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey: ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataKey: ShareGroupTargetAssignmentMetadataValue,
    ShareGroupTargetAssignmentMemberKey: ShareGroupTargetAssignmentMemberValue,
    ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
    ShareGroupStatePartitionMetadataKey: ShareGroupStatePartitionMetadataValue,
    StreamsGroupMetadataKey: StreamsGroupMetadataValue,
    StreamsGroupMemberMetadataKey: StreamsGroupMemberMetadataValue,
    StreamsGroupTargetAssignmentMetadataKey: StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTargetAssignmentMemberKey: StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupCurrentMemberAssignmentKey: StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupTopologyKey: StreamsGroupTopologyValue,
}

#: The version that Kafka 4.3 writes. A commit with an expiry of its own has version 1, the only
#: one that can say so.
VALUE_VERSIONS: dict[type[Message], int] = {
    OffsetCommitValue: 4,
    GroupMetadataValue: 3,
    ConsumerGroupMetadataValue: 0,
    ConsumerGroupMemberMetadataValue: 0,
    ConsumerGroupTargetAssignmentMetadataValue: 0,
    ConsumerGroupTargetAssignmentMemberValue: 0,
    ConsumerGroupCurrentMemberAssignmentValue: 0,
    ConsumerGroupRegularExpressionValue: 0,
    ShareGroupMemberMetadataValue: 0,
    ShareGroupMetadataValue: 0,
    ShareGroupTargetAssignmentMetadataValue: 0,
    ShareGroupTargetAssignmentMemberValue: 0,
    ShareGroupCurrentMemberAssignmentValue: 0,
    ShareGroupStatePartitionMetadataValue: 0,
    StreamsGroupMetadataValue: 0,
    StreamsGroupMemberMetadataValue: 0,
    StreamsGroupTargetAssignmentMetadataValue: 0,
    StreamsGroupTargetAssignmentMemberValue: 0,
    StreamsGroupCurrentMemberAssignmentValue: 0,
    StreamsGroupTopologyValue: 0,
    TransactionLogValue: 1,
}

#: What consumers of the classic protocol exchange; the newest versions that are known.
CONSUMER_PROTOCOL_VERSION = 3


def encode_key(key: Message) -> bytes:
    """A key with its record type in front. EncodeError if a value does not suit its field."""
    return _INT16.pack(RECORD_TYPES[type(key)]) + encode(key, 0)


def encode_value(value: Message, version: int | None = None) -> bytes:
    """A value with its version in front: that of VALUE_VERSIONS if None.

    Fields that the version does not carry are left out. EncodeError if a value does not suit.
    """
    if version is None:
        version = VALUE_VERSIONS[type(value)]
        if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
            version = 1
    return _INT16.pack(version) + encode(value, version)


def decode_group_key(data: Buffer | None) -> GroupKey | None:
    """A key of `__consumer_offsets`; None for a record type that is not known.

    WireError if it is null or malformed.
    """
    cls = _GROUP_KEYS.get(_prefix(data, "key of __consumer_offsets"))
    return None if cls is None else _decode_body(cls, 0, data)


_GROUP_KEYS: dict[int, type[GroupKey]] = {
    LEGACY_OFFSET_COMMIT_TYPE: OffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
    3: ConsumerGroupMetadataKey,
    5: ConsumerGroupMemberMetadataKey,
    6: ConsumerGroupTargetAssignmentMetadataKey,
    7: ConsumerGroupTargetAssignmentMemberKey,
    8: ConsumerGroupCurrentMemberAssignmentKey,
    10: ShareGroupMemberMetadataKey,
    11: ShareGroupMetadataKey,
    12: ShareGroupTargetAssignmentMetadataKey,
    13: ShareGroupTargetAssignmentMemberKey,
    14: ShareGroupCurrentMemberAssignmentKey,
    15: ShareGroupStatePartitionMetadataKey,
    16: ConsumerGroupRegularExpressionKey,
    17: StreamsGroupMetadataKey,
    19: StreamsGroupMemberMetadataKey,
    20: StreamsGroupTargetAssignmentMetadataKey,
    21: StreamsGroupTargetAssignmentMemberKey,
    22: StreamsGroupCurrentMemberAssignmentKey,
    23: StreamsGroupTopologyKey,
}


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """A classic consumer's metadata. Later versions only add fields, so one that is not known is
    read as the newest that is, as Kafka does. WireError if it is malformed."""
    return _decode_protocol(ConsumerProtocolSubscription, data)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """A classic consumer's assignment. WireError if it is malformed."""
    return _decode_protocol(ConsumerProtocolAssignment, data)


def encode_protocol(message: Message, version: int) -> bytes:
    """A subscription or an assignment, with its version in front."""
    version = min(max(version, 0), CONSUMER_PROTOCOL_VERSION)
    return _INT16.pack(version) + encode(message, version)


def _decode_protocol(cls: type[M], data: Buffer) -> M:
    version = _prefix(data, cls.__name__)
    if version < 0:
        raise WireError(f"{cls.__name__} of version {version}")
    message, _ = decode(cls, min(version, CONSUMER_PROTOCOL_VERSION), data, _INT16.size)
    return message


def decode_transaction_key(data: Buffer | None) -> TransactionLogKey | None:
    """A key of `__transaction_state`; None for a record type that is not known.

    WireError if it is null or malformed.
    """
    if _prefix(data, "key of __transaction_state") != RECORD_TYPES[TransactionLogKey]:
        return None
    return _decode_body(TransactionLogKey, 0, data)


def decode_value(cls: type[M], data: Buffer | None) -> M | None:
    """A value of the class that its key calls for; None for a tombstone.

    WireError if it is malformed or of a version that is not known: to leave out what a newer
    coordinator wrote would lose an offset or a transaction.
    """
    if data is None:
        return None
    return _decode_body(cls, _prefix(data, cls.__name__), data)


def _prefix(data: Buffer | None, what: str) -> int:
    if data is None or len(data) < _INT16.size:
        raise WireError(f"{what} is {'null' if data is None else f'{len(data)} bytes'}")
    number: int = _INT16.unpack_from(data)[0]
    return number


def _decode_body(cls: type[M], version: int, data: Buffer | None) -> M:
    assert data is not None
    message, end = decode(cls, version, data, _INT16.size)
    if end != len(data):
        raise WireError(f"{cls.__name__} of version {version}: {len(data) - end} bytes too many")
    return message
