"""What a produced batch must be before it is appended; Kafka's error for everything else.

Pure, and the same checks as Kafka's LogValidator and ProduceRequest, so that a client sees the code
it knows. What is acknowledged must be readable: every batch of a client is walked whole, a
compressed one after it was decompressed (wire/kafka/records/walk.py says what is looked at and what
that costs). Called once per partition of a request; what is too long for the loop is called on a
worker thread (broker/log/append/checking.py).

- Records that are not whole, or not as many as the header says: INVALID_RECORD.
- Records without a key on a compacted topic (INVALID_RECORD), or with a timestamp outside of
  message.timestamp.before.max.ms and after.max.ms (INVALID_TIMESTAMP, which goes first): their
  indexes are told, of at most BLAMED_MAX, where Kafka tells all.
- The header's max timestamp is what the producer says; the records' own is what is stored.
- On a topic with quire.locks the locks in the headers are read (broker/log/locks/).
- With compression.type a batch is packed anew, of the bytes that were walked.

Stricter than Kafka, which would rewrite or pass on what not every consumer reads: offset deltas
that are not 0, 1, 2 …; null as another negative size than -1; varints with more bits than their
field; timestamps beyond 64 bits. More than DECOMPRESSED_BYTES_MAX are MESSAGE_TOO_LARGE, so that a
Java producer splits the batch, where Kafka takes any number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

from broker.log.append.compression_level import compression_level
from broker.log.locks.lock_headers_core import OFF, REQUIRED, batch_locks
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    check_crc,
    parse_header,
    patch_log_append_time,
    patch_max_timestamp,
    records_data,
    repack,
)
from wire.kafka.records.compression import Compression, SizeLimitError, check_produced
from wire.kafka.records.legacy import is_legacy
from wire.kafka.records.walk import (
    INT64_MAX,
    INT64_MIN,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    Walked,
    fault_text,
    walk,
)

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig
    from broker.log.locks.lock_headers_core import BatchLocks
    from wire.kafka.records.walk import Whole

MAGIC_BYTE = 16
#: What a batch's length does not count: base offset and the length itself.
BATCH_LOG_OVERHEAD = 12
MAGIC = 2
#: The bits of the attributes that name the codec.
COMPRESSION_MASK = 0x07
#: Attributes that ask for a look: codecs 4 (zstd) to 7, append time, control.
UNUSUAL_MASK = 0x2C
#: What a batch may be when it is decompressed: the most memory that a worker takes, twice.
DECOMPRESSED_BYTES_MAX = 128 << 20
#: Kafka's name for «as the producer sent it», in compression.type.
COMPRESSION_OF_PRODUCER = "producer"
#: The other message.timestamp.type is CreateTime.
APPEND_TIMES = "LogAppendTime"


class Checked(NamedTuple):
    """A batch that may be appended: `records` is all of it and nothing else, in writable memory,
    as it is to be stored but for its place in the log. `header` has its real max timestamp; where
    the topic has append times, that is `append_time_ms` (else -1), and only `records` have it.
    `now_ms` is when it was checked, and `walked_bytes` of records were looked at. `locks`: None
    where nobody has looked for any. No record is earlier than `min_timestamp`; below 0 that is not
    known, or one has no time."""

    header: BatchHeader
    records: memoryview
    append_time_ms: int
    now_ms: int
    walked_bytes: int
    locks: BatchLocks | None = None
    min_timestamp: int = NO_TIMESTAMP


def checked_batch(
    records: memoryview,
    config: TopicConfig,
    now_ms: int,
    *,
    internal: bool,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    locks_ns_max: int = INT64_MAX,
) -> Checked:
    """The one batch that `records` begin with, checked whole, and packed as the topic wants it.

    KafkaError: INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP,
    UNSUPPORTED_COMPRESSION_TYPE, with the indexes of the records that are to
    blame where it is them. SizeLimitError, only below DECOMPRESSED_BYTES_MAX: it is more than
    `decompressed_bytes_max`, and may be tried again with that. LockBudgetError likewise: its locks
    cost more than `locks_ns_max`.
    `internal`: from one of our coordinators, not a client; its records are not looked into."""
    header = _checked_header(records, config, internal=internal)
    if header.size < len(records):  # what follows is no batch: Kafka drops it, too
        records = records[: header.size]
    has_append_times = config.message_timestamp_type == APPEND_TIMES
    walked_bytes = 0
    locks = None
    # Of one record the header tells it; those of more, from our coordinators, nobody looks at.
    min_timestamp = header.max_timestamp if header.record_count == 1 else NO_TIMESTAMP
    if not internal:
        if header.attributes & COMPRESSION_MASK:
            inside: memoryview | bytes = _decompressed(records, header, decompressed_bytes_max)
        else:
            inside = records[BATCH_OVERHEAD:]
        walked_bytes = len(inside)
        max_timestamp, min_timestamp = _walked(inside, header, config, now_ms, has_append_times)
        if config.quire_locks != OFF:
            locks = batch_locks(
                inside,
                header.record_count,
                is_required=config.quire_locks == REQUIRED,
                is_transactional=header.is_transactional,
                per_record_max=config.quire_locks_max_per_record,
                budget_ns=locks_ns_max,
            )
        wanted = config.compression_type
        if wanted != COMPRESSION_OF_PRODUCER and header.compression is not codec_of(wanted):
            header = header._replace(max_timestamp=max_timestamp)
            records = _repacked(inside, header, config)
        elif max_timestamp != header.max_timestamp:
            if has_append_times:  # what is stored is patched anyway
                header = header._replace(max_timestamp=max_timestamp)
            else:
                header = patch_max_timestamp(records, 0, header, max_timestamp)
    if not has_append_times:
        return Checked(header, records, -1, now_ms, walked_bytes, locks, min_timestamp)
    patch_log_append_time(records, 0, parse_header(records), now_ms)
    return Checked(header, records, now_ms, now_ms, walked_bytes, locks, now_ms)


def own_batch(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> Checked:
    """What `checked_batch` says of an internal batch that is whole, without a look at it: whoever
    has built it a moment ago, and made its checksum, knows that it is. `header` is its own."""
    assert header.size == len(records)
    assert header.last_offset_delta == header.record_count - 1
    if config.message_timestamp_type != APPEND_TIMES:
        min_timestamp = header.max_timestamp if header.record_count == 1 else NO_TIMESTAMP
        return Checked(header, records, -1, now_ms, 0, None, min_timestamp)
    patch_log_append_time(records, 0, header, now_ms)
    return Checked(header, records, now_ms, now_ms, 0, None, now_ms)


#: A named tuple of all its fields, in half the time of its class's `_make`.
_named = tuple.__new__


def checked_whole(
    whole: Whole, records: memoryview, config: TopicConfig, now_ms: int
) -> Checked | None:
    """What `checked_batch` says of a client's batch that is `whole`, if the topic's settings are
    the usual ones and forbid nothing; None: ask that. `records` is all of it."""
    header_fields, min_timestamp, keyless_count = whole
    header = _named(BatchHeader, header_fields)
    size = len(records)
    max_timestamp = header.max_timestamp
    before_max_ms = config.message_timestamp_before_max_ms
    if (
        size > config.max_message_bytes
        or max_timestamp > now_ms + config.message_timestamp_after_max_ms
        or (before_max_ms != INT64_MAX and min_timestamp < now_ms - before_max_ms)
        or config.message_timestamp_type == "LogAppendTime"
        or config.quire_locks != OFF
        or config.compression_type != COMPRESSION_OF_PRODUCER
        or (keyless_count and "compact" in config.cleanup_policy)
    ):
        return None
    walked_bytes = size - BATCH_OVERHEAD
    return _named(Checked, (header, records, -1, now_ms, walked_bytes, None, min_timestamp))


def _checked_header(records: memoryview, config: TopicConfig, *, internal: bool) -> BatchHeader:
    """The header of the one batch that `records` is. KafkaError as of `checked_batch`."""
    size = len(records)
    if size < BATCH_OVERHEAD or records[MAGIC_BYTE] != MAGIC:
        _refuse_start(records)
    try:
        header = parse_header(records)
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.size != size:
        _check_size(records, header)
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
    if not internal and (
        header.attributes & UNUSUAL_MASK or (header.producer_id < 0 and header.is_transactional)
    ):
        _check_attributes(header)
    if header.producer_id >= 0 and header.producer_epoch < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a producer id without an epoch")
    if header.producer_id >= 0 and header.base_sequence < 0 and not internal:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"producer id with sequence number {header.base_sequence}"
        )
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
    if header.is_transactional and header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    if header.timestamp_type:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer may not set timestamp type LogAppendTime"
        )
    try:
        _ = header.compression
    except WireError as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error


def _decompressed(records: memoryview, header: BatchHeader, bytes_max: int) -> bytes:
    try:
        check_produced(header.compression, records[BATCH_OVERHEAD : header.size])
        return records_data(records, header, size_max=bytes_max)
    except SizeLimitError as error:
        if bytes_max < DECOMPRESSED_BYTES_MAX:
            raise
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def _walked(
    inside: memoryview | bytes,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    has_append_times: bool,
) -> tuple[int, int]:
    """Looks at every record; the largest timestamp of all, -1 if they have none, and the smallest,
    -1 if one has none. KafkaError."""
    count = header.record_count
    if count * RECORD_BYTES_MIN > len(inside):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"{count} records do not fit in {len(inside)} bytes"
        )
    earliest, latest = INT64_MIN, INT64_MAX
    if not has_append_times:
        latest = min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
        if config.message_timestamp_before_max_ms != INT64_MAX:  # Kafka's «no limit»
            earliest = now_ms - config.message_timestamp_before_max_ms
    wants_keys = "compact" in config.cleanup_policy
    found = walk(inside, count, header.base_timestamp, earliest, latest, wants_keys)
    if found[0] or found[6]:
        _refuse_walked(Walked._make(found))
    return found[3], found[7]


def _refuse_walked(walked: Walked) -> NoReturn:
    if walked.fault:
        raise KafkaError(ErrorCode.INVALID_RECORD, fault_text(walked))
    if walked.late_count:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"{walked.late_count} records have timestamps that message.timestamp.before.max.ms and"
            " message.timestamp.after.max.ms do not allow",
            record_indexes=walked.blamed,
        )
    raise KafkaError(
        ErrorCode.INVALID_RECORD,
        "compacted topic cannot accept message without key",
        record_indexes=walked.blamed,
    )


def codec_of(compression_type: str) -> Compression:
    """Of the setting: «uncompressed» is a codec's name there."""
    name = "none" if compression_type == "uncompressed" else compression_type
    return Compression.by_name(name)


def _repacked(inside: memoryview | bytes, header: BatchHeader, config: TopicConfig) -> memoryview:
    """The same batch with the topic's own compression.type. KafkaError MESSAGE_TOO_LARGE."""
    codec = codec_of(config.compression_type)
    size = BATCH_OVERHEAD + len(inside)
    if codec is not Compression.NONE or size <= config.max_message_bytes:
        packed = repack(header, inside, codec, compression_level(config))
        size = len(packed)
        if size <= config.max_message_bytes:
            return memoryview(packed)
    raise KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch of {size} bytes with compression.type={config.compression_type} exceeds"
        f" max.message.bytes={config.max_message_bytes}",
    )
