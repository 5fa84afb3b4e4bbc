"""What a produced batch must be before it is appended; Kafka's error for everything else.

Pure, and the same checks in the same order as Kafka's LogValidator and ProduceRequest, so that a
client sees the code it knows. Called once per partition of a request: cheap for what is right.

Known deviation: Kafka walks every record of every batch. Here the count must be possible for the
size, compressed batches are decompressed, and records are walked when there are at most
WALK_RECORDS_MAX of them, and always on compacted topics; beyond that the batch's own checksum
vouches for its inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    build_batch,
    check_crc,
    iter_records,
    parse_header,
    records_data,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.legacy import is_legacy

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig

WALK_RECORDS_MAX = 16
MAGIC_BYTE = 16
#: What a batch's length does not count: base offset and the length itself.
BATCH_LOG_OVERHEAD = 12
MAGIC = 2
#: The bits of the attributes that name the codec.
COMPRESSION_MASK = 0x07
#: Attributes that ask for a look: codecs 4 (zstd) to 7, append time, transactional, control.
UNUSUAL_MASK = 0x3C
#: A record's length is an int32: a zigzag varint of five bytes at most.
INT_SHIFT_MAX = 28
#: Timestamp deltas are the one 64-bit varint of a record.
LONG_SHIFT_MAX = 63
#: A length of -1 as a zigzag varint.
_NULL = 1
_THREE_ZEROS = bytes(3)
#: Decompressed size that a walk or a recompression may reach.
DECOMPRESSED_BYTES_MAX = 128 << 20
#: Length, attributes, two deltas, two lengths, header count: no record is smaller.
RECORD_BYTES_MIN = 7
LONG_MAX = (1 << 63) - 1


def validated_header(
    records: memoryview, config: TopicConfig, now_ms: int, *, internal: bool
) -> BatchHeader:
    """The header of the one batch that `records` is.

    KafkaError: INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, with the
    index of the record that is to blame where it is one. `internal`: from one of our coordinators,
    not a client."""
    size = len(records)
    if size < BATCH_OVERHEAD or records[MAGIC_BYTE] != MAGIC:
        _refuse_start(records)
    try:
        header = parse_header(records)
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.size != size:
        _check_size(records, header)
        records = records[: header.size]
    if size > config.max_message_bytes and not internal:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {size} bytes exceeds max.message.bytes={config.max_message_bytes}",
        )
    if not check_crc(records, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "record batch checksum does not match")
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"batch of {count} records has last offset delta {header.last_offset_delta}",
        )
    if header.base_offset and not internal:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batch has base offset {header.base_offset}, must be 0"
        )
    if not internal and header.attributes & UNUSUAL_MASK:
        _check_attributes(header)
    if header.producer_id >= 0 and header.producer_epoch < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a producer id without an epoch")
    if header.producer_id >= 0 and header.base_sequence < 0 and not header.is_control:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"producer id with sequence number {header.base_sequence}"
        )
    if not internal:
        _check_timestamps(header, config, now_ms)
        _check_records(records, header, config, now_ms)
    return header


def _refuse_start(records: memoryview) -> NoReturn:
    """What does not even begin like a record batch v2."""
    size = len(records)
    if size <= MAGIC_BYTE:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"no record batch in {size} bytes")
    magic = records[MAGIC_BYTE]
    if magic > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown record batch magic {magic}")
    if is_legacy(records):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"message format v{magic} is not accepted; v2 is"
        )
    raise KafkaError(ErrorCode.INVALID_RECORD, f"a record batch is cut short at {size} bytes")


def _check_size(records: memoryview, header: BatchHeader) -> None:
    """As Kafka: a cut batch is none, a second whole one too many, and less than that nothing."""
    rest = records[header.size :]
    if header.size > len(records):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batch says {header.size} bytes, {len(records)} were sent"
        )
    if len(rest) > MAGIC_BYTE and int.from_bytes(rest[8:12]) + BATCH_LOG_OVERHEAD <= len(rest):
        raise KafkaError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")


def _check_attributes(header: BatchHeader) -> None:
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.is_transactional:
        # As Kafka's verification: nothing is appended to a transaction that the coordinator does
        # not know of (KIP-890), since nobody would ever end it.
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "no such transaction is under way")
    if header.timestamp_type:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer may not set timestamp type LogAppendTime"
        )
    try:
        _ = header.compression
    except WireError as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if config.message_timestamp_type != "CreateTime":
        return
    latest = header.max_timestamp
    if latest > now_ms + config.message_timestamp_after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {latest} is later than message.timestamp.after.max.ms allows",
            record_indexes=(0,) if header.record_count == 1 else (),
        )
    before = config.message_timestamp_before_max_ms
    if before != LONG_MAX and 0 <= header.base_timestamp < now_ms - before:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is earlier than message.timestamp.before.max.ms"
            " allows",
            record_indexes=(0,),
        )


def _check_records(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> None:
    compacted = "compact" in config.cleanup_policy
    if not compacted:
        # A view, or the decompressed bytes: garbage inside a batch would stop its consumers.
        inside = (
            _decompressed(records, header)
            if header.attributes & COMPRESSION_MASK
            else records[BATCH_OVERHEAD:]
        )
        if header.record_count * RECORD_BYTES_MIN > len(inside):
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{header.record_count} records do not fit in {len(inside)} bytes",
            )
        if header.record_count <= WALK_RECORDS_MAX:
            check_record_lengths(inside, header.record_count)
        return
    seen = 0
    keyless = []
    try:
        for record in iter_records(records, header, size_max=DECOMPRESSED_BYTES_MAX):
            if record.key is None:
                keyless.append(seen)
            if record.offset_delta != seen:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"record {seen} has offset delta {record.offset_delta}",
                )
            seen += 1
    except WireError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
    if seen != header.record_count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batch says {header.record_count} records and holds {seen}"
        )
    if keyless:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            "compacted topic cannot accept message without key",
            record_indexes=keyless,
        )


def _decompressed(records: memoryview, header: BatchHeader) -> bytes:
    try:
        return records_data(records, header, size_max=DECOMPRESSED_BYTES_MAX)
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def check_record_lengths(records: memoryview | bytes, record_count: int) -> None:
    """KafkaError INVALID_RECORD unless exactly `record_count` records fill `records`, each with as
    much key and value as it says, and in order."""
    position, end = 0, len(records)
    count = 0
    try:
        while position < end:
            length, position = _varint(records, position)
            record_end = position + length
            if length < RECORD_BYTES_MIN - 1 or record_end > end:
                break
            # Attributes (unused), timestamp and offset delta: of a lone record mostly three zeros.
            if not count and records[position : position + 3] == _THREE_ZEROS:
                position += 3
            else:
                _, position = _varint(records, position + 1, LONG_SHIFT_MAX)
                offset_delta, position = _varint(records, position)
                if offset_delta != count:
                    break
            if records[position] == _NULL:  # the key
                position += 1
            else:
                size, position = _varint(records, position)
                position += max(size, 0)
            size, position = _varint(records, position)
            position += max(size, 0)
            if position == record_end - 1 and not records[position]:  # no headers, all there
                position = record_end
                count += 1
                continue
            header_count, position = _varint(records, position)
            if position > record_end or header_count <= 0:
                break
            position = record_end
            count += 1
        else:  # no break: whole records fill all of it
            if count == record_count:
                return
    except IndexError:
        pass  # the last one is cut short
    raise KafkaError(
        ErrorCode.INVALID_RECORD,
        f"batch says {record_count} records, holds {count} that are whole",
    )


def _varint(
    records: memoryview | bytes, position: int, shift_max: int = INT_SHIFT_MAX
) -> tuple[int, int]:
    """A zigzag varint and where it ends; IndexError at the end of the bytes or if it is endless."""
    byte = records[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > shift_max:
            raise IndexError("no varint of a record is that long")
        byte = records[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def recompressed(
    records: memoryview, header: BatchHeader, compression_type: str, level: int | None = None
) -> bytearray:
    """The same batch with the topic's own compression.type, at that `level` (None: the codec's
    default); KafkaError if it cannot be read.

    Producer id, epoch, sequence and attributes stay, so idempotence holds across the change."""
    try:
        return bytearray(
            build_batch(
                list(iter_records(records, header, size_max=DECOMPRESSED_BYTES_MAX)),
                base_timestamp=header.base_timestamp,
                compression=Compression.by_name(compression_type),
                compression_level=level,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=header.is_transactional,
            )
        )
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
