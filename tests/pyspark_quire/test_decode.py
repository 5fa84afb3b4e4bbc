"""The decoder in bulk against the one record by record (wire/kafka/records)."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.transactions.aborted_index import AbortedTransaction
from pyspark_quire.columns import column_set
from pyspark_quire.decode import Bounds, Decoder
from wire.kafka.errors import WireError
from wire.kafka.records.batch import (
    TimestampType,
    build_batch,
    iter_records,
    parse_header,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

ALL = column_set(None, include_headers=True)
FEW = column_set("offset,value", include_headers=False)
#: Sizes where a varint, or Arrow's short views, change their form.
SIZES = st.sampled_from([0, 1, 3, 4, 11, 12, 13, 63, 64, 65, 200, 8191, 8192, 9000])


@st.composite
def texts(draw):
    if draw(st.booleans()):
        return draw(st.none() | st.binary(max_size=20))
    return bytes([draw(st.integers(0, 255))]) * draw(SIZES)


@st.composite
def batches(draw):
    """(bytes, what it is) of a few batches, one behind the other."""
    made, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        deltas = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=8)))
        records = [
            Record(
                delta,
                draw(st.integers(-(2**40), 2**40)),
                draw(texts()),
                draw(texts()),
                draw(st.lists(st.tuples(st.text(max_size=5), texts()), max_size=2)),
            )
            for delta in deltas
        ]
        is_append = draw(st.booleans())
        made.append(
            build_batch(
                records,
                base_offset=offset,
                base_timestamp=draw(st.integers(-(2**40), 2**45)),
                max_timestamp=draw(st.integers(-1, 2**45)) if is_append else None,
                timestamp_type=TimestampType(is_append),
                compression=draw(st.sampled_from(list(Compression))),
                last_offset_delta=deltas[-1] + draw(st.integers(0, 3)),
            )
        )
        offset += deltas[-1] + 4
    return made


def rows_of(batch):
    """What the decoder is to give of a batch, record by record."""
    header = parse_header(batch)
    for record in iter_records(batch, header, size_max=1 << 30):
        is_append = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        timestamp = header.base_timestamp + record.timestamp_delta
        yield {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": header.base_offset + record.offset_delta,
            "timestamp": header.max_timestamp if is_append else timestamp,
            "timestampType": int(is_append),
            "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
        }


def decoded(made, columns=ALL, bounds=None, **more):
    decoder = Decoder("t", 3, columns, bounds or Bounds(), **more)
    for batch in made:
        decoder.feed(batch)
    found = decoder.take()
    if found is None:
        return []
    assert found.schema.equals(columns.arrow)
    found.validate(full=True)
    if "timestamp" in columns.names:
        place = columns.names.index("timestamp")
        micros = found.column(place).cast("int64")
        found = found.set_column(place, "timestamp", micros)
    return found.to_pylist()


def wanted(made, bounds=None):
    bounds = bounds or Bounds()
    return [
        {**row, "timestamp": row["timestamp"] * 1000}
        for batch in made
        for row in rows_of(batch)
        if bounds.start <= row["offset"] < bounds.end
        and bounds.min_timestamp <= row["timestamp"] <= bounds.max_timestamp
    ]


@given(batches())
def test_gives_what_the_decoder_of_single_records_gives(made):
    assert decoded(made) == wanted(made)


@given(batches(), st.data())
@settings(max_examples=50)
def test_bounds_leave_out_what_is_outside(made, data):
    offsets = sorted(row["offset"] for batch in made for row in rows_of(batch))
    start, end = sorted(data.draw(st.sampled_from(offsets)) for _ in range(2))
    times = sorted(row["timestamp"] for batch in made for row in rows_of(batch))
    low, high = sorted(data.draw(st.sampled_from(times)) for _ in range(2))
    for bounds in (Bounds(start, end), Bounds(min_timestamp=low, max_timestamp=high)):
        assert decoded(made, bounds=bounds) == wanted(made, bounds)


@given(batches(), st.data())
@settings(max_examples=100)
def test_damage_is_an_error_and_nothing_else(made, data):
    """Whatever byte is another one: with the checksum always an error; without it an error, or
    rows (the byte was of a value)."""
    damaged = bytearray(made[0])
    place = data.draw(st.integers(21, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        decoded([bytes(damaged)])
    with contextlib.suppress(WireError):
        decoded([bytes(damaged)], checks_crc=False)


def batch(count, **more):
    records = [Record(n, n, b"k%d" % n, b"v%d" % n) for n in range(count)]
    return build_batch(records, base_timestamp=1000, **more)


def test_columns_are_those_that_were_asked_for():
    assert decoded([batch(2)], columns=FEW) == [
        {"offset": 0, "value": b"v0"},
        {"offset": 1, "value": b"v1"},
    ]


def test_a_timestamp_of_minus_one_is_a_time_and_no_null():
    made = build_batch([Record(0, 0, None, None)], base_timestamp=-1)
    assert decoded([made])[0]["timestamp"] == -1000


def test_control_batches_and_aborted_transactions_are_left_out_and_offsets_go_on():
    transaction = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    made = [
        batch(2, base_offset=0, **transaction),
        batch(2, base_offset=2, **{**transaction, "producer_id": 8}),
        batch(2, base_offset=4),
        batch(1, base_offset=6, is_control=True, **transaction),
        batch(1, base_offset=7, **transaction),
    ]
    aborted = [AbortedTransaction(7, 0, 6, 7)]
    assert [row["offset"] for row in decoded(made, aborted=aborted)] == [2, 3, 4, 5, 7]
    assert [row["offset"] for row in decoded(made)] == [0, 1, 2, 3, 4, 5, 7]
    decoder = Decoder("t", 3, ALL, Bounds())
    decoder.feed(made[3])
    assert decoder.take() is None
    assert decoder.next_offset == 7


def test_a_batch_without_records_gives_none():
    assert decoded([build_batch([], base_offset=5, last_offset_delta=3)]) == []


def test_what_was_taken_is_not_given_again():
    decoder = Decoder("t", 3, ALL, Bounds())
    for number in range(3):
        decoder.feed(batch(5, base_offset=5 * number))
        assert decoder.pending_records == 5
        assert decoder.take().column("offset").to_pylist() == list(
            range(5 * number, 5 * number + 5)
        )
        assert decoder.take() is None
