"""What `__share_group_state` holds (KIP-932): the state of share partitions.

    0 ShareSnapshotKey -> ShareSnapshotValue   all of it; a null value: it is gone
    1 ShareUpdateKey -> ShareUpdateValue       what changed since the snapshot

A key is `record type i16` and its fields, a value `version i16` and its fields, as Kafka writes
them (ShareGroupStateMessageFormatter reads them). Keys of other types are for readers to leave
alone (KIP-915). Names are those of Kafka's JSON definitions in snake_case.

A state may have thousands of batches, each of 20 bytes. So there are two ways to read and to write
a value: by its declaration, which is what tools use, and by `struct`, twenty times as fast, which
is what the coordinator uses. A value that has tagged fields which are not known is read by its
declaration.
"""

import struct
import uuid
from collections.abc import Sequence
from itertools import chain, starmap
from typing import NamedTuple, TypeVar

from wire.buffers import Buffer
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode
from wire.kafka.errors import WireError
from wire.kafka.message import INT8, INT16, INT32, INT64, STRING, UUID, Message, array, field
from wire.kafka.records.stored import stored
from wire.kafka.structs import Struct, declared

M = TypeVar("M", bound=Message)
_WRITE = ApiKey.WRITE_SHARE_GROUP_STATE

SNAPSHOT_TYPE = 0
UPDATE_TYPE = 1
VALUE_VERSION = 0


@stored(_WRITE, "0")
@declared
class ShareSnapshotKey(Message):
    """Which share partition."""

    group_id: str = field(STRING, "0")
    topic_id: uuid.UUID = field(UUID, "0")
    partition: int = field(INT32, "0")


@stored(_WRITE, "0")
@declared
class ShareUpdateKey(Message):
    """Which share partition."""

    group_id: str = field(STRING, "0")
    topic_id: uuid.UUID = field(UUID, "0")
    partition: int = field(INT32, "0")


@declared
class StoredStateBatch(Struct):
    """`delivery_state`: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int = field(INT64, "0+")
    last_offset: int = field(INT64, "0+")
    delivery_state: int = field(INT8, "0+")
    delivery_count: int = field(INT16, "0+")


@stored(_WRITE, "0", flexible="0+")
@declared
class ShareSnapshotValue(Message):
    """Timestamps are in ms since 1970."""

    snapshot_epoch: int = field(INT32, "0+")
    state_epoch: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")
    delivery_complete_count: int = field(INT32, "0+", default=-1, tag=0)
    create_timestamp: int = field(INT64, "0+")
    write_timestamp: int = field(INT64, "0+")
    state_batches: list[StoredStateBatch] = field(array(StoredStateBatch), "0+")


@stored(_WRITE, "0", flexible="0+")
@declared
class ShareUpdateValue(Message):
    """`start_offset` -1: it did not change."""

    snapshot_epoch: int = field(INT32, "0+")
    leader_epoch: int = field(INT32, "0+")
    start_offset: int = field(INT64, "0+")
    delivery_complete_count: int = field(INT32, "0+", default=-1, tag=0)
    state_batches: list[StoredStateBatch] = field(array(StoredStateBatch), "0+")


class ShareStateKey(NamedTuple):
    """`record_type`: SNAPSHOT_TYPE or UPDATE_TYPE."""

    record_type: int
    group_id: str
    topic_id: uuid.UUID
    partition: int


#: (first offset, last offset, delivery state, delivery count)
BatchTuple = tuple[int, int, int, int]

_KEY_CLASSES: dict[int, type[ShareSnapshotKey | ShareUpdateKey]] = {
    SNAPSHOT_TYPE: ShareSnapshotKey,
    UPDATE_TYPE: ShareUpdateKey,
}
SHARE_STATE_VALUES: dict[type[Message], type[Message]] = {
    ShareSnapshotKey: ShareSnapshotValue,
    ShareUpdateKey: ShareUpdateValue,
}

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
#: Behind the version.
_SNAPSHOT_HEAD = struct.Struct(">hiiiqqq")
_UPDATE_HEAD = struct.Struct(">hiiq")
#: And the count of tagged fields, none of which is known.
_BATCH = struct.Struct(">qqbhB")


def encode_share_key(record_type: int, group_id: str, topic_id: uuid.UUID, partition: int) -> bytes:
    group = group_id.encode()
    return b"".join(
        (_INT16.pack(record_type), _INT16.pack(len(group)), group, topic_id.bytes,
         _INT32.pack(partition))
    )  # fmt: skip


def decode_share_key(data: Buffer | None) -> ShareStateKey | None:
    """None for a record type that is not known. WireError if it is null or malformed."""
    message = decode_share_key_message(data)
    if message is None:
        return None
    record_type = SNAPSHOT_TYPE if isinstance(message, ShareSnapshotKey) else UPDATE_TYPE
    return ShareStateKey(record_type, message.group_id, message.topic_id, message.partition)


def decode_share_key_message(data: Buffer | None) -> ShareSnapshotKey | ShareUpdateKey | None:
    """As `decode_share_key`."""
    record_type = _prefix(data, "key of __share_group_state")
    cls = _KEY_CLASSES.get(record_type)
    return None if cls is None else _decode_body(cls, 0, data)


def encode_snapshot(
    epochs: tuple[int, int, int],
    start_offset: int,
    delivery_complete_count: int,
    timestamps: tuple[int, int],
    batches: Sequence[BatchTuple],
) -> bytes:
    """A ShareSnapshotValue. `epochs`: snapshot, state, leader; `timestamps`: create, write."""
    head = _SNAPSHOT_HEAD.pack(VALUE_VERSION, *epochs, start_offset, *timestamps)
    return head + _encode_batches(batches) + _encode_tags(delivery_complete_count)


def encode_update(
    epochs: tuple[int, int],
    start_offset: int,
    delivery_complete_count: int,
    batches: Sequence[BatchTuple],
) -> bytes:
    """A ShareUpdateValue. `epochs`: snapshot, leader."""
    head = _UPDATE_HEAD.pack(VALUE_VERSION, *epochs, start_offset)
    return head + _encode_batches(batches) + _encode_tags(delivery_complete_count)


def decode_snapshot(data: Buffer) -> tuple[ShareSnapshotValue, list[BatchTuple]]:
    """The value, and its batches; those of the value itself are empty. WireError if it is malformed
    or of a version that is not known: to leave it out would lose what it says."""
    found = _decode_quickly(data, _SNAPSHOT_HEAD)
    if found is None:
        value = decode_share_value(ShareSnapshotValue, data)
        return value, _tuples(value)
    (_, snapshot, state, leader, start_offset, created, written), batches, count = found
    return (
        ShareSnapshotValue(snapshot, state, leader, start_offset, count, created, written, []),
        batches,
    )


def decode_update(data: Buffer) -> tuple[ShareUpdateValue, list[BatchTuple]]:
    """As `decode_snapshot`."""
    found = _decode_quickly(data, _UPDATE_HEAD)
    if found is None:
        value = decode_share_value(ShareUpdateValue, data)
        return value, _tuples(value)
    (_, snapshot, leader, start_offset), batches, count = found
    return ShareUpdateValue(snapshot, leader, start_offset, count, []), batches


def decode_share_value(cls: type[M], data: Buffer) -> M:
    """By its declaration. WireError as of `decode_snapshot`."""
    return _decode_body(cls, _prefix(data, cls.__name__), data)


def _tuples(value: ShareSnapshotValue | ShareUpdateValue) -> list[BatchTuple]:
    batches, value.state_batches = value.state_batches, []
    return [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in batches
    ]


def _encode_batches(batches: Sequence[BatchTuple]) -> bytes:
    flat = chain.from_iterable((*batch, 0) for batch in batches)
    return _varint(len(batches) + 1) + struct.pack(">" + "qqbhB" * len(batches), *flat)


def _encode_tags(delivery_complete_count: int) -> bytes:
    if delivery_complete_count == -1:
        return b"\0"
    return b"\x01\x00\x04" + _INT32.pack(delivery_complete_count)


def _decode_quickly(
    data: Buffer, head: struct.Struct
) -> tuple[tuple[int, ...], list[BatchTuple], int] | None:
    """(head, batches, complete deliveries), or None if it is not what `encode_*` makes."""
    view = memoryview(data)
    if len(view) <= head.size or _INT16.unpack_from(view)[0] != VALUE_VERSION:
        return None
    count, at = 0, head.size
    for shift in range(0, 28, 7):
        if at >= len(view):
            return None
        byte = view[at]
        count |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
    end = at + (count - 1) * _BATCH.size
    if count < 1 or end >= len(view):
        return None
    rows = list(_BATCH.iter_unpack(view[at:end]))
    if any(row[4] for row in rows):
        return None
    tags = bytes(view[end:])
    if tags == b"\0":
        complete = -1
    elif len(tags) == 7 and tags[:3] == b"\x01\x00\x04":
        complete = _INT32.unpack_from(tags, 3)[0]
    else:
        return None
    return head.unpack_from(view), list(starmap(_without_tags, rows)), complete


def _without_tags(first: int, last: int, state: int, count: int, _tags: int) -> BatchTuple:
    return first, last, state, count


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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
