"""Control records, and the records of `__consumer_offsets`, `__transaction_state` and
`__share_group_state`, as fields.

What cannot be decoded is shown as bytes, with `decode_error`: that is no damage, for it may be of
a newer version, or of another topic.
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any

from wire.kafka.errors import WireError
from wire.kafka.records.control import decode_control_type, decode_end_transaction_marker
from wire.kafka.records.coordinator import (
    GROUP_VALUES,
    TransactionLogValue,
    decode_group_key,
    decode_transaction_key,
    decode_value,
)
from wire.kafka.records.share_state import (
    SHARE_STATE_VALUES,
    decode_share_key_message,
    decode_share_value,
)
from wire.kafka.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wire.kafka.message import Message
    from wire.kafka.records.record import Record

#: Of TransactionLogValue.transaction_status, as TransactionState.java numbers them.
_TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
#: As SharePartition's RecordState numbers them.
_DELIVERY_STATES = {
    0: "Available",
    1: "Acquired",
    2: "Acknowledged",
    3: "Archiving",
    4: "Archived",
}


def control_fields(record: Record) -> dict[str, Any]:
    """What a record of a control batch says."""
    try:
        control_type = decode_control_type(record.key)
        marker = decode_end_transaction_marker(record)
    except WireError as error:
        return _undecoded(record, error)
    if control_type is None:
        return _undecoded(record, "a control record of a type that is not known")
    if marker is not None:
        return {"control": control_type.name, "coordinator_epoch": marker.coordinator_epoch}
    return {"control": control_type.name, "value": record.value}


def decode_group(record: Record) -> dict[str, Any]:
    """A record of `__consumer_offsets`."""
    try:
        key = decode_group_key(record.key)
        if key is None:
            return _undecoded(record, "a key of a type that is not known")
        value: Message | None = decode_value(GROUP_VALUES[type(key)], record.value)
    except WireError as error:
        return _undecoded(record, error)
    return _decoded(record, key, value)


def decode_transaction(record: Record) -> dict[str, Any]:
    """A record of `__transaction_state`."""
    try:
        key = decode_transaction_key(record.key)
        if key is None:
            return _undecoded(record, "a key of a type that is not known")
        value = decode_value(TransactionLogValue, record.value)
    except WireError as error:
        return _undecoded(record, error)
    fields = _decoded(record, key, value)
    if value is not None and 0 <= value.transaction_status < len(_TRANSACTION_STATES):
        fields["value"]["transaction_status"] = _TRANSACTION_STATES[value.transaction_status]
    return fields


def decode_share_state(record: Record) -> dict[str, Any]:
    """A record of `__share_group_state`."""
    try:
        key = decode_share_key_message(record.key)
        if key is None:
            return _undecoded(record, "a key of a type that is not known")
        value = record.value
        decoded = (
            None if value is None else decode_share_value(SHARE_STATE_VALUES[type(key)], value)
        )
    except WireError as error:
        return _undecoded(record, error)
    fields = _decoded(record, key, decoded)
    for batch in [] if decoded is None else fields["value"]["state_batches"]:
        state = batch["delivery_state"]
        batch["delivery_state"] = _DELIVERY_STATES.get(state, state)
    return fields


#: By the name of the option that asks for it.
DECODERS: Mapping[str, Callable[[Record], dict[str, Any]]] = {
    "offsets": decode_group,
    "transactions": decode_transaction,
    "share": decode_share_state,
}


def _decoded(record: Record, key: Message, value: Message | None) -> dict[str, Any]:
    assert record.key is not None
    key_type = int.from_bytes(record.key[:2], "big")
    shown_key = {"type": key_type, "kind": type(key).__name__, **_plain_fields(key)}
    if value is None:
        return {"key": shown_key, "value": None}
    assert record.value is not None
    version = int.from_bytes(record.value[:2], "big")
    return {"key": shown_key, "value": {"version": version, **_plain_fields(value)}}


def _undecoded(record: Record, why: object) -> dict[str, Any]:
    return {"key": record.key, "value": record.value, "decode_error": str(why)}


def _plain_fields(value: Message | Struct) -> dict[str, object]:
    # All of them are dataclasses, which their base classes do not say.
    names = [field.name for field in fields_of(value)]
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: object) -> object:
    if isinstance(value, Struct):
        return _plain_fields(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bytes | int | str):
        return value
    return str(value)
