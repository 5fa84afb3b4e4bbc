"""The bytes of one batch in a pass: checked, unpacked, and put together again of fewer records.

Records are moved as they lie: only length and timestamp delta are written anew, and these only if
the base timestamp changes. So key, value and headers of a record are never made into objects.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.log.compact.steps import (
    BYTES_PER_STEP,
    BYTES_PER_UNIT,
    LONG_KEY_BYTES,
    RECORDS_PER_STEP,
    CompactionError,
    Work,
)
from wire.kafka.errors import WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    assemble,
    check_crc,
    complete,
    records_data,
)
from wire.kafka.records.compression import Compression, compress
from wire.kafka.records.control import decode_end_transaction_marker
from wire.kafka.records.record import encode_varint, read_records
from wire.kafka.records.walk import Fault, Walked, fault_text, spans

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Generator

    from broker.log.compact.steps import Steps
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.control import EndTransactionMarker
    from wire.kafka.records.walk import Span

#: An entry's header counts the offsets of its batches as an i32 (entry_format.py).
SPAN_MAX = 2**31 - 1
_INT64 = 1 << 64
_INT64_MAX = (1 << 63) - 1


def as_int64(number: int) -> int:
    """`number` as Java's long has it: timestamps and their deltas wrap, as they do for clients."""
    number &= _INT64 - 1
    return number if number <= _INT64_MAX else number - _INT64


def check_batch(batch: Buffer, header: BatchHeader, offset_min: int) -> None:
    """CompactionError if this is not one whole batch whose CRC is right, which begins at
    `offset_min` or later and has no more records than offsets."""
    offset = header.base_offset
    if len(batch) != header.size:
        raise CompactionError(offset, f"batch of {header.size} bytes, {len(batch)} are there")
    if offset < offset_min:
        raise CompactionError(offset, f"batch lies behind one that ends at {offset_min - 1}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        counts = f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
        raise CompactionError(offset, f"batch has {counts}")
    if header.last_offset_delta >= SPAN_MAX:
        raise CompactionError(offset, f"batch spans {header.last_offset_delta + 1} offsets")
    if not check_crc(batch, header):
        raise CompactionError(offset, "batch has another CRC than its bytes")


def unpack(batch: Buffer, header: BatchHeader, size_max: int) -> Steps[Buffer]:
    """The batch's records, decompressed; what is not compressed is a view of it, as a copy of many
    bytes would hold the loop, also one that another thread makes. CompactionError if they are more
    than `size_max` bytes."""
    if not header.attributes & COMPRESSION_MASK and header.size - BATCH_OVERHEAD <= size_max:
        return memoryview(batch)[BATCH_OVERHEAD : header.size]

    def run() -> bytes:
        try:
            return records_data(batch, header, size_max=size_max)
        except WireError as error:
            raise CompactionError(header.base_offset, str(error)) from None

    data = yield Work(header.size, run)
    assert data is not None, "the result of Work is sent in"
    return data


def read_spans(header: BatchHeader, data: Buffer) -> Generator[list[Span], None, None]:
    """The batch's records in order, some at a time. CompactionError if they are malformed or not as
    many as the header counts, or their offsets do not ascend up to the header's last."""
    position, index, before = 0, 0, -1
    while index < header.record_count:
        count = min(header.record_count - index, RECORDS_PER_STEP)
        fault, position, found = spans(data, position, count, BYTES_PER_STEP)
        index += len(found)
        for span in found:
            if not before < span[4] <= header.last_offset_delta:
                why = f"offset delta {span[4]} behind {before}, last {header.last_offset_delta}"
                raise CompactionError(header.base_offset, why)
            before = span[4]
        if fault:
            raise _fault(header, fault, index, position)
        yield found
    if position != len(data):
        raise _fault(header, Fault.LEFT_OVER, index, position)


def units_of(found: list[Span]) -> int:
    """What it costs to look at these records and their keys."""
    return max(len(found), (found[-1][2] - found[0][0]) // BYTES_PER_UNIT)


def with_short_keys(found: list[Span], shorten: Callable[[bytes], bytes]) -> Steps[list[Span]]:
    """The records, with something short in the place of keys that take long to be hashed."""
    if found[-1][2] - found[0][0] <= LONG_KEY_BYTES:
        return found
    changed: list[Span] = []
    for span in found:
        key = span[5]
        if key is not None and len(key) > LONG_KEY_BYTES:
            short = yield Work(len(key), partial(shorten, key))
            assert short is not None, "the result of Work is sent in"
            span = (*span[:5], short, span[6])
        changed.append(span)
    return changed


def _fault(header: BatchHeader, fault: int, index: int, position: int) -> CompactionError:
    walked = Walked(fault, index, position, NO_TIMESTAMP, 0, 0, (), _INT64_MAX)
    return CompactionError(header.base_offset, fault_text(walked))


def read_marker(batch: Buffer, header: BatchHeader) -> tuple[bool, EndTransactionMarker | None]:
    """Of a control batch: whether it ends a transaction, or did until a former pass took its
    record; and what its record says, None without one. Control records of other types say nothing
    of transactions. CompactionError if key or value is malformed."""
    if header.record_count == 0:
        return True, None
    try:
        data = records_data(batch, header, size_max=header.size)
        record = next(read_records(data, header.record_count))
        marker = decode_end_transaction_marker(record)
    except WireError as error:
        raise CompactionError(header.base_offset, str(error)) from None
    return marker is not None, marker


def rebuild(
    header: BatchHeader,
    data: Buffer,
    places: array[int],
    *,
    max_timestamp: int,
    horizon_ms: int | None,
) -> Steps[bytearray]:
    """The batch of some of its records (at least one), each with its offset and timestamp.

    `places` has four numbers for each record that stays, which are the first four of its Span;
    `max_timestamp` is theirs. Base offset, last offset delta, leader epoch, producer, sequence,
    codec and flags stay. The base timestamp becomes `horizon_ms`, and bit 6 is set; or without a
    horizon that of the first record, and bit 6 is cleared.
    """
    attributes = header.attributes & ~DELETE_HORIZON_MASK
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_MASK
        base = horizon_ms
    elif attributes & TIMESTAMP_TYPE_MASK:
        base = max_timestamp
    else:
        base = as_int64(header.base_timestamp + places[3])
    if base == header.base_timestamp and not attributes & TIMESTAMP_TYPE_MASK:
        batch = yield from _joined(data, places)
    else:
        batch = yield from _shifted(header, data, places, base)
    codec = header.compression
    if codec is not Compression.NONE:
        plain = memoryview(batch)[BATCH_OVERHEAD:]
        packed = yield Work(len(plain), lambda: compress(codec, plain))
        assert packed is not None, "the result of Work is sent in"
        batch = bytearray(BATCH_OVERHEAD)
        yield from _append(batch, packed, 0, len(packed))
    changed = header._replace(
        attributes=attributes,
        base_timestamp=base,
        max_timestamp=max_timestamp,
        record_count=len(places) // 4,
    )
    complete(batch, changed)
    return batch


def _append(out: bytearray, data: Buffer, start: int, end: int) -> Steps[None]:
    """Adds data[start:end], which may be a hundred megabytes; yields for whole steps of it."""
    view = memoryview(data)
    while end - start > BYTES_PER_STEP:
        out += view[start : start + BYTES_PER_STEP]
        start += BYTES_PER_STEP
        yield BYTES_PER_STEP // BYTES_PER_UNIT
    out += view[start:end]


def _joined(data: Buffer, places: array[int]) -> Steps[bytearray]:
    """Records as they lie, behind the room for a header; those that lie back to back are copied as
    one piece."""
    out = bytearray(BATCH_OVERHEAD)
    first = last = places[0]
    units = 0
    for number in range(0, len(places), 4):
        if places[number] != last:
            yield from _append(out, data, first, last)
            units += (last - first) % BYTES_PER_STEP // BYTES_PER_UNIT
            first = places[number]
        last = places[number + 2]
        units += 1
        if units >= RECORDS_PER_STEP:
            yield units
            units = 0
    yield from _append(out, data, first, last)
    yield units + 1
    return out


def _shifted(header: BatchHeader, data: Buffer, places: array[int], base: int) -> Steps[bytearray]:
    """As `_joined`, with deltas from another base timestamp. An append time is that of all of
    them."""
    is_append_time = header.attributes & TIMESTAMP_TYPE_MASK
    out = bytearray(BATCH_OVERHEAD)
    numbers = iter(places)
    units = 0
    for start, rest, end, delta in zip(*[numbers] * 4, strict=True):
        old = header.max_timestamp if is_append_time else header.base_timestamp + delta
        changed = encode_varint(as_int64(old - base), 64)
        out += encode_varint(1 + len(changed) + end - rest)
        out.append(_attributes_byte(data, start))
        out += changed
        if end - rest > BYTES_PER_STEP:
            yield from _append(out, data, rest, end)
        else:  # a call per record would cost a tenth of it
            out += data[rest:end]
        units += 1 + (end - rest) % BYTES_PER_STEP // BYTES_PER_UNIT
        if units >= RECORDS_PER_STEP:
            yield units
            units = 0
    yield units + 1
    return out


def _attributes_byte(data: Buffer, start: int) -> int:
    """That of the record at `start`: the byte behind its length."""
    while data[start] >= 0x80:
        start += 1
    return data[start + 1]


def without_horizon(batch: Buffer, header: BatchHeader) -> Steps[bytearray]:
    """The batch, all its records as they lie, with bit 6 cleared."""
    out = bytearray(BATCH_OVERHEAD)
    yield from _append(out, batch, BATCH_OVERHEAD, header.size)
    complete(out, header._replace(attributes=header.attributes & ~DELETE_HORIZON_MASK))
    return out


def empty(header: BatchHeader, *, keeps_producer: bool) -> bytearray:
    """The batch as 61 bytes of header: offsets, leader epoch and max timestamp stay. With
    `keeps_producer` so do producer, sequence and flags; without it nobody's state hangs on the
    batch, and it is neither transactional nor control."""
    cleared = COMPRESSION_MASK | DELETE_HORIZON_MASK
    if not keeps_producer:
        cleared |= TRANSACTIONAL_MASK | CONTROL_MASK
        header = header._replace(
            producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE
        )
    attributes = header.attributes & ~cleared
    return assemble(
        header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""
    )
