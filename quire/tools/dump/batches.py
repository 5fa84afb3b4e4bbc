"""Record batches, records and what is in them: `quire dump batch`, and below entries.

Rows are named as kafka-dump-log names them, in our spelling: `batch` with base_offset, last_offset,
count, base_sequence ... is_valid, and, with `--print-data-log`, a `record` for each record.
Batches of magic 0 and 1, which quire refuses but Kafka's old segments hold, are rows `message`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from quire.tools.dump.coordinators import DECODERS, control_fields
from quire.tools.dump.files import WINDOW_SIZE_BYTES, Window, is_zero
from wire.kafka.errors import WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    LENGTH_OVERHEAD,
    MAGIC,
    TimestampType,
    check_crc,
    iter_records,
    parse_header,
)
from wire.kafka.records.compression import Compression, decompress
from wire.kafka.records.legacy import scan_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quire.tools.dump.files import Source
    from quire.tools.dump.options import BatchOptions
    from quire.tools.output import Output, Step
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.record import Record

#: A batch that is larger is not read into memory, its checksum is still checked; records are
#: decompressed up to as much.
BATCH_SIZE_MAX = 128 * 1024 * 1024
_CRC_START = 21
_MAGIC_OFFSET = 16
_LEGACY_HEAD = struct.Struct(">qi")
_LEGACY_SIZE_MIN = 14
_LENGTH = struct.Struct(">i")
_CODECS = {int(codec): codec for codec in Compression}


class BatchDump:
    """Shows batches; `file` is named where they are damaged."""

    __slots__ = ("_file", "_options", "_out", "batch_count", "record_count")

    def __init__(self, out: Output, options: BatchOptions, file: str) -> None:
        self._out = out
        self._options = options
        self._file = file
        self.batch_count = 0
        self.record_count = 0

    def show_all(self, data: memoryview, position: int, level: int) -> None:
        """Batches back to back; `position` is that of `data` in the file."""
        window = Window(_Memory(data, position))
        self.show_window(window, position, position + len(data), level)

    def show_window(self, window: Window, start: int, end: int, level: int) -> int:
        """Up to `end`, or to what cannot be a batch; returns where it stopped."""
        at = start
        while at < end:
            head = window.view(at, min(BATCH_OVERHEAD, end - at))
            if not head:
                break
            if len(head) > _MAGIC_OFFSET and head[_MAGIC_OFFSET] in (0, 1):
                if not any(head) and is_zero(window, at, end):
                    self._out.row("end", {"offset": at, "reason": "zeros up to the end"}, level)
                    return end
                size = self._show_legacy(window, at, end, level)
            else:
                size = self._show_batch(window, at, end, level)
            if size <= 0:
                return at
            at += size
        return at

    def _damage(self, at: int, reason: str, level: int) -> int:
        self._out.damage(self._file, at, reason, level)
        return 0

    def _show_batch(self, window: Window, at: int, end: int, level: int) -> int:
        """Its size; 0 if the next one cannot be found."""
        try:
            header = parse_header(window.view(at, min(BATCH_OVERHEAD, end - at)))
        except WireError as error:
            # Its «byte 0» is this batch's first, of which the row tells the offset.
            return self._damage(at, str(error).replace(" at byte 0", ""), level)
        if header.size > end - at:
            return self._damage(at, f"the batch has {end - at} of its {header.size} bytes", level)
        data: memoryview | None = None
        if header.size <= BATCH_SIZE_MAX:
            data = window.view(at, header.size)
            available = len(data)
            is_valid = available == header.size and check_crc(data, header)
        else:
            available, crc = _stream_crc(window, at, header.size)
            is_valid = available == header.size and crc == header.crc
        if available < header.size:
            return self._damage(at, f"the batch has {available} of its {header.size} bytes", level)
        self.batch_count += 1
        self.record_count += max(header.record_count, 0)
        self._out.row("batch", batch_fields(header, at, is_valid), level)
        if not is_valid:
            self._damage(at, "the batch's checksum does not match", level)
        elif data is None:
            if self._options.records:
                self._damage(at, f"a batch of {header.size} bytes: records not read", level)
        elif self._options.records:
            self._show_records(data, header, at, level + 1)
        return header.size

    def _show_records(self, data: memoryview, header: BatchHeader, at: int, level: int) -> None:
        try:
            for record in iter_records(data, header, size_max=BATCH_SIZE_MAX):
                self._out.row("record", self._record_fields(record, header), level)
        except WireError as error:
            self._damage(at, f"the batch's records: {error}", level)

    def _record_fields(self, record: Record, header: BatchHeader) -> dict[str, Any]:
        sequence = -1
        if header.base_sequence >= 0:
            sequence = (header.base_sequence + record.offset_delta) & 0x7FFFFFFF
        fields: dict[str, Any] = {
            "offset": header.base_offset + record.offset_delta,
            "timestamp": header.timestamp_of(record),
            "sequence": sequence,
            "key_size": _size(record.key),
            "value_size": _size(record.value),
        }
        if header.is_control:
            return {**fields, **control_fields(record)}
        if self._options.decoder is not None:
            return {**fields, **DECODERS[self._options.decoder](record)}
        fields["key"] = record.key
        fields["value"] = record.value
        fields["headers"] = [{"key": key, "value": value} for key, value in record.headers]
        return fields

    def _show_legacy(self, window: Window, at: int, end: int, level: int) -> int:
        head = window.view(at, min(_LEGACY_HEAD.size, end - at))
        message_size: int = _LEGACY_HEAD.unpack(head)[1]
        size = _LEGACY_HEAD.size + message_size
        if message_size < _LEGACY_SIZE_MIN or size > min(end - at, BATCH_SIZE_MAX):
            words = f"a message of magic 0 or 1 cannot have {message_size} bytes here"
            return self._damage(at, words, level)
        try:
            self._show_messages(window.view(at, size), at, level)
        except WireError as error:
            return self._damage(at, str(error), level)
        self.batch_count += 1
        return size

    def _show_messages(self, data: memoryview, at: int, level: int, *, inner: bool = False) -> None:
        """Of one set: the outer message, or those that were compressed in it. WireError."""
        start = 0
        for message in scan_messages(data):
            key, value = _legacy_key_value(data[start : start + message.size], message.magic)
            codec = _CODECS.get(message.compression)
            fields: dict[str, Any] = {
                "offset": message.offset,
                "position": at if inner else at + start,
                "size": message.size,
                "magic": message.magic,
                "timestamp_type": "log_append_time"
                if message.is_log_append_time
                else "create_time",
                "timestamp": message.timestamp,
                "compress_codec": _codec_name(message.compression),
                "is_valid": message.crc_ok,
            }
            is_set = codec is not None and codec is not Compression.NONE
            if self._options.records and not is_set:
                fields |= {"key": key, "value": value}
            self._out.row("message", fields, level)
            if not message.crc_ok:
                self._damage(at, "the message's checksum does not match", level)
            elif is_set and not inner and self._options.records and value is not None:
                assert codec is not None
                unpacked = memoryview(decompress(codec, value, BATCH_SIZE_MAX))
                self._show_messages(unpacked, at, level + 1, inner=True)
            start += message.size


class _Memory:
    """A buffer as a `Source`, at the offset that it has in a file."""

    __slots__ = ("_data", "_start", "path", "size")

    def __init__(self, data: memoryview, start: int) -> None:
        self._data = data
        self._start = start
        self.path = ""
        self.size = start + len(data)

    def pread(self, size: int, offset: int) -> bytes:
        # A view does as well as bytes for who only slices, and nothing is copied.
        at = offset - self._start
        return self._data[at : at + size]  # type: ignore[return-value]


def show_batch_file(
    out: Output, options: BatchOptions, source: Source, step: Step | None, start: int = 0
) -> None:
    """`quire dump batch` of a file that is nothing but batches, as Kafka's segments are."""
    out.row("batches", {"file": source.path}, 0)
    window = Window(source, step)
    if not window.view(start, 1):
        reason = "the file is empty" if start == 0 else "the file ends before"
        out.damage(source.path, start, reason, 1)
        return
    dump = BatchDump(out, options, source.path)
    end = dump.show_window(window, start, source.size, 1)
    out.row("total", {"batches": dump.batch_count, "records": dump.record_count, "end": end}, 1)


def batch_fields(header: BatchHeader, position: int, is_valid: bool | None) -> dict[str, Any]:
    """`is_valid` None: it cannot be told from what is there."""
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "partition_leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "position": position,
        "timestamp_type": "log_append_time" if append_time else "create_time",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "size": header.size,
        "magic": MAGIC,
        "compress_codec": _codec_name(header.attributes & 0x07),
        "crc": header.crc,
        "is_valid": is_valid,
    }


def _codec_name(number: int) -> str:
    codec = _CODECS.get(number)
    return f"unknown ({number})" if codec is None else codec.name.lower()


def _size(data: Buffer | None) -> int:
    return -1 if data is None else len(data)


def _stream_crc(window: Window, at: int, size: int) -> tuple[int, int]:
    """(bytes that are there, CRC32C of the part that it covers) of a batch in pieces."""
    crc, done = 0, _CRC_START
    while done < size:
        piece = window.view(at + done, min(WINDOW_SIZE_BYTES, size - done))
        if not piece:
            break
        crc = crc32c(piece, crc)
        done += len(piece)
    return done, crc


def _legacy_key_value(message: memoryview, magic: int) -> tuple[bytes | None, bytes | None]:
    """`scan_messages` checked that both fit."""
    at = 18 + 8 * magic
    fields: list[bytes | None] = []
    for _ in range(2):
        (length,) = _LENGTH.unpack_from(message, at)
        at += _LENGTH.size
        fields.append(None if length < 0 else bytes(message[at : at + length]))
        at += max(length, 0)
    return fields[0], fields[1]


def header_of_part(data: memoryview) -> Iterator[BatchHeader]:
    """The header of a batch of which only the beginning is in `data`, if that much is."""
    try:
        yield parse_header(data)
    except WireError:
        return


assert _LEGACY_HEAD.size == LENGTH_OVERHEAD
