"""Control records: what the log says to brokers and consumers instead of to applications.

A batch with the control attribute holds one record. Its key is `version i16, type i16`; the value
of an end-of-transaction marker (KIP-98) is `version i16, coordinator epoch i32`. Both have version
0 so far; newer ones only add bytes behind, so readers look at what they know (as Kafka's do).
"""

import struct
from enum import IntEnum

from wire.dataclass import dataclass
from wire.kafka.errors import WireError
from wire.kafka.records.batch import NO_LEADER_EPOCH, NO_SEQUENCE, build_batch
from wire.kafka.records.record import Record

CONTROL_VERSION = 0  # of keys and of end-of-transaction values alike
_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """Kafka's control record types. Those from LEADER_CHANGE on are KRaft's own."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(slots=True, frozen=True)
class EndTransactionMarker:
    """The end of a producer's transaction in one partition.

    `coordinator_epoch` is the leader epoch of the `__transaction_state` partition that decided:
    a marker of an older coordinator than the last one is refused.
    """

    committed: bool
    coordinator_epoch: int


def encode_control_key(control_type: ControlType) -> bytes:
    """The key of a control record."""
    return _KEY.pack(CONTROL_VERSION, control_type)


def decode_control_type(key: bytes | None) -> ControlType | None:
    """The type that a control record's key tells; None for one that is not known (yet).

    WireError if the key is null, too short, or of a negative version.
    """
    if key is None or len(key) < _KEY.size:
        size = "null" if key is None else f"{len(key)} bytes"
        raise WireError(f"control record key is {size}, needs {_KEY.size} bytes")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise WireError(f"control record key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return None


def decode_end_transaction_marker(record: Record) -> EndTransactionMarker | None:
    """The marker that a control batch's record is; None for a control record of another type.

    WireError if key or value is malformed.
    """
    control_type = decode_control_type(record.key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = record.value
    if value is None or len(value) < _END_TRANSACTION_VALUE.size:
        size = "null" if value is None else f"{len(value)} bytes"
        raise WireError(f"end of transaction is {size}, needs {_END_TRANSACTION_VALUE.size} bytes")
    version, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(value)
    if version < 0:
        raise WireError(f"end of transaction has version {version}")
    return EndTransactionMarker(control_type is ControlType.COMMIT, coordinator_epoch)


def build_end_transaction_batch(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The batch of one record that ends `producer_id`'s transaction in a partition."""
    control_type = ControlType.COMMIT if marker.committed else ControlType.ABORT
    value = _END_TRANSACTION_VALUE.pack(CONTROL_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(0, 0, encode_control_key(control_type), value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        base_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        is_transactional=True,
        is_control=True,
    )
