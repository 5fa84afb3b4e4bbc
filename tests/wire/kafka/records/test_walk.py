"""The walk over a batch's records: its Python is right, and its C says the same of everything."""

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.kafka.errors import WireError
from wire.kafka.records import walk as walk_module
from wire.kafka.records.record import Record, encode_record, encode_varint, read_records
from wire.kafka.records.walk import (
    BLAMED_MAX,
    INT64_MAX,
    INT64_MIN,
    Fault,
    Walked,
    fault_text,
    spans,
    spans_pure,
    walk,
    walk_pure,
)

ANY_TIME = INT64_MIN, INT64_MAX
needs_compiled = pytest.mark.skipif(
    not walk_module.IS_COMPILED, reason="installed where there was no compiler"
)

deltas = st.one_of(st.integers(-70, 70), st.integers(-(2**63), 2**63 - 1))
blobs = st.one_of(st.none(), st.binary(max_size=6), st.binary(min_size=60, max_size=140))
headers = st.lists(st.tuples(st.text(max_size=3), blobs), max_size=3)


@st.composite
def bodies(draw):
    """(bytes of records as a producer numbers them, the records)."""
    made = draw(st.lists(st.tuples(deltas, blobs, blobs, headers), max_size=12))
    start = draw(st.sampled_from([0, 0, 0, 1]))  # now and then all offset deltas are wrong
    records = [Record(start + n, *fields) for n, fields in enumerate(made)]
    return b"".join(map(encode_record, records)), records


@given(bodies(), st.integers(-(2**40), 2**40), st.booleans())
def test_whole_records_are_whole(body, base, wants_keys):
    data, records = body
    if records and records[0].offset_delta:
        assert walk_pure(data, len(records), base, *ANY_TIME, wants_keys).fault == Fault.BAD_OFFSET
        return
    got = walk_pure(data, len(records), base, *ANY_TIME, wants_keys)
    assert (got.fault, got.record_index, got.position) == (Fault.NONE, len(records), len(data))
    times = [base + record.timestamp_delta for record in records]
    fits = [INT64_MIN <= time <= INT64_MAX for time in times]
    inside = [time for time, fit in zip(times, fits, strict=True) if fit]
    assert got.max_timestamp == max([-1, *inside])
    assert got.late_count == fits.count(False)
    keyless = [wants_keys and record.key is None for record in records]
    assert got.keyless_count == keyless.count(True)
    assert list(got.blamed) == [
        n for n, (fit, key) in enumerate(zip(fits, keyless, strict=True)) if key or not fit
    ]


@given(bodies(), st.integers(-1, 13), st.integers(0, 2**32))
def test_what_is_called_whole_can_be_read(body, count, seed):
    """Whatever passes, `read_records` reads; and whole records that are changed by one byte are
    called whole only if that reads them, too."""
    data, records = body
    rng = random.Random(seed)
    damaged = bytearray(data)
    if damaged:
        for _ in range(rng.choice([0, 1, 2])):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
    for number in (count, len(records)):
        got = walk_pure(damaged, number, 0, *ANY_TIME, False)
        try:
            read = list(read_records(bytes(damaged), number))
        except WireError:
            assert got.fault
            continue
        in_step = [record.offset_delta for record in read] == list(range(number))
        assert not got.fault or not in_step or got.fault == Fault.LONG_VARINT


@needs_compiled
@given(
    bodies(), st.integers(0, 2**32), st.integers(INT64_MIN, INT64_MAX),
    st.integers(-100, 100), st.integers(-100, 100), st.booleans(),
)  # fmt: skip
def test_compiled_says_what_python_says(body, seed, base, earliest, latest, wants_keys):
    """Of whole and of damaged records: the fault, where it is, times, counts and indexes."""
    data, records = body
    rng = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 1, 3])):
        if damaged:
            damaged[rng.randrange(len(damaged))] = rng.choice(
                [0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, rng.randrange(256)]
            )
    if rng.random() < 0.3:
        del damaged[rng.randrange(len(damaged) + 1) :]
    if rng.random() < 0.1:
        damaged += rng.randbytes(5)
    for count in {len(records), rng.randrange(-1, 15), 2**31 - 1}:
        for base_timestamp in (base, 0, rng.randrange(-100, 100)):
            for bounds in (ANY_TIME, (earliest, latest)):
                args = count, base_timestamp, *bounds, wants_keys
                assert walk(damaged, *args) == walk_pure(damaged, *args)


@needs_compiled
@given(st.binary(max_size=60), st.integers(0, 9))
def test_compiled_says_what_python_says_of_noise(noise, count):
    args = noise, count, 0, *ANY_TIME, True
    assert walk(*args) == walk_pure(*args)


LONG = b"\x80\x80\x80\x80"
VARINTS = {
    "five bytes": (LONG + b"\x00", Fault.NONE),
    "five bytes with four bits": (LONG + b"\x0f", Fault.BAD_KEY),
    "five bytes with five bits": (LONG + b"\x10", Fault.LONG_VARINT),
    "six bytes": (LONG + b"\x80\x00", Fault.LONG_VARINT),
}


@pytest.mark.parametrize("name", VARINTS)
@pytest.mark.parametrize("function", [walk, walk_pure])
def test_varints_have_32_bits(name, function):
    """As Java's ByteUtils: five bytes at most, however many of their bits are zero."""
    size, fault = VARINTS[name]
    rest = b"\0\0\0" + size + b"\x01\0"
    data = encode_varint(len(rest)) + rest
    assert function(data, 1, 0, *ANY_TIME, False)[0] == fault


@pytest.mark.parametrize("function", [walk, walk_pure])
def test_no_more_than_some_records_are_blamed(function):
    data = b"".join(encode_record(Record(n, 0, None, b"", [])) for n in range(2000))
    got = Walked._make(function(data, 2000, 7, 8, 9, True))
    assert (got.late_count, got.keyless_count, got.max_timestamp) == (2000, 2000, 7)
    assert got.blamed == tuple(range(BLAMED_MAX))
    none = Walked._make(function(data, 2000, -1, 8, 9, False))  # without a timestamp: always right
    assert (none.late_count, none.blamed, none.max_timestamp) == (0, (), -1)


@pytest.mark.parametrize("function", [walk, walk_pure])
def test_long_records_are_walked_from_any_memory(function):
    """Above 64 KiB the compiled walk runs without the interpreter's lock."""
    data = encode_record(Record(0, 5, b"k" * 200_000, b"v" * 70_000, [("h", b"x" * 20_000)]))
    for memory in (data, bytearray(data), memoryview(data), memoryview(b"12" + data)[2:]):
        assert function(memory, 1, 10, *ANY_TIME, True)[:4] == (Fault.NONE, 1, len(data), 15)


def test_every_fault_says_where():
    data = b"".join(encode_record(Record(n, 0, None, b"abc", [])) for n in range(3))
    for fault in Fault:
        if fault is not Fault.NONE:
            text = fault_text(Walked(fault, 2, 22, -1, 0, 0, (), 0))
            assert "2" in text
            assert "22" in text
    got = Walked._make(walk(data[:-1], 3, 0, *ANY_TIME, False))
    assert fault_text(got) == f"record 2, which begins at byte {len(data) // 3 * 2}, " + (
        "has another length than its fields"
    )


@pytest.mark.parametrize("function", [walk, walk_pure])
@pytest.mark.parametrize("size", [-2, 3, 4, 60])
def test_a_headers_value_ends_in_its_record(function, size):
    """Of two records, the first one's header claims what the second one holds."""
    rest = b"\0\0\0\x01\x01\x02\x02h" + encode_varint(size) + b"xy"
    second = encode_record(Record(1, 0, b"k" * 30, b"v" * 30, []))
    data = encode_varint(len(rest)) + rest + second
    assert function(data, 2, 0, *ANY_TIME, False)[:2] == (Fault.BAD_HEADERS, 0)
    whole = data.replace(b"h" + encode_varint(size), b"h" + encode_varint(2))
    assert function(whole, 2, 0, *ANY_TIME, False)[:2] == (Fault.NONE, 2)


@pytest.mark.parametrize("function", [walk, walk_pure])
@pytest.mark.parametrize(
    ("tenth", "fault"),
    [
        (b"\x00", Fault.NONE),
        (b"\x01", Fault.NONE),
        (b"\x02", Fault.LONG_VARINT),
        (b"\x03", Fault.LONG_VARINT),
        (b"\x40", Fault.LONG_VARINT),
        (b"\x80\x00", Fault.LONG_VARINT),
    ],
)
def test_a_timestamps_delta_has_64_bits(function, tenth, fault):
    rest = b"\0" + b"\x80" * 9 + tenth + b"\0\x01\x01\0"
    data = encode_varint(len(rest)) + rest
    got = function(data, 1, 0, *ANY_TIME, False)
    assert got[0] == fault
    if tenth == b"\x01":
        assert got[3] == 2**62


NO_LIMIT = 1 << 40
both_spans = pytest.mark.parametrize(
    "spans", [spans_pure, pytest.param(spans, marks=needs_compiled)]
)


def read_spans(spans, data, count, step=1000):
    """(fault, records before it, as `read_records` has them but for headers)."""
    position, found = 0, []
    while True:
        fault, position, some = spans(data, position, min(step, count - len(found)), NO_LIMIT)
        found += some
        if fault or len(found) == count:
            return fault, position, found


@both_spans
@given(body=bodies(), step=st.integers(1, 5))
def test_spans_are_where_the_records_are(spans, body, step):
    data, records = body
    fault, position, found = read_spans(spans, data, len(records), step)
    assert (fault, position, len(found)) == (Fault.NONE, len(data), len(records))
    end = 0
    for (start, rest, after, delta, offset_delta, key, has_value), record in zip(
        found, records, strict=True
    ):
        assert start == end
        end = after
        assert data[start:end] == encode_record(record)
        got = (delta, offset_delta, key, has_value)
        assert got == (
            record.timestamp_delta, record.offset_delta, record.key, record.value is not None,
        )  # fmt: skip
        head = encode_varint(record.timestamp_delta, 64)
        assert data[rest - len(head) : rest] == head
        assert data[rest:end].startswith(encode_varint(record.offset_delta))


def test_a_record_of_many_headers_costs_no_more_than_another():
    """A batch of a client: a quarter of a million steps would be one turn of the loop."""
    data = encode_record(Record(0, 0, b"key", b"value", [("", None)] * 250_000))
    steps = []

    def count(frame, event, _):
        steps.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        fault, position, found = spans_pure(data, 0, 1, NO_LIMIT)
    finally:
        sys.setprofile(None)
    assert (fault, position, len(found)) == (Fault.NONE, len(data), 1)
    assert len(steps) < 100


@both_spans
@given(body=bodies(), count=st.integers(0, 13), seed=st.integers(0, 2**32))
def test_spans_take_what_can_be_read(spans, body, count, seed):
    """Damaged records: what `read_records` refuses has a fault, at the same record, or a damaged
    header, which is moved as it is."""
    data, records = body
    rng = random.Random(seed)
    damaged = bytearray(data)
    at = rng.randrange(len(damaged)) if damaged else 0
    if damaged:
        damaged[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
    damaged = bytes(damaged)
    for number in (count, len(records)):
        fault, _, found = spans(damaged, 0, number, NO_LIMIT)
        read = []
        try:
            for record in read_records(damaged, number):
                read.append(record)
            is_read = True
        except WireError:
            # Bytes behind the last record are for the caller to see.
            is_read = len(read) == number
        assert not (is_read and fault)
        if len(found) != len(read):
            assert at < found[len(read)][2], "what is not damaged is read"
        else:
            assert is_read == (not fault)
        for span, record in zip(found, read, strict=False):
            assert span[3:6] == (record.timestamp_delta, record.offset_delta, record.key)


def is_same(data, position, count, bytes_max):
    expected = spans_pure(data, position, count, bytes_max)
    got = spans(data, position, count, bytes_max)
    assert got == expected
    assert [list(map(type, span)) for span in got[2]] == [
        list(map(type, span)) for span in expected[2]
    ]
    return expected


@needs_compiled
@given(
    bodies(),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=4),
    st.integers(0, 4000),
    st.integers(-1, 14),
    st.sampled_from([0, 1, 50, NO_LIMIT]),
)
def test_both_find_the_same_spans(body, changes, cut, count, bytes_max):
    """Of whole records, of damaged ones, and of such that are cut; from each place where the walk
    before ended."""
    data = bytearray(body[0])
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    data = bytes(data[: cut or None])
    position = 0
    while True:
        fault, after, _ = is_same(data, position, count, bytes_max)
        if fault or after == position or after >= len(data):
            return
        position = after


@needs_compiled
@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 6))
def test_both_find_the_same_in_any_bytes(data, position, count):
    is_same(data, min(position, len(data)), count, NO_LIMIT)


@needs_compiled
@given(
    st.lists(
        st.sampled_from(
            [0, 1, 2, 3, -1, -2, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63)]
        ),
        max_size=7,
    ),
    st.binary(max_size=12),
)
def test_both_find_the_same_in_numbers_at_their_bounds(numbers, tail):
    """A record of such numbers, with a length that is right."""
    body = b"\0" + b"".join(encode_varint(number, 64) for number in numbers) + tail
    is_same(encode_varint(len(body)) + body, 0, 2, NO_LIMIT)


@both_spans
def test_spans_end_at_a_number_of_bytes(spans):
    """Not in a record, and never before the first."""
    data = b"".join(encode_record(Record(n, 0, b"k" * 100, b"")) for n in range(10))
    size = len(data) // 10
    for bytes_max, count in ((0, 1), (1, 1), (size, 1), (size + 1, 2), (3 * size, 3), (10**9, 10)):
        fault, position, found = spans(data, 0, 10, bytes_max)
        assert (fault, position, len(found)) == (Fault.NONE, count * size, count)


@both_spans
def test_spans_of_a_view_have_keys_that_are_copies(spans):
    data = bytearray(b"".join(encode_record(Record(n, 0, b"k" * n, b"v")) for n in range(70)))
    fault, position, found = spans(memoryview(data), 0, 70, NO_LIMIT)
    assert (fault, position) == (Fault.NONE, len(data))
    data[:] = bytes(len(data))  # and nothing holds the view
    data.clear()
    assert [span[5] for span in found] == [b"k" * n for n in range(70)]
    assert {type(span[5]) for span in found} == {bytes}


@needs_compiled
def test_a_place_outside_of_the_records_is_refused():
    for position in (-1, 5):
        with pytest.raises(ValueError, match="outside"):
            spans(b"abcd", position, 1, 1)


@pytest.mark.parametrize("function", [walk, walk_pure])
def test_the_earliest_timestamp_is_told(function):
    """Not always the first record's; what does not fit 64 bits is no time."""

    def earliest(base, *deltas):
        records = [Record(n, delta, None, b"", []) for n, delta in enumerate(deltas)]
        data = b"".join(map(encode_record, records))
        return Walked._make(function(data, len(records), base, *ANY_TIME, False)).min_timestamp

    assert earliest(100, 0, -7, 5) == 93
    assert earliest(100, 0, -101) == -1
    assert earliest(-(2**63), -1, 4) == -(2**63) + 4
    assert earliest(0) == 2**63 - 1
