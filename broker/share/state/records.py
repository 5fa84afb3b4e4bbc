"""Records of `__share_group_state` as values of this room, and back. The bytes are Kafka's own
(wire/kafka/records/share_state): any Kafka tool reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.share.ports import ShareKey, StateBatch
from broker.share.state.batches_core import normal
from broker.share.state.share_state_core import KeyState, StateRecord, Tombstone, Update
from wire.kafka.errors import WireError
from wire.kafka.records.share_state import (
    SNAPSHOT_TYPE,
    UPDATE_TYPE,
    BatchTuple,
    decode_share_key,
    decode_snapshot,
    decode_update,
    encode_share_key,
    encode_snapshot,
    encode_update,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.share.state.batches_core import Batches


class Stored(NamedTuple):
    """What a record of the log says."""

    key: ShareKey
    record: StateRecord


def encoded(key: ShareKey, record: StateRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record of the log."""
    if isinstance(record, Update):
        value = encode_update(
            (record.snapshot_epoch, record.leader_epoch),
            record.start_offset,
            record.delivery_complete_count,
            record.batches,
        )
        return encode_share_key(UPDATE_TYPE, *key), value
    name = encode_share_key(SNAPSHOT_TYPE, *key)
    if isinstance(record, Tombstone):
        return name, None
    value = encode_snapshot(
        (record.snapshot_epoch, record.state_epoch, record.leader_epoch),
        record.start_offset,
        record.delivery_complete_count,
        (record.create_ms, record.write_ms),
        record.batches,
    )
    return name, value


def parse_record(key: bytes, value: bytes | None) -> Stored | None:
    """None: of a type that is not known. WireError if it is malformed, or of a version that nobody
    wrote yet: to leave it out would lose acknowledgements."""
    name = decode_share_key(key)
    if name is None:
        return None
    of = ShareKey(name.group_id, name.topic_id, name.partition)
    if value is None:
        return Stored(of, Tombstone())
    if name.record_type == UPDATE_TYPE:
        update, rows = decode_update(value)
        return Stored(
            of,
            Update(
                update.snapshot_epoch,
                update.leader_epoch,
                update.start_offset,
                update.delivery_complete_count,
                _batches(rows, update.start_offset),
            ),
        )
    said, rows = decode_snapshot(value)
    return Stored(
        of,
        KeyState(
            said.snapshot_epoch,
            said.state_epoch,
            said.leader_epoch,
            said.start_offset,
            said.delivery_complete_count,
            _batches(rows, said.start_offset),
            said.create_timestamp,
            said.write_timestamp,
        ),
    )


def _batches(rows: Sequence[BatchTuple], start_offset: int) -> Batches:
    """As this room has them: other writers need not have put them in order."""
    if any(first > last for first, last, _, _ in rows):
        raise WireError("a batch of a share partition's state ends before it begins")
    return normal([StateBatch(*row) for row in rows], start_offset)
