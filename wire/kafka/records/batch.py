"""Record batches of version 2 («magic» 2, KIP-98): the unit of Kafka's log, of produce and fetch.

Bytes, big endian; the number is the offset of the field:

    0 base offset i64        12 partition leader epoch i32   21 attributes i16
    8 batch length i32       16 magic i8 (= 2)               23 last offset delta i32
      (of what follows it)   17 CRC-32C u32 (from 21 on)     27 base timestamp i64 (ms)
    35 max timestamp i64     43 producer id i64  51 producer epoch i16  53 base sequence i32
    57 record count i32      61 records, compressed as a whole if the attributes say so

Attributes: bits 0-2 compression, 3 timestamp type (1 = log append time), 4 transactional,
5 control, 6 the base timestamp is a delete horizon (KIP-534).

Base offset and leader epoch lie before the CRC's range: a broker sets them without a new CRC.

Owner of the state: nobody. A header is a value; buffers stay their owner's. Nothing here looks at
what a broker permits (sequences, timestamps, sizes): it gives the facts.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from wire.buffers import Buffer
from wire.kafka.errors import EncodeError, WireError
from wire.kafka.records.compression import Compression, compress, decompress
from wire.kafka.records.record import Record, encode_record, read_records

BATCH_OVERHEAD = 61  # the header's size: the least that a batch can have
LENGTH_OVERHEAD = 12  # base offset and batch length: what the batch length does not count
MAGIC = 2

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_LEADER_EPOCH_OFFSET = 12
_MAGIC_OFFSET = 16
_CRC_OFFSET = 17
_CRC_START = 21  # the attributes: from here on the CRC covers everything
_MAX_TIMESTAMP_OFFSET = 35
assert _HEADER.size == BATCH_OVERHEAD

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

_INT32_MAX = 2**31 - 1
_COMPRESSION_OF = {int(codec): codec for codec in Compression}


class TimestampType(IntEnum):
    """Whose clock a batch's timestamps are from."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """A batch's header as it was in the buffer. Later changes of the buffer do not show."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last offset; numbers go on at 0 after 2**31 - 1. -1 if none."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _INT32_MAX

    @property
    def compression(self) -> Compression:
        """WireError for the numbers that stand for no codec (5 to 7)."""
        codec = _COMPRESSION_OF.get(self.attributes & COMPRESSION_MASK)
        if codec is None:
            raise WireError(f"unknown compression {self.attributes & COMPRESSION_MASK}")
        return codec

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & TIMESTAMP_TYPE_MASK:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on compaction may drop the batch's tombstones and markers (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    def timestamp_of(self, record: Record) -> int:
        """A record's timestamp in ms: the append time of all, or base and delta."""
        if self.attributes & TIMESTAMP_TYPE_MASK:
            return self.max_timestamp
        return self.base_timestamp + record.timestamp_delta


def parse_header(buffer: Buffer, offset: int = 0) -> BatchHeader:
    """The header at `offset`; the records behind it need not be in the buffer.

    WireError, with the byte's position, if fewer than 61 bytes are there, the magic is not 2, or
    the batch length is less than a header's.
    """
    try:
        header = BatchHeader._make(_HEADER.unpack_from(buffer, offset))
    except struct.error:
        raise _bad_header(buffer, offset) from None
    if header[3] != MAGIC or header[1] < BATCH_OVERHEAD - LENGTH_OVERHEAD:
        raise _bad_header(buffer, offset)
    return header


def _bad_header(buffer: Buffer, offset: int) -> WireError:
    """What is wrong with a header that is known to be wrong."""
    available_size = len(buffer) - offset
    if available_size > _MAGIC_OFFSET and (magic := buffer[offset + _MAGIC_OFFSET]) != MAGIC:
        return WireError(f"record batch at byte {offset} has magic {magic}, not {MAGIC}")
    if available_size < BATCH_OVERHEAD:
        return WireError(
            f"record batch at byte {offset} is cut short: {available_size} of at least"
            f" {BATCH_OVERHEAD} bytes"
        )
    batch_length = _HEADER.unpack_from(buffer, offset)[1]
    return WireError(
        f"record batch at byte {offset} has length {batch_length}, a header alone has"
        f" {BATCH_OVERHEAD - LENGTH_OVERHEAD}"
    )


def scan_batches(buffer: Buffer) -> list[BatchHeader]:
    """The headers of all batches that lie back to back in `buffer`; none for an empty one.

    The next batch begins `header.size` bytes behind the last. WireError, with the position, if a
    header is malformed or a batch is not complete; so no bytes can be left over. CRCs are not
    checked.
    """
    headers = []
    size = len(buffer)
    offset = 0
    while offset < size:
        header = parse_header(buffer, offset)
        end = offset + header[1] + LENGTH_OVERHEAD
        if end > size:
            raise WireError(
                f"record batch at byte {offset} is cut short: {size - offset} of"
                f" {header.size} bytes"
            )
        headers.append(header)
        offset = end
    return headers


def check_crc(buffer: Buffer, header: BatchHeader, offset: int = 0) -> bool:
    """Whether the batch at `offset` is what its CRC was made for. Copies nothing."""
    view = memoryview(buffer)[offset + _CRC_START : offset + header[1] + LENGTH_OVERHEAD]
    return crc32c(view) == header[4]


def patch(buffer: bytearray | memoryview, offset: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at `offset` its place in the log, in place. The CRC stays good."""
    _OFFSET.pack_into(buffer, offset, base_offset)
    _LEADER_EPOCH.pack_into(buffer, offset + _LEADER_EPOCH_OFFSET, leader_epoch)


def patch_log_append_time(
    buffer: bytearray | memoryview, offset: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Make `timestamp_ms` the time of all records of the batch (message.timestamp.type).

    Sets the timestamp type and the max timestamp and writes a new CRC; `header` is the batch's own
    and is out of date afterwards. The whole batch must be in the buffer.
    """
    end = offset + header.size
    assert end <= len(buffer)
    attributes = header.attributes | TIMESTAMP_TYPE_MASK
    _ATTRIBUTES.pack_into(buffer, offset + _CRC_START, attributes)
    _OFFSET.pack_into(buffer, offset + _MAX_TIMESTAMP_OFFSET, timestamp_ms)
    _CRC.pack_into(
        buffer, offset + _CRC_OFFSET, crc32c(memoryview(buffer)[offset + _CRC_START : end])
    )


def patch_max_timestamp(
    buffer: bytearray | memoryview, offset: int, header: BatchHeader, timestamp_ms: int
) -> BatchHeader:
    """Make the batch's max timestamp that of its records; gives its new header, with a new CRC.
    The whole batch must be in the buffer."""
    end = offset + header.size
    assert end <= len(buffer)
    _OFFSET.pack_into(buffer, offset + _MAX_TIMESTAMP_OFFSET, timestamp_ms)
    crc = crc32c(memoryview(buffer)[offset + _CRC_START : end])
    _CRC.pack_into(buffer, offset + _CRC_OFFSET, crc)
    return header._replace(max_timestamp=timestamp_ms, crc=crc)


def repack(
    header: BatchHeader, data: Buffer, compression: Compression, level: int | None = None
) -> bytearray:
    """A batch of the same records, which are `data`, compressed in another way, at `level` (None:
    the codec's default). All else of the header is as it was, so producer, sequence numbers, deltas
    and timestamps stay.

    EncodeError if the batch exceeds 2 GiB.
    """
    packed = data if compression is Compression.NONE else compress(compression, data, level)
    return assemble(
        header._replace(attributes=header.attributes & ~COMPRESSION_MASK | compression), packed
    )


def assemble(header: BatchHeader, packed: Buffer) -> bytearray:
    """The batch of a header's fields and of these records, which are compressed as its attributes
    say; length and CRC are made for them. Whether the record count is theirs is the caller's.

    EncodeError if a number does not fit its field or the batch exceeds 2 GiB.
    """
    batch = bytearray(BATCH_OVERHEAD)
    batch += packed
    complete(batch, header)
    return batch


def complete(batch: bytearray, header: BatchHeader) -> None:
    """As `assemble`, of BATCH_OVERHEAD bytes of room with the records behind them, in place."""
    changed = header._replace(batch_length=len(batch) - LENGTH_OVERHEAD, crc=0)
    try:
        _HEADER.pack_into(batch, 0, *changed)
    except struct.error as error:
        raise EncodeError(f"record batch of {len(batch)} bytes: {error}") from None
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CRC_START:]))


def records_data(batch: Buffer, header: BatchHeader, *, size_max: int) -> bytes:
    """The batch's records as bytes, decompressed: at most `size_max` of them.

    `batch` begins with the batch; bytes behind it do not matter. WireError as of `decompress`.
    """
    if len(batch) < header.size:
        raise WireError(f"record batch is cut short: {len(batch)} of {header.size} bytes")
    return decompress(header.compression, memoryview(batch)[BATCH_OVERHEAD : header.size], size_max)


def iter_records(batch: Buffer, header: BatchHeader, *, size_max: int) -> Iterator[Record]:
    """The batch's records in order. Keys and values are copies and pin nothing.

    WireError if the records are more than `size_max` bytes decompressed or do not decompress
    (raised by the call), are not as many as the header counts, or are malformed in any way (raised
    when iteration arrives there). The CRC is
    `check_crc`'s business. Offset deltas are given as they are: whether they ascend is a rule of
    the log (a producer's run 0, 1, 2…; compaction leaves gaps).
    """
    if header.record_count < 0:
        raise WireError(f"record batch has {header.record_count} records")
    data = records_data(batch, header, size_max=size_max)
    return read_records(data, header.record_count)


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """A whole batch of `records`, whose deltas are counted from the two bases given here.

    `max_timestamp` is by default that of the records (-1 if there are none); with LOG_APPEND_TIME
    it is the append time and must be given. `last_offset_delta` is by default the last record's;
    a batch that compaction thinned out keeps its old one, and one that it emptied (no records)
    must give it. With `delete_horizon_ms` (KIP-534) that becomes the base timestamp, and the
    records' deltas are rewritten so that their timestamps stay.

    EncodeError if a number does not fit its field or the batch exceeds 2 GiB.
    """
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset_delta if records else 0
    if max_timestamp is None:
        assert timestamp_type is TimestampType.CREATE_TIME, "the append time is max_timestamp"
        max_timestamp = NO_TIMESTAMP
        if records:
            max_timestamp = base_timestamp + max(each.timestamp_delta for each in records)
    attributes = compression | timestamp_type * TIMESTAMP_TYPE_MASK
    attributes |= is_transactional * TRANSACTIONAL_MASK | is_control * CONTROL_MASK
    timestamp_shift = 0
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_MASK
        timestamp_shift = base_timestamp - delete_horizon_ms
        base_timestamp = delete_horizon_ms
    data = b"".join([encode_record(record, timestamp_shift) for record in records])
    if compression is not Compression.NONE:
        data = compress(compression, data, compression_level)
    try:
        header = _HEADER.pack(
            base_offset,
            BATCH_OVERHEAD - LENGTH_OVERHEAD + len(data),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    except struct.error as error:
        raise EncodeError(f"record batch of {len(records)} records: {error}") from None
    batch = bytearray(header)
    batch += data
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c(memoryview(batch)[_CRC_START:]))
    return bytes(batch)
