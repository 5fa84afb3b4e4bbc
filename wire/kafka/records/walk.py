"""The walk over all records of a batch: whether each can be read, and what a broker asks of it.

Nothing is copied and no record is made: lengths are added up, from the first record to the last.
Each start depends on the length before it, so no vector of anything walks it; a few nanoseconds a
record take machine code. `_walk.c` is that, built when the package is installed where there is a
compiler, and `walk_pure` is the same in Python: what runs without one, or if the environment says
so (wire/compiled.py), and the oracle of the other
(tests/wire/kafka/records/test_walk.py has them agree, faults and positions included, on whole
batches and damaged ones). `IS_COMPILED` tells which of them `walk` is. `spans` is the other walk,
for who needs the records' places and keys (compaction), with `spans_pure` beside it.

`whole_batch` says of a usual batch all that a broker asks of it whatever a topic's settings are
(broker/log/append/validation.py), checksum and walk included, in one step; of any other, None. It
is None itself where `walk` is Python: then the same is asked in several.

Measured on 1 MB of records of 100 bytes with keys, of different sizes (10,000 records; `python -m
bench.walk`, ms a batch on a busy machine, the least of 30):

    `_walk.c` 0.1    `walk_pure` 11    records made by `read_records` 14
    aiokafka's compiled DefaultRecordBatch 1.7: it makes an object of each record
    where records begin, in Python, 0.9: what numpy, or any other vector, would need first

The checksum of the same batch takes 0.04, and all that a produce of it costs 5.

Owner of the state: nobody. What is whole:

- exactly `count` records, and nothing behind the last;
- a record's length is that of its fields, none is cut short, and no varint has more bits than its
  field (32, a timestamp's delta 64);
- offset deltas are 0, 1, 2 …, as a producer numbers them;
- a key or value is null (-1) or of a size that is there; so is a header's value. Its key is never
  null.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from wire.buffers import Buffer
from wire.compiled import check_allowed

#: A record and where it lies in its batch's records: it begins at `start`, its offset delta at
#: `rest` (behind length, attributes and timestamp delta), and the next record at `end`; timestamp
#: delta, offset delta, key, and whether it has a value (a tombstone has none).
Span: TypeAlias = tuple[int, int, int, int, int, bytes | None, bool]


class Fault(IntEnum):
    """Why a batch's records are not whole; `_walk.c` has the same numbers."""

    NONE = 0
    CUT_SHORT = 1
    LONG_VARINT = 2
    BAD_LENGTH = 3
    BAD_OFFSET = 4
    BAD_KEY = 5
    BAD_VALUE = 6
    BAD_HEADERS = 7
    LEFT_OVER = 8


class Walked(NamedTuple):
    """What a walk found: `fault` in record `record_index`, `position` bytes behind the first.

    `max_timestamp` is that of all records (ms; -1 if none is later). `late_count` records have a
    timestamp that is out of bounds, `keyless_count` no key where one was asked for; `blamed` are
    their indexes, the first BLAMED_MAX of them. `min_timestamp`: the earliest of all, one that is
    none (-1) included; INT64_MAX without records. With a fault, the records behind it are not in
    any of these.
    """

    fault: int
    record_index: int
    position: int
    max_timestamp: int
    late_count: int
    keyless_count: int
    blamed: tuple[int, ...]
    min_timestamp: int


#: A refusal names no more records than these: the answer must not be larger than the request.
BLAMED_MAX = 500
NO_TIMESTAMP = -1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Length, attributes, two deltas, two lengths, header count: no record is smaller.
RECORD_BYTES_MIN = 7

_FAULT_TEXTS = {
    Fault.CUT_SHORT: "is cut short",
    Fault.LONG_VARINT: "has a varint that is longer than its field",
    Fault.BAD_LENGTH: "has another length than its fields",
    Fault.BAD_OFFSET: "has an offset delta that is not its place",
    Fault.BAD_KEY: "has a key of an impossible size",
    Fault.BAD_VALUE: "has a value of an impossible size",
    Fault.BAD_HEADERS: "has impossible headers",
}


def fault_text(walked: Walked) -> str:
    """What to tell the producer of records that are not whole."""
    if walked.fault == Fault.LEFT_OVER:
        return (
            f"bytes are left behind the last of {walked.record_index} records, at {walked.position}"
        )
    text = _FAULT_TEXTS[Fault(walked.fault)]
    return f"record {walked.record_index}, which begins at byte {walked.position}, {text}"


#: What the varints of one byte stand for.
_SHORT = tuple((byte >> 1) ^ -(byte & 1) for byte in range(0x80))


class _FaultError(Exception):
    """Ends a walk in Python; its argument is the Fault."""


def _varint(data: Buffer, position: int, end: int, bits: int = 32) -> tuple[int, int]:
    """A zigzag varint that must end before `end`, and where it ends. _FaultError."""
    if position == end:
        raise _FaultError(Fault.CUT_SHORT)
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift >= bits:
            raise _FaultError(Fault.LONG_VARINT)
        if position == end:
            raise _FaultError(Fault.CUT_SHORT)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if value >> bits:
            raise _FaultError(Fault.LONG_VARINT)
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def _skip_bytes(data: Buffer, position: int, end: int, fault: Fault) -> tuple[bool, int]:
    """Over a length and as many bytes: whether it was null, and where they end. _FaultError."""
    size, position = _varint(data, position, end)
    if size < -1 or size > end - position:
        raise _FaultError(fault)
    return size < 0, position + max(size, 0)


def _skip_headers(data: Buffer, position: int, end: int) -> int:
    count, position = _varint(data, position, end)
    if count < 0:
        raise _FaultError(Fault.BAD_HEADERS)
    for _ in range(count):
        is_null, position = _skip_bytes(data, position, end, Fault.BAD_HEADERS)
        if is_null:
            raise _FaultError(Fault.BAD_HEADERS)
        _, position = _skip_bytes(data, position, end, Fault.BAD_HEADERS)
    return position


def _walk_record(data: Buffer, start: int, size: int, index: int) -> tuple[int, int, int]:
    """One record, looked at byte by byte: its timestamp's delta, the key's size (-1 for none), and
    where it ends. _FaultError."""
    length, position = _varint(data, start, size)
    end = position + length
    if length < 1 or end > size:
        raise _FaultError(Fault.BAD_LENGTH)
    delta, position = _varint(data, position + 1, end, 64)
    offset_delta, position = _varint(data, position, end)
    if offset_delta != index:
        raise _FaultError(Fault.BAD_OFFSET)
    is_keyless, position = _skip_bytes(data, position, end, Fault.BAD_KEY)
    _, position = _skip_bytes(data, position, end, Fault.BAD_VALUE)
    position = _skip_headers(data, position, end)
    if position != end:
        raise _FaultError(Fault.BAD_LENGTH)
    return delta, -is_keyless, position


def _walk_usual(data: bytes, start: int, size: int, index: int) -> tuple[int, int, int]:
    """`_walk_record`, four times as quick where the record is whole, has no headers, and most of
    its numbers take one byte; all else is looked at again."""
    short = _SHORT
    try:
        if (byte := data[start]) < 0x80:
            end = start + 1 + short[byte]
            position = start + 2
        else:
            length, position = _varint(data, start, size)
            end = position + length
            position += 1
        if (byte := data[position]) < 0x80:
            delta = short[byte]
            position += 1
        else:
            delta, position = _varint(data, position, size, 64)
        if (byte := data[position]) < 0x80:
            offset_delta = short[byte]
            position += 1
        else:
            offset_delta, position = _varint(data, position, size)
        if (byte := data[position]) < 0x80:
            key_size = short[byte]
            position += 1
        else:
            key_size, position = _varint(data, position, size)
        if key_size > 0:
            position += key_size
        if (byte := data[position]) < 0x80:
            value_size = short[byte]
            position += 1
        else:
            value_size, position = _varint(data, position, size)
        if value_size > 0:
            position += value_size
        # Positions only grew: if this is the end, no field went beyond it.
        if (
            position + 1 == end
            and not data[position]
            and offset_delta == index
            and key_size >= -1
            and value_size >= -1
        ):
            return delta, key_size, end
    except (IndexError, _FaultError):
        pass
    return _walk_record(data, start, size, index)


def walk_pure(
    data: Buffer,
    count: int,
    base_timestamp: int,
    earliest: int,
    latest: int,
    wants_keys: bool,
    /,
) -> Walked:
    """`data`: the records, not compressed; `count` of them are to be there. Never raises.

    Timestamps (`base_timestamp` and a record's delta, ms) must be `earliest` to `latest`, and fit
    64 bits; -1 stands for none and always may be there.
    """
    data = bytes(data)
    size = len(data)
    position = index = late_count = keyless_count = 0
    max_timestamp, min_timestamp = NO_TIMESTAMP, INT64_MAX
    blamed: list[int] = []
    fault = Fault.NONE
    try:
        while index < count:
            delta, key_size, position = _walk_usual(data, position, size, index)
            timestamp = base_timestamp + delta
            overflows = not INT64_MIN <= timestamp <= INT64_MAX
            if timestamp > max_timestamp and not overflows:
                max_timestamp = timestamp
            if timestamp < min_timestamp and not overflows:
                min_timestamp = timestamp
            is_in_time = earliest <= timestamp <= latest or timestamp == NO_TIMESTAMP
            is_late = overflows or not is_in_time
            is_keyless = wants_keys and key_size < 0
            if is_late or is_keyless:
                late_count += is_late
                keyless_count += is_keyless
                if len(blamed) < BLAMED_MAX:
                    blamed.append(index)
            index += 1
        if position != size:
            fault = Fault.LEFT_OVER
    except _FaultError as error:
        fault = error.args[0]
    return Walked(
        *(fault, index, position, max_timestamp, late_count, keyless_count, tuple(blamed)),
        min_timestamp=min_timestamp,
    )


#: The sizes of its key and its value.
HEADER_BYTES_MIN = 2


def _span_slow(data: Buffer, start: int, size: int) -> Span:
    """One record, looked at byte by byte. _FaultError."""
    length, position = _varint(data, start, size)
    end = position + length
    if length < 1 or end > size:
        raise _FaultError(Fault.BAD_LENGTH)
    timestamp_delta, rest = _varint(data, position + 1, end, 64)
    offset_delta, position = _varint(data, rest, end)
    key_size, position = _varint(data, position, end)
    if key_size < -1 or key_size > end - position:
        raise _FaultError(Fault.BAD_KEY)
    key = None if key_size < 0 else bytes(data[position : position + key_size])
    position += max(key_size, 0)
    is_null, position = _skip_bytes(data, position, end, Fault.BAD_VALUE)
    count, position = _varint(data, position, end)
    if not 0 <= count <= (end - position) // HEADER_BYTES_MIN:
        raise _FaultError(Fault.BAD_HEADERS)
    if not count and position != end:
        raise _FaultError(Fault.BAD_LENGTH)
    return start, rest, end, timestamp_delta, offset_delta, key, not is_null


def _span_usual(data: Buffer, start: int, size: int) -> Span:
    """`_span_slow`, quicker where the record is whole and has no headers."""
    short = _SHORT
    try:
        if (byte := data[start]) < 0x80:
            end = start + 1 + short[byte]
            position = start + 2
        else:
            length, position = _varint(data, start, size)
            end = position + length
            position += 1
        if (byte := data[position]) < 0x80:
            timestamp_delta = short[byte]
            rest = position + 1
        else:
            timestamp_delta, rest = _varint(data, position, size, 64)
        if (byte := data[rest]) < 0x80:
            offset_delta = short[byte]
            position = rest + 1
        else:
            offset_delta, position = _varint(data, rest, size)
        key = None
        if (byte := data[position]) < 0x80:
            key_size = short[byte]
            position += 1
        else:
            key_size, position = _varint(data, position, size)
        if key_size >= 0:
            key = bytes(data[position : position + key_size])
            position += key_size
        if (byte := data[position]) < 0x80:
            value_size = short[byte]
            position += 1
        else:
            value_size, position = _varint(data, position, size)
        if value_size > 0:
            position += value_size
        # Positions only grew: if this is the end, no field went beyond it.
        if position + 1 == end and not data[position] and key_size >= -1 and value_size >= -1:
            return start, rest, end, timestamp_delta, offset_delta, key, value_size >= 0
    except (IndexError, _FaultError):
        pass
    return _span_slow(data, start, size)


def spans_pure(
    data: Buffer, position: int, count: int, bytes_max: int, /
) -> tuple[int, int, list[Span]]:
    """The next records from byte `position` on, of a batch's records that are not compressed:
    (fault, where the next or the bad record begins, the whole ones before it). They are `count`,
    or fewer, at least one, if these have `bytes_max` bytes: keys are copied.

    Headers are passed by: a record may have millions of them, they were walked when it was
    produced, and are moved as they are. Offset deltas are given as they are: compaction leaves
    gaps. Whether bytes are left behind the last record is for the caller to see. Never raises for
    what the data says.
    """
    size = len(data)
    found: list[Span] = []
    end_wanted = position + bytes_max
    try:
        while len(found) < count and (position < end_wanted or not found):
            span = _span_usual(data, position, size)
            found.append(span)
            position = span[2]
    except _FaultError as error:
        fault: Fault = error.args[0]
        return fault, position, found
    return Fault.NONE, position, found


#: Of a batch that is whole: its header's fields (as BatchHeader), the earliest timestamp of its
#: records (-1 included), and how many have no key. The latest timestamp is the header's.
Whole: TypeAlias = tuple[tuple[int, ...], int, int]

#: (all of the batch, the most records that may be walked) -> what is known of it. None if it is not
#: whole, is compressed, transactional, a control batch or one with append times, if its largest
#: timestamp is not that of its records, or the processor has no instruction for the checksum.
whole_batch: Callable[[Buffer, int], Whole | None] | None

try:
    check_allowed()
    from wire.kafka.records._walk import spans as spans
    from wire.kafka.records._walk import walk as walk
    from wire.kafka.records._walk import whole_batch as whole_batch
except ImportError:  # not wanted, or no compiler was there when the package was installed
    walk, spans, whole_batch = walk_pure, spans_pure, None
    IS_COMPILED = False
else:
    IS_COMPILED = True
