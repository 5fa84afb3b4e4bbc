"""One producer as a partition remembers it, and the bytes of all of them in a snapshot.

Owner of the state: `producer_state`, which is these objects' only user.

A snapshot, big endian, is what a SNAPSHOT entry of a ledger holds:

    0 version u16 (= 1)    2 CRC-32C u32 of all that follows    6 end offset i64
    14 producer count u32, then the producers, the one that has not appended for the longest first:
       producer id i64, epoch i16, coordinator epoch i32, last timestamp i64, last append i64 (ms),
       run length i32, transaction start offset i64, unsequenced offset i64, batch count u8, then
       its batches, the oldest first:
          first sequence i32, last sequence i32, base offset i64, log append time i64 (ms)

So 18 bytes, 51 per producer and 24 per batch that is remembered. More producers than
PART_PRODUCERS_MAX make several parts: each is a snapshot of some of them, with the same end offset,
in an entry of its own (342 KB at most), one behind the other. All but the last of these entries
carry FLAG_CONTINUES, all but the first FLAG_CONTINUED. One turn of the loop encodes and writes one.

A producer that has not appended for a while is kept as these bytes, too (`pack_producer`).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
#: Of a packed producer: its id, where its transaction began, the number of its batches.
_FACTS = struct.Struct(">q26xq8xB")
_LAST_APPEND = struct.Struct(">22xq")
assert _FACTS.size == _PRODUCER.size
PART_PRODUCERS_MAX = 2_000


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


def pack_producer(producer_id: int, producer: Producer) -> bytes:
    """A producer's bytes in a snapshot."""
    batches = producer.batches
    return _PRODUCER.pack(
        producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.last_timestamp,
        producer.last_append_ms,
        min(producer.run_length, _RUN_LENGTH_MAX),
        producer.transaction_start_offset,
        producer.unsequenced_offset,
        len(batches),
    ) + b"".join([_BATCH.pack(*batch) for batch in batches])


def unpack_producer(packed: bytes) -> Producer:
    """The producer of `pack_producer`."""
    producer = Producer()
    (
        _,
        producer.epoch,
        producer.coordinator_epoch,
        producer.last_timestamp,
        producer.last_append_ms,
        producer.run_length,
        producer.transaction_start_offset,
        producer.unsequenced_offset,
        _,
    ) = _PRODUCER.unpack_from(packed)
    producer.batches = [*map(Batch._make, _BATCH.iter_unpack(packed[_PRODUCER.size :]))]
    if producer.batches:
        producer.last_sequence = producer.batches[-1].last_sequence
    return producer


def last_append_of(packed: bytes) -> int:
    """When a packed producer appended last (ms)."""
    last_append_ms: int = _LAST_APPEND.unpack_from(packed)[0]
    return last_append_ms


def encode_snapshot(packed: Sequence[bytes], end_offset: int) -> list[Callable[[], bytes]]:
    """The parts of a snapshot of packed producers, in their order, and of where in the log they
    are right; one part at least. Each is encoded when it is called."""
    return [
        partial(_encode_part, packed[start : start + PART_PRODUCERS_MAX], end_offset)
        for start in range(0, max(len(packed), 1), PART_PRODUCERS_MAX)
    ]


def _encode_part(packed: Sequence[bytes], end_offset: int) -> bytes:
    content = b"".join([_CONTENT_HEAD.pack(end_offset, len(packed)), *packed])
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(content)) + content


def decode_snapshot(data: Buffer) -> tuple[int, Iterator[tuple[int, int, bytes]]]:
    """The end offset of one part, and its producers: (id, where its transaction began, packed).

    WireError if the bytes are damaged or of a version that is not known, at once; if they are cut
    short or too many for what they say, when iteration arrives there.
    """
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise WireError(f"producer snapshot has version {version}, not {SNAPSHOT_VERSION}")
        if crc32c(memoryview(data)[_HEAD.size :]) != crc:
            raise WireError(f"producer snapshot of {len(data)} bytes fails its CRC")
        end_offset, count = _CONTENT_HEAD.unpack_from(data, _HEAD.size)
    except struct.error as error:
        raise WireError(f"producer snapshot of {len(data)} bytes: {error}") from None
    return end_offset, _producers(bytes(data), count)


def _producers(data: bytes, count: int) -> Iterator[tuple[int, int, bytes]]:
    position = _HEAD.size + _CONTENT_HEAD.size
    size = len(data)
    for _ in range(count):
        start = position
        try:
            producer_id, transaction_start, batch_count = _FACTS.unpack_from(data, start)
        except struct.error as error:
            raise WireError(f"producer snapshot of {size} bytes: {error}") from None
        position = start + _PRODUCER.size + batch_count * _BATCH.size
        if position > size:
            raise WireError(f"producer snapshot of {size} bytes is cut short")
        yield producer_id, transaction_start, data[start:position]
    if position != size:
        raise WireError(f"producer snapshot has {size - position} bytes too many")
