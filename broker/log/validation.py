"""What a produced batch must be before it is appended; Kafka's error for everything else.

Pure, and the same checks in the same order as Kafka's LogValidator and ProduceRequest, so that a
client sees the code it knows. Called once per partition of a request: cheap for what is right.

Known deviation: Kafka walks every record of every batch (and decompresses to do so). Here records
are walked when there are at most WALK_RECORDS_MAX of them and they are not compressed, and always
on compacted topics; otherwise the batch's own checksum vouches for its inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    build_batch,
    check_crc,
    iter_records,
    parse_header,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.legacy import is_legacy

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig

WALK_RECORDS_MAX = 16
#: The bits of the attributes that name the codec.
COMPRESSION_MASK = 0x07
#: Decompressed size that a walk or a recompression may reach.
DECOMPRESSED_BYTES_MAX = 256 << 20
LONG_MAX = (1 << 63) - 1


def validated_header(
    records: memoryview, config: TopicConfig, now_ms: int, *, internal: bool
) -> BatchHeader:
    """The header of the one batch that `records` is.

    KafkaError: INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP,
    UNSUPPORTED_FOR_MESSAGE_FORMAT. `internal`: from one of our coordinators, not a client."""
    size = len(records)
    if size < BATCH_OVERHEAD:
        if size == 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, "produce request contains no record batch")
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are no record batch")
    if records[16] != 2:
        if is_legacy(records):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"message format v{records[16]} is not accepted; v2 is",
            )
        raise KafkaError(ErrorCode.INVALID_RECORD, f"unknown record batch magic {records[16]}")
    try:
        header = parse_header(records)
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.size != size:
        if header.size > size or header.size < BATCH_OVERHEAD:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"batch says {header.size} bytes, {size} were sent"
            )
        raise KafkaError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")
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
    if header.is_control and not internal:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
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


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if config.message_timestamp_type != "CreateTime":
        return
    latest = header.max_timestamp
    if latest > now_ms + config.message_timestamp_after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {latest} is later than message.timestamp.after.max.ms allows",
        )
    before = config.message_timestamp_before_max_ms
    if before != LONG_MAX and 0 <= header.base_timestamp < now_ms - before:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is earlier than message.timestamp.before.max.ms"
            " allows",
        )


def _check_records(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> None:
    compacted = "compact" in config.cleanup_policy
    if not compacted:
        if not header.attributes & COMPRESSION_MASK and header.record_count <= WALK_RECORDS_MAX:
            check_record_lengths(records, header)
        return
    seen = 0
    try:
        for record in iter_records(records, header, size_max=DECOMPRESSED_BYTES_MAX):
            if compacted and record.key is None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, "compacted topic cannot accept message without key"
                )
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


def check_record_lengths(records: memoryview, header: BatchHeader) -> None:
    """KafkaError INVALID_RECORD unless exactly `record_count` records fill an uncompressed batch.

    Looks at the records' lengths only (zigzag varints), at well under a microsecond for each."""
    position, end = BATCH_OVERHEAD, len(records)
    count = 0
    try:
        while position < end:
            byte = records[position]
            position += 1
            length = byte & 0x7F
            shift = 7
            while byte & 0x80:
                byte = records[position]
                position += 1
                length |= (byte & 0x7F) << shift
                shift += 7
            if length & 1 or not length:  # negative, or zero: no record is empty
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {count} has a bad length")
            position += length >> 1
            count += 1
    except IndexError:
        position = end + 1
    if position != end or count != header.record_count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batch says {header.record_count} records, holds {count}"
        )


def recompressed(records: memoryview, header: BatchHeader, compression_type: str) -> bytearray:
    """The same batch with the topic's own compression.type; KafkaError if it cannot be read.

    Producer id, epoch, sequence and attributes stay, so idempotence holds across the change."""
    try:
        return bytearray(
            build_batch(
                list(iter_records(records, header, size_max=DECOMPRESSED_BYTES_MAX)),
                base_timestamp=header.base_timestamp,
                compression=Compression.by_name(compression_type),
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=header.is_transactional,
            )
        )
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
