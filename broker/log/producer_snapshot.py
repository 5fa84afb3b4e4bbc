"""One producer as a partition remembers it, and the bytes of all of them in a snapshot.

Owner of the state: `producer_state`, which is these objects' only user.

A snapshot, big endian, is what a SNAPSHOT entry of a ledger holds:

    0 version u16 (= 1)    2 CRC-32C u32 of all that follows    6 end offset i64
    14 producer count u32, then the producers, the one that has not appended for the longest first:
       producer id i64, epoch i16, coordinator epoch i32, last timestamp i64, last append i64 (ms),
       run length i32, transaction start offset i64, unsequenced offset i64, batch count u8, then
       its batches, the oldest first:
          first sequence i32, last sequence i32, base offset i64, log append time i64 (ms)

So 18 bytes, 51 per producer and 24 per batch that is remembered.
"""

import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from wire.buffers import Buffer
from wire.kafka.errors import WireError
from wire.kafka.records.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

SNAPSHOT_VERSION = 1
SEQUENCE_MASK = 2**31 - 1
NO_OFFSET = -1

_HEAD = struct.Struct(">HI")  # version, CRC
_CONTENT_HEAD = struct.Struct(">qI")  # end offset, producer count
_PRODUCER = struct.Struct(">qhiqqiqqB")
_BATCH = struct.Struct(">iiqq")
_RUN_LENGTH_MAX = 2**31 - 1


class Batch(NamedTuple):
    """A batch that would be recognised if it came again."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    log_append_time_ms: int

    @property
    def sequence_count(self) -> int:
        return ((self.last_sequence - self.first_sequence) & SEQUENCE_MASK) + 1


class Producer:
    """What is known of one producer id; -1 where there is nothing.

    `run_length` counts the sequence numbers of this epoch, up to the last one, that are in the log
    without a gap. `unsequenced_offset` is where its last marker, or batch without sequence numbers,
    lies: what a truncation to there cannot undo.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_append_ms",
        "last_sequence",
        "last_timestamp",
        "run_length",
        "transaction_start_offset",
        "unsequenced_offset",
    )

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.last_sequence = NO_SEQUENCE
        self.run_length = 0
        self.batches: list[Batch] = []
        self.last_timestamp = NO_TIMESTAMP
        self.last_append_ms = NO_TIMESTAMP
        self.transaction_start_offset = NO_OFFSET
        self.unsequenced_offset = NO_OFFSET
        self.coordinator_epoch = -1

    def copy(self) -> "Producer":
        """Another one that is equal and shares nothing that changes."""
        other = Producer()
        for name in Producer.__slots__:
            setattr(other, name, getattr(self, name))
        other.batches = self.batches.copy()
        return other

    def begin_epoch(self, epoch: int) -> None:
        """A new epoch's sequence numbers begin anew, and no batch of the old one comes again."""
        self.epoch = epoch
        self.last_sequence = NO_SEQUENCE
        self.run_length = 0
        self.batches.clear()


def encode_snapshot(producers: Mapping[int, Producer], end_offset: int) -> bytes:
    """The bytes of `producers`, in their order, and of where in the log they are right."""
    pieces = [_CONTENT_HEAD.pack(end_offset, len(producers))]
    for producer_id, producer in producers.items():
        pieces.append(
            _PRODUCER.pack(
                producer_id,
                producer.epoch,
                producer.coordinator_epoch,
                producer.last_timestamp,
                producer.last_append_ms,
                min(producer.run_length, _RUN_LENGTH_MAX),
                producer.transaction_start_offset,
                producer.unsequenced_offset,
                len(producer.batches),
            )
        )
        pieces.extend([_BATCH.pack(*batch) for batch in producer.batches])
    content = b"".join(pieces)
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(content)) + content


def decode_snapshot(data: Buffer) -> tuple[OrderedDict[int, Producer], int]:
    """The producers and the end offset that were encoded.

    WireError if the bytes are damaged, cut short, too many or of a version that is not known.
    """
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise WireError(f"producer snapshot has version {version}, not {SNAPSHOT_VERSION}")
        if crc32c(memoryview(data)[_HEAD.size :]) != crc:
            raise WireError(f"producer snapshot of {len(data)} bytes fails its CRC")
        end_offset, count = _CONTENT_HEAD.unpack_from(data, _HEAD.size)
        producers: OrderedDict[int, Producer] = OrderedDict()
        position = _HEAD.size + _CONTENT_HEAD.size
        for _ in range(count):
            producer_id, producer, position = _read_producer(data, position)
            producers[producer_id] = producer
    except struct.error as error:
        raise WireError(f"producer snapshot of {len(data)} bytes: {error}") from None
    if position != len(data):
        raise WireError(f"producer snapshot has {len(data) - position} bytes too many")
    return producers, end_offset


def _read_producer(data: Buffer, position: int) -> tuple[int, Producer, int]:
    producer = Producer()
    (
        producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.last_timestamp,
        producer.last_append_ms,
        producer.run_length,
        producer.transaction_start_offset,
        producer.unsequenced_offset,
        batch_count,
    ) = _PRODUCER.unpack_from(data, position)
    position += _PRODUCER.size
    for _ in range(batch_count):
        producer.batches.append(Batch._make(_BATCH.unpack_from(data, position)))
        position += _BATCH.size
    if producer.batches:
        producer.last_sequence = producer.batches[-1].last_sequence
    return producer_id, producer, position
