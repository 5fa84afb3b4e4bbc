"""Record batches: against Kafka's own bytes, kafka-python, kio, and whatever a peer may send."""

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from kio.records import readers as kio_readers
from kio.records import schema as kio_schema
from kio.records import writers as kio_writers

from wire.kafka.errors import EncodeError, WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    TimestampType,
    build_batch,
    check_crc,
    iter_records,
    parse_header,
    patch,
    patch_log_append_time,
    records_data,
    scan_batches,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record, encode_record, encode_varint, read_records

SIZE_MAX = 1 << 20
T0 = 1_700_000_000_000

maybe_bytes = st.none() | st.binary(max_size=200)
header_keys = st.text(max_size=20) | st.binary(max_size=9).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
headers = st.lists(st.tuples(header_keys, maybe_bytes), max_size=70)
few_headers = st.lists(st.tuples(st.text(max_size=20), maybe_bytes), max_size=3)
codecs = st.sampled_from(Compression)


@st.composite
def record_lists(draw, header_lists=headers):
    """What a producer sends: offsets 0, 1, 2… and any timestamps."""
    count = draw(st.integers(1, 8))
    deltas = st.integers(-(2**40), 2**40) | st.integers(-200, 200)
    return [
        Record(index, draw(deltas), draw(maybe_bytes), draw(maybe_bytes), draw(header_lists))
        for index in range(count)
    ]


def read_all(batch: bytes) -> list[Record]:
    return list(iter_records(batch, parse_header(batch), size_max=SIZE_MAX))


JAVA_RECORDS = [
    Record(0, 0, b"key", b"value", [("h", b"x"), ("n", None)]),
    Record(1, 100, None, bytes(200)),
    Record(2, -1000, b"", None),
]


@pytest.mark.parametrize("codec", Compression)
def test_java_batch(vectors, codec):
    batch = vectors[f"batch_{codec.name.lower()}"]
    [header] = scan_batches(batch)
    assert header == BatchHeader(
        base_offset=1000,
        batch_length=len(batch) - 12,
        partition_leader_epoch=5,
        magic=2,
        crc=header.crc,
        attributes=codec | 0x10,
        last_offset_delta=2,
        base_timestamp=T0,
        max_timestamp=T0 + 100,
        producer_id=42,
        producer_epoch=3,
        base_sequence=7,
        record_count=3,
    )
    assert header.compression is codec
    assert header.is_transactional
    assert not header.is_control
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert (header.size, header.last_offset, header.last_sequence) == (len(batch), 1002, 9)
    assert check_crc(batch, header)
    assert read_all(batch) == JAVA_RECORDS
    assert [header.timestamp_of(each) for each in JAVA_RECORDS] == [T0, T0 + 100, T0 - 1000]


def test_same_bytes_as_java(vectors):
    ours = build_batch(
        JAVA_RECORDS,
        base_offset=1000,
        leader_epoch=5,
        base_timestamp=T0,
        producer_id=42,
        producer_epoch=3,
        base_sequence=7,
        is_transactional=True,
    )
    assert ours == vectors["batch_none"]


def test_java_log_append_time(vectors):
    batch = vectors["batch_log_append"]
    header = parse_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    [record] = read_all(batch)
    assert header.timestamp_of(record) == T0
    # The same by patching what a producer sent.
    sent = bytearray(
        build_batch([Record(0, 0, b"a", b"b")], base_offset=5, base_timestamp=header.base_timestamp)
    )
    patch_log_append_time(sent, 0, parse_header(sent), T0)
    assert bytes(sent) == batch


@pytest.mark.parametrize("codec", Compression)
@settings(deadline=None)
@given(records=record_lists(), base=st.integers(0, 2**50), pid=st.integers(-1, 2**40))
def test_round_trip(codec, records, base, pid):
    batch = build_batch(
        records,
        base_offset=base,
        leader_epoch=9,
        compression=codec,
        base_timestamp=T0,
        producer_id=pid,
        producer_epoch=1,
        base_sequence=3,
    )
    header = parse_header(batch)
    assert check_crc(batch, header)
    assert scan_batches(batch) == [header]
    assert read_all(batch) == records
    assert header[:4] == (base, len(batch) - 12, 9, 2)
    assert header[5:7] == (codec, len(records) - 1)
    assert header[7:] == (
        T0,
        T0 + max(each.timestamp_delta for each in records),
        pid,
        1,
        3,
        len(records),
    )


@given(records=record_lists(few_headers), codec=codecs, transactional=st.booleans())
@settings(deadline=None)
def test_kafka_python_reads_ours(records, codec, transactional):
    batch = build_batch(
        records,
        base_offset=77,
        compression=codec,
        base_timestamp=T0,
        producer_id=5,
        producer_epoch=2,
        base_sequence=11,
        is_transactional=transactional,
    )
    memory = MemoryRecords(batch)
    theirs = memory.next_batch()
    assert memory.next_batch() is None
    assert theirs.validate_crc()
    header = parse_header(batch)
    for name, ours in {
        "base_offset": header.base_offset,
        "size_in_bytes": header.size,
        "leader_epoch": header.partition_leader_epoch,
        "attributes": header.attributes,
        "last_offset": header.last_offset,
        "first_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "records_count": header.record_count,
        "is_transactional": header.is_transactional,
        "is_control_batch": header.is_control,
    }.items():
        assert getattr(theirs, name) == ours, name
    # An empty zstd or gzip batch aside, what comes out is what went in.
    got = [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in theirs]
    assert got == [
        (77 + each.offset_delta, T0 + each.timestamp_delta, each.key, each.value, each.headers)
        for each in records
    ]


@given(records=record_lists(few_headers), codec=codecs, transactional=st.booleans())
@settings(deadline=None)
def test_reads_kafka_python(records, codec, transactional):
    builder = DefaultRecordBatchBuilder(2, int(codec), transactional, 5, 2, 11, SIZE_MAX)
    for each in records:
        timestamp = T0 + each.timestamp_delta - records[0].timestamp_delta
        builder.append(each.offset_delta, timestamp, each.key, each.value, each.headers)
    batch = bytes(builder.build())
    header = parse_header(batch)
    assert check_crc(batch, header)
    assert header[9:] == (5, 2, 11, len(records))
    assert header.is_transactional == transactional
    got = [
        (each.offset_delta, header.timestamp_of(each), each.key, each.value, each.headers)
        for each in iter_records(batch, header, size_max=SIZE_MAX)
    ]
    assert got == [
        (
            each.offset_delta,
            T0 + each.timestamp_delta - records[0].timestamp_delta,
            each.key,
            each.value,
            each.headers,
        )
        for each in records
    ]


def _kio_records(batch: bytes):
    theirs, size = kio_readers.read_batch(batch, 0)
    assert size == len(batch)
    return theirs


@given(records=record_lists(few_headers))
@settings(deadline=None)
def test_kio_both_directions(records):
    for each in records:
        each.timestamp_delta = abs(each.timestamp_delta) // 1000 * 1000  # kio's are whole seconds
    batch = build_batch(records, base_offset=7, leader_epoch=1, base_timestamp=T0, producer_id=5)
    theirs = _kio_records(batch)
    header = parse_header(batch)
    for name in BatchHeader._fields:
        if name not in ("magic", "record_count"):
            assert getattr(theirs, name) == getattr(header, name), name
    got = [
        (
            each.offset - 7,
            each.key,
            each.value,
            [(item.key.decode(), item.value) for item in each.headers],
        )
        for each in theirs.records
    ]
    expected = [(each.offset_delta, each.key, each.value, each.headers) for each in records]
    assert got == expected
    again = io.BytesIO()
    kio_writers.write_new_batch(
        again,
        kio_schema.NewRecordBatch(
            producer_id=5, producer_epoch=0, base_sequence=0, records=theirs.records, attributes=0
        ),
    )
    written = again.getvalue()
    header = parse_header(written)
    assert check_crc(written, header)
    assert [
        (each.offset_delta, header.timestamp_of(each), each.key, each.value, each.headers)
        for each in iter_records(written, header, size_max=SIZE_MAX)
    ] == [
        (each.offset_delta, T0 + each.timestamp_delta, each.key, each.value, each.headers)
        for each in records
    ]


def test_patch_keeps_the_crc():
    batch = bytearray(b"??" + build_batch([Record(0, 0, b"k", b"v")], base_sequence=4))
    before = parse_header(batch, 2)
    patch(batch, 2, 2**40, 17)
    after = parse_header(batch, 2)
    assert after == before._replace(base_offset=2**40, partition_leader_epoch=17)
    assert check_crc(batch, after, 2)
    view = memoryview(batch)
    patch(view, 2, 1, -1)
    assert parse_header(view, 2).base_offset == 1


@pytest.mark.parametrize("codec", Compression)
def test_patch_log_append_time(codec):
    records = [Record(0, 0, None, b"a"), Record(1, 9, None, b"b")]
    batch = build_batch(records, base_timestamp=T0, compression=codec, is_transactional=True)
    buffer = bytearray(b"front" + batch + batch)
    patch_log_append_time(buffer, 5, parse_header(buffer, 5), T0 + 1234)
    header = parse_header(buffer, 5)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.max_timestamp, header.base_timestamp) == (T0 + 1234, T0)
    assert (header.compression, header.is_transactional) == (codec, True)
    assert check_crc(buffer, header, 5)
    assert [header.timestamp_of(each) for each in records] == [T0 + 1234] * 2
    assert buffer[5 + len(batch) :] == batch  # the next one is untouched
    assert [each.timestamp for each in MemoryRecords(buffer[5:]).next_batch()] == [T0 + 1234] * 2


def test_every_damaged_byte_shows_in_the_crc():
    batch = build_batch([Record(0, 0, b"key", b"value")])
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        assert not check_crc(damaged, parse_header(damaged))


def test_scan():
    first = build_batch([Record(0, 0, None, b"a")], base_offset=3)
    second = build_batch([Record(0, 0, None, b"bb"), Record(1, 0, None, b"")], base_offset=4)
    assert scan_batches(b"") == []
    for whole in (first + second, bytearray(first + second), memoryview(first + second)):
        assert [(each.base_offset, each.size) for each in scan_batches(whole)] == [
            (3, len(first)),
            (4, len(second)),
        ]
    for size in range(1, len(first)):
        with pytest.raises(WireError, match=f"at byte {len(second)} is cut short: {size} of"):
            scan_batches(second + first[:size])


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (8, struct.pack(">i", 48), "at byte 69 has length 48, a header alone has 49"),
        (8, struct.pack(">i", -1), "at byte 69 has length -1"),
        (8, struct.pack(">i", 2**31 - 1), "at byte 69 is cut short: 69 of 2147483659 bytes"),
        (16, b"\x01", "at byte 69 has magic 1, not 2"),
        (16, b"\xff", "at byte 69 has magic 255, not 2"),
    ],
)
def test_scan_names_the_place(offset, value, message):
    batch = build_batch([Record(0, 0, None, b"1")])
    assert len(batch) == 69
    bad = batch[:offset] + value + batch[offset + len(value) :]
    with pytest.raises(WireError, match=message):
        scan_batches(batch + bad)


@given(data=st.binary(max_size=300), codec=st.integers(0, 7), count=st.integers(-1, 2**31 - 1))
def test_any_bytes_as_records(data, codec, count):
    head = build_batch([])[:BATCH_OVERHEAD]
    fields = list(parse_header(head))
    fields[1] = BATCH_OVERHEAD - 12 + len(data)
    fields[5] = codec
    fields[12] = count
    batch = struct.pack(">qiibIhiqqqhii", *fields) + data
    [header] = scan_batches(batch)
    with suppress(WireError):
        for _ in iter_records(batch, header, size_max=100_000):
            pass


@given(data=st.binary(max_size=200))
def test_any_bytes_as_batches(data):
    with suppress(WireError):
        assert sum(each.size for each in scan_batches(data)) == len(data)


@settings(max_examples=300)
@given(codec=codecs, position=st.integers(0, 10_000), mask=st.integers(1, 255), size=st.integers(0))
def test_damaged_batches(codec, position, mask, size):
    batch = bytearray(build_batch(JAVA_RECORDS, compression=codec))
    batch[position % len(batch)] ^= mask
    del batch[len(batch) - size % 3 :]
    with suppress(WireError):
        for header in scan_batches(batch):
            for record in iter_records(batch, header, size_max=SIZE_MAX):
                assert isinstance(record.value, bytes | None)


@settings(max_examples=300)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_what_is_read_can_be_written(position, byte):
    data = bytearray(b"".join(map(encode_record, JAVA_RECORDS)))
    data[position % len(data)] = byte
    try:
        records = list(read_records(bytes(data), 3))
    except WireError:
        return
    assert list(read_records(b"".join(map(encode_record, records)), 3)) == records


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 1, "record at byte 0 is cut short by the end of the batch"),
        (b"\x0c\x00\x00\x00\x01\x01\x00", 2, "record at byte 7 is cut short"),
        (b"\x0c\x00\x00\x00\x01\x01\x00!", 1, "1 bytes follow the last of 1 records"),
        (b"\x0c\x00\x00\x00\x01\x01\x00", 0, "7 bytes follow the last of 0 records"),
        (
            b"\x0e\x00\x00\x00\x01\x01\x00\x00",
            1,
            "its length says byte 8, its fields end at byte 7",
        ),
        (b"\x0b\x00\x00\x00\x01\x01\x00", 1, "its length says byte -5"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", 1, "key has -2 bytes"),
        (b"\x0c\x00\x00\x00\x01\x03\x00", 1, "value has -2 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, "-1 headers"),
        (b"\x0c\x00\x00\x00\x01\x7e\x00", 1, "cut short"),
        (b"\x0e\x00\x00\x00\x01\x01\x02\x01", 1, "header key at byte 8 has -1 bytes"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x00\x03", 1, "header value at byte 9 has -2 bytes"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x00\x7e", 1, "header value at byte 9 has 63 bytes"),
        (b"\xff\xff\xff\xff\x1f\x00\x00\x00\x01\x01\x00", 1, "more than 32 bits"),
        (b"\xff\xff\xff\xff\xff\x00", 1, "more than 32 bits"),
        (b"\xff" * 5 + b"\x01", 1, "varint that ends at byte 5 has more than 32 bits"),
        (b"\x20\x00" + b"\xff" * 9 + b"\x02\x00\x01\x01\x00", 1, "more than 64 bits"),
    ],
)
def test_record_errors(data, count, message):
    with pytest.raises(WireError, match=message):
        list(read_records(data, count))


def test_wrong_record_count():
    batch = bytearray(build_batch(JAVA_RECORDS))
    header = parse_header(batch)
    for count, message in ((2, "bytes follow the last of 2"), (4, "cut short"), (-1, "-1 records")):
        with pytest.raises(WireError, match=message):
            list(iter_records(batch, header._replace(record_count=count), size_max=SIZE_MAX))


def test_decompressed_size_is_limited():
    for codec in Compression:
        batch = build_batch([Record(0, 0, None, bytes(5000))], compression=codec)
        header = parse_header(batch)
        assert len(records_data(batch, header, size_max=5010)) == 5010 - 1
        with pytest.raises(WireError, match="larger than 5000"):
            iter_records(batch, header, size_max=5000)


def test_unknown_compression_and_incomplete_batch():
    batch = build_batch([Record(0, 0, None, b"v")])
    header = parse_header(batch)
    with pytest.raises(WireError, match="unknown compression 5"):
        iter_records(batch, header._replace(attributes=5), size_max=10)
    with pytest.raises(WireError, match=f"cut short: {len(batch) - 1} of {len(batch)} bytes"):
        iter_records(batch[:-1], header, size_max=10)
    assert list(iter_records(batch + b"next", header, size_max=10))


def test_delete_horizon_keeps_timestamps():
    records = [Record(0, 5, b"k", None), Record(7, -5, b"l", None)]
    batch = build_batch(records, base_timestamp=T0, delete_horizon_ms=T0 + 86_400_000)
    header = parse_header(batch)
    assert header.delete_horizon_ms == T0 + 86_400_000
    assert header.max_timestamp == T0 + 5
    got = list(iter_records(batch, header, size_max=SIZE_MAX))
    assert [header.timestamp_of(each) for each in got] == [T0 + 5, T0 - 5]
    assert header.last_offset_delta == 7  # a gap, as compaction leaves it
    assert parse_header(build_batch(records)).delete_horizon_ms is None


def test_batch_without_records():
    """Compaction keeps the header of an emptied batch for its sequence and last offset."""
    batch = build_batch(
        [], base_offset=10, last_offset_delta=4, producer_id=3, producer_epoch=0, base_sequence=8
    )
    header = parse_header(batch)
    assert (len(batch), header.last_offset, header.record_count) == (61, 14, 0)
    assert (header.last_sequence, header.max_timestamp) == (12, -1)
    assert list(iter_records(batch, header, size_max=0)) == []


@given(base=st.integers(0, 2**31 - 1), delta=st.integers(0, 2**31 - 1))
def test_last_sequence_wraps(base, delta):
    header = parse_header(build_batch([], base_sequence=base, last_offset_delta=delta))
    expected = base
    if delta:
        expected = base + delta if base + delta <= 2**31 - 1 else base + delta - 2**31
    assert header.last_sequence == expected
    assert parse_header(build_batch([])).last_sequence == -1


@pytest.mark.parametrize(
    "make",
    [
        lambda: build_batch([Record(2**31, 0, None, None)]),
        lambda: build_batch([Record(0, 2**63, None, None)]),
        lambda: build_batch([Record(0, 0, None, None)], producer_epoch=2**15),
        lambda: build_batch([Record(0, 0, None, None)], base_offset=2**63),
    ],
)
def test_values_that_do_not_fit(make):
    with pytest.raises(EncodeError):
        make()


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints(value):
    encoded = encode_varint(value, 64)
    out = bytearray()
    rest = (value << 1) ^ (value >> 63)
    while True:
        byte, rest = rest & 0x7F, rest >> 7
        out.append(byte | (0x80 if rest else 0))
        if not rest:
            break
    assert encoded == out
