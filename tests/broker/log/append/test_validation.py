"""What a produced batch must be: each refusal's code, and that nothing else ever escapes.

The codes are Apache Kafka's (compat_tests/control_answers.json has its answers to such bytes), but
for the deviations that compat_tests/test_bad_batches.py names.
"""

import random
import struct
import tracemalloc
from dataclasses import dataclass

import lz4.frame
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.log.append.validation import DECOMPRESSED_BYTES_MAX, checked_batch, own_batch
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import build_batch, iter_records, parse_header
from wire.kafka.records.compression import Compression, SizeLimitError, compress
from wire.kafka.records.record import Record, encode_record

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
FIELDS = {
    "base_offset": (">q", 0),
    "batch_length": (">i", 8),
    "leader_epoch": (">i", 12),
    "magic": (">b", 16),
    "attributes": (">h", 21),
    "last_offset_delta": (">i", 23),
    "base_timestamp": (">q", 27),
    "max_timestamp": (">q", 35),
    "producer_id": (">q", 43),
    "producer_epoch": (">h", 51),
    "base_sequence": (">i", 53),
    "record_count": (">i", 57),
}


@dataclass
class Config:
    cleanup_policy: tuple = ("delete",)
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = (1 << 63) - 1
    message_timestamp_after_max_ms: int = HOUR_MS
    compression_type: str = "producer"
    quire_locks: str = "off"
    quire_locks_max_per_record: int = 64
    quire_locks_table_size: int = 30_000
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3


def batch(count=2, *, key=b"k", value=b"v", timestamp=NOW_MS, **options):
    records = [Record(n, n, key, value, []) for n in range(count)]
    return build_batch(records, base_timestamp=timestamp, **options)


def change(data, *, seal=True, **fields):
    """Header fields set to values, and the checksum made right unless `seal` is false."""
    changed = bytearray(data)
    for name, value in fields.items():
        layout, at = FIELDS[name]
        struct.pack_into(layout, changed, at, value)
    if seal:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def with_body(body, count=1, attributes=0):
    """A batch of these bytes where the records should be."""
    made = batch(1)[:61] + body
    return change(
        made, batch_length=len(made) - 12, record_count=count, last_offset_delta=count - 1,
        attributes=attributes,
    )  # fmt: skip


def checked(data, *, internal=False, bytes_max=DECOMPRESSED_BYTES_MAX, **config):
    return checked_batch(
        memoryview(bytearray(data)),
        Config(**config),
        NOW_MS,
        internal=internal,
        decompressed_bytes_max=bytes_max,
    )


def check(data, **options):
    return checked(data, **options).header


def code_of(data, *, internal=False, **config):
    refusal = None
    try:
        check(data, internal=internal, **config)
    except KafkaError as error:
        refusal = error
    if refusal is None:
        return "NONE"
    assert refusal.message, "a refusal says what is wrong"
    return refusal.code.name


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("policy", [("delete",), ("compact",), ("compact", "delete")])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 500])
def test_what_is_right_passes(codec, policy, count):
    data = batch(count, compression=codec)
    header = check(data, cleanup_policy=policy)
    assert header == parse_header(data)
    assert header.record_count == count


HEADERS = {
    "empty": (b"", "INVALID_RECORD"),
    "16 bytes": (b"\0" * 16, "INVALID_RECORD"),
    "header cut short": (batch()[:40], "INVALID_RECORD"),
    "records cut short": (batch()[:-1], "INVALID_RECORD"),
    "two batches": (batch() * 2, "INVALID_RECORD"),
    "garbage after the batch": (batch() + b"\xde\xad\xbe\xef", "NONE"),
    "magic 0": (change(batch(), magic=0), "INVALID_RECORD"),
    "magic 1": (change(batch(), magic=1), "INVALID_RECORD"),
    "magic 3": (change(batch(), magic=3), "CORRUPT_MESSAGE"),
    "magic -1": (change(batch(), magic=-1), "CORRUPT_MESSAGE"),
    "size negative": (change(batch(), batch_length=-5), "CORRUPT_MESSAGE"),
    "size zero": (change(batch(), batch_length=0), "CORRUPT_MESSAGE"),
    "size one too large": (
        change(batch(), batch_length=len(batch()) - 11), "INVALID_RECORD",
    ),
    "size one too small": (
        change(batch(), batch_length=len(batch()) - 13, seal=False), "CORRUPT_MESSAGE",
    ),
    "wrong checksum": (change(batch(), max_timestamp=5, seal=False), "CORRUPT_MESSAGE"),
    "base offset of its own": (change(batch(), base_offset=7), "INVALID_RECORD"),
    "leader epoch of its own": (change(batch(), leader_epoch=7), "NONE"),
    "count zero": (change(batch(), record_count=0), "INVALID_RECORD"),
    "count negative": (change(batch(), record_count=-1), "INVALID_RECORD"),
    "count too small": (change(batch(), record_count=1), "INVALID_RECORD"),
    "count too large": (change(batch(), record_count=3), "INVALID_RECORD"),
    "delta negative": (change(batch(), last_offset_delta=-1), "INVALID_RECORD"),
    "count and delta too large": (
        change(batch(), record_count=10, last_offset_delta=9), "INVALID_RECORD",
    ),
    "count and delta too small": (
        change(batch(3), record_count=2, last_offset_delta=1), "INVALID_RECORD",
    ),
    "count enormous": (
        change(batch(), record_count=2**31 - 1, last_offset_delta=2**31 - 2), "INVALID_RECORD",
    ),
    "no records at all": (with_body(b"", count=0), "INVALID_RECORD"),
    "control": (change(batch(), attributes=0x20), "INVALID_RECORD"),
    "transactional": (  # whose it is, the partition asks
        change(batch(), attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0), "NONE",
    ),
    "transactional, nobody's": (change(batch(), attributes=0x10), "INVALID_RECORD"),
    "append time by the client": (change(batch(), attributes=0x08), "INVALID_TIMESTAMP"),
    "delete horizon": (change(batch(), attributes=0x40), "NONE"),
    "bits that mean nothing": (change(batch(), attributes=0x4000), "NONE"),
    "codec 5": (change(batch(), attributes=5), "UNSUPPORTED_COMPRESSION_TYPE"),
    "codec 7": (change(batch(), attributes=7), "UNSUPPORTED_COMPRESSION_TYPE"),
    "idempotent": (change(batch(), producer_id=1, producer_epoch=0, base_sequence=0), "NONE"),
    "no epoch": (change(batch(), producer_id=1, base_sequence=0), "INVALID_RECORD"),
    "no sequence": (change(batch(), producer_id=1, producer_epoch=0), "INVALID_RECORD"),
    "two hours ahead": (batch(timestamp=NOW_MS + 2 * HOUR_MS), "INVALID_TIMESTAMP"),
    "half an hour ahead": (batch(timestamp=NOW_MS + HOUR_MS // 2), "NONE"),
    "timestamp -1": (batch(timestamp=-1), "NONE"),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_headers(what):
    data, expected = HEADERS[what]
    assert code_of(data) == expected


def varint(value):
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


RECORD = varint(8) + b"\0\0\0" + varint(-1) + varint(2) + b"ab" + b"\0"
BODIES = {
    "right": (RECORD, "NONE"),
    "longer than the batch": (varint(500) + RECORD[1:], "INVALID_RECORD"),
    "of negative length": (varint(-3) + RECORD[1:], "INVALID_RECORD"),
    "of no length": (varint(0) * 7, "INVALID_RECORD"),
    "cut short": (RECORD[:-1], "INVALID_RECORD"),
    "with a tail": (RECORD + b"\0", "INVALID_RECORD"),
    "value longer than its record": (
        varint(8) + b"\0\0\0" + varint(-1) + varint(50) + b"ab\0", "INVALID_RECORD",
    ),
    "varint without end": (b"\xff" * 40, "INVALID_RECORD"),
    "a varint of a megabyte": (b"\xff" * 900_000, "INVALID_RECORD"),
    "offset delta that is not its place": (
        varint(8) + b"\0\0" + varint(5) + varint(-1) + varint(2) + b"ab" + b"\0",
        "INVALID_RECORD",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_records(what):
    body, expected = BODIES[what]
    assert code_of(with_body(body)) == expected
    if expected != "NONE":
        for codec in (Compression.GZIP, Compression.ZSTD):
            packed = compress(codec, body)
            assert code_of(with_body(packed, attributes=int(codec))) == expected
        assert code_of(with_body(body), cleanup_policy=("compact",)) == "INVALID_RECORD"


@pytest.mark.parametrize("attributes", [1, 2, 3, 4])
@pytest.mark.parametrize("body", [b"no codec's data", b"", b"\x28\xb5\x2f\xfd no", b"\0" * 30])
def test_compressed_garbage(attributes, body):
    assert code_of(with_body(body, attributes=attributes)) in ("CORRUPT_MESSAGE", "INVALID_RECORD")


def test_limits_of_the_topic():
    data = batch(value=b"x" * 1000)
    assert code_of(data, max_message_bytes=len(data)) == "NONE"
    assert code_of(data, max_message_bytes=len(data) - 1) == "MESSAGE_TOO_LARGE"
    assert code_of(data, max_message_bytes=10, internal=True) == "NONE"
    old = batch(timestamp=NOW_MS - 2 * HOUR_MS)
    assert code_of(old) == "NONE"
    assert code_of(old, message_timestamp_before_max_ms=HOUR_MS) == "INVALID_TIMESTAMP"
    assert code_of(old, message_timestamp_before_max_ms=3 * HOUR_MS) == "NONE"
    late = batch(timestamp=NOW_MS + 2 * HOUR_MS)
    assert code_of(late, message_timestamp_type="LogAppendTime") == "NONE"
    assert code_of(late, message_timestamp_after_max_ms=3 * HOUR_MS) == "NONE"


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_compacted_topics_want_keys(codec):
    no_key = batch(key=None, compression=codec)
    assert code_of(no_key) == "NONE"
    for policy in (("compact",), ("compact", "delete")):
        with pytest.raises(KafkaError) as caught:
            check(no_key, cleanup_policy=policy)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert list(caught.value.record_indexes) == list(range(parse_header(no_key).record_count))
    assert code_of(batch(value=None), cleanup_policy=("compact",)) == "NONE"


def test_coordinators_may_write_what_clients_may_not():
    marker = change(batch(1), attributes=0x30, producer_id=1, producer_epoch=0)
    assert code_of(marker, internal=True) == "NONE"
    assert code_of(marker) == "INVALID_RECORD"
    transactional = change(
        batch(), attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0
    )
    assert code_of(transactional, internal=True) == "NONE"
    offsets = change(batch(), attributes=0x10, producer_id=1, producer_epoch=0)
    assert code_of(offsets, internal=True) == "NONE"
    assert code_of(offsets) == "INVALID_RECORD"
    assert code_of(change(batch(), max_timestamp=1, seal=False), internal=True) != "NONE"


@given(st.integers(1, 60), st.integers(0, 2**32), st.sampled_from(list(Compression)))
def test_any_damage_is_a_kafka_error_or_harmless(count, seed, codec):
    """Random bytes changed under a checksum that is right: never another exception, and what
    passes can be read: as many records as are numbered, with deltas in step."""
    rng = random.Random(seed)
    data = bytearray(batch(count, compression=codec, value=rng.randbytes(rng.randrange(30))))
    for _ in range(rng.choice([1, 1, 3])):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    for config in (
        {}, {"cleanup_policy": ("compact",)}, {"compression_type": "zstd"},
        {"message_timestamp_type": "LogAppendTime"},
    ):  # fmt: skip
        refusal = code_of(data, message_timestamp_after_max_ms=2**63, **config)
        assert refusal != "UNKNOWN_SERVER_ERROR"
        if refusal != "NONE":
            continue
        passed = checked(data, message_timestamp_after_max_ms=2**63, **config)
        stored = bytes(passed.records)
        header = parse_header(stored)
        assert header.size == len(stored)
        records = list(iter_records(stored, header, size_max=1 << 20))
        assert [record.offset_delta for record in records] == list(
            range(header.last_offset_delta + 1)
        )
        latest = max(map(header.timestamp_of, records))
        assert header.max_timestamp == max(latest, -1)


LYING_BODIES = {
    "noise": lambda count: random.Random(1).randbytes(20 * count),
    "offset deltas all zero": lambda count: RECORD * count,
    "one record too few": lambda count: body_of(count - 1),
    "one record too many": lambda count: body_of(count + 1),
    "last offset delta too large": lambda count: body_of(count - 1) + encode_record(
        Record(count, 0, None, b"v", [])
    ),
    "header with a null key": lambda count: body_of(count - 1) + varint(10)
    + b"\0\0" + varint(count - 1) + varint(-1) + varint(0) + varint(1) + varint(-1) + varint(0)
    + b"\0" * (3 if count < 65 else 2),
}  # fmt: skip


def body_of(count):
    return b"".join(encode_record(Record(n, 0, None, b"v", [])) for n in range(count))


@pytest.mark.parametrize("compression_type", ["producer", "zstd"])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("what", LYING_BODIES)
@pytest.mark.parametrize("count", [2, 17, 1000])
def test_records_that_lie_are_refused_however_many_they_are(count, what, codec, compression_type):
    body = LYING_BODIES[what](count)
    packed = body if codec is Compression.NONE else compress(codec, body)
    data = with_body(packed, count=count, attributes=int(codec))
    assert code_of(data, compression_type=compression_type) == "INVALID_RECORD"


@pytest.mark.parametrize("codec", list(Compression))
def test_the_timestamps_of_the_records_count_not_the_headers(codec):
    """A header that promises less than a record has, or more: records are judged by their own
    times, all that are wrong are named, and what is stored says what is in it."""
    records = [Record(n, (n % 20 == 7) * 2 * HOUR_MS, None, b"v", []) for n in range(50)]
    data = build_batch(records, base_timestamp=NOW_MS, max_timestamp=NOW_MS, compression=codec)
    with pytest.raises(KafkaError) as caught:
        checked(data)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert list(caught.value.record_indexes) == [7, 27, 47]
    assert code_of(data, message_timestamp_type="LogAppendTime") == "NONE"
    for claimed in (NOW_MS - 1, NOW_MS + 31 * 365 * 24 * HOUR_MS):
        data = batch(20, timestamp=NOW_MS - 50, max_timestamp=claimed, compression=codec)
        passed = checked(data)
        stored = parse_header(passed.records)
        assert passed.header == stored
        assert stored.max_timestamp == NOW_MS - 50 + 19
        assert check(passed.records) == stored


def test_early_records_are_named():
    records = [Record(n, -n * HOUR_MS, None, b"v", []) for n in range(5)]
    data = build_batch(records, base_timestamp=NOW_MS)
    with pytest.raises(KafkaError) as caught:
        checked(data, message_timestamp_before_max_ms=3 * HOUR_MS)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert list(caught.value.record_indexes) == [4]
    # -1 is no timestamp, and other negative ones are early.
    assert code_of(batch(1, timestamp=-1), message_timestamp_before_max_ms=HOUR_MS) == "NONE"
    early = batch(1, timestamp=-2)
    assert code_of(early, message_timestamp_before_max_ms=HOUR_MS) == "INVALID_TIMESTAMP"


def test_a_wrong_time_goes_before_a_missing_key():
    records = [Record(0, 0, None, b"v", []), Record(1, 2 * HOUR_MS, b"k", b"v", [])]
    with pytest.raises(KafkaError) as caught:
        checked(build_batch(records, base_timestamp=NOW_MS), cleanup_policy=("compact",))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert list(caught.value.record_indexes) == [0, 1]


def test_times_beyond_64_bits_are_refused():
    data = build_batch([Record(0, 10, None, b"v", [])], base_timestamp=2**63 - 5, max_timestamp=0)
    for config in ({"message_timestamp_after_max_ms": 2**63 - 1}, {"message_timestamp_type": "X"}):
        assert code_of(data, **config) == "INVALID_TIMESTAMP"


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_a_bomb_is_refused_and_its_rest_never_made(codec):
    """What is larger than a worker may hold is MESSAGE_TOO_LARGE: a Java producer splits it."""
    size = DECOMPRESSED_BYTES_MAX + 1
    bomb = with_body(compress(codec, bytes(size)), count=9, attributes=int(codec))
    tracemalloc.start()
    try:
        assert code_of(bomb, max_message_bytes=1 << 30) == "MESSAGE_TOO_LARGE"
        assert tracemalloc.get_traced_memory()[1] < 2.2 * DECOMPRESSED_BYTES_MAX
        tracemalloc.reset_peak()
        with pytest.raises(SizeLimitError):
            checked(bomb, bytes_max=100_000, max_message_bytes=1 << 30)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", list(Compression))
def test_recompressed_is_the_same_but_for_its_codec(wanted, codec):
    data = batch(
        20, compression=codec, producer_id=7, producer_epoch=3, base_sequence=9, value=b"v" * 99
    )
    header = parse_header(data)
    passed = checked(data, compression_type=wanted)
    again = passed.records
    after = parse_header(again)
    assert after.compression.name.lower() == ("none" if wanted == "uncompressed" else wanted)
    for name in (
        "producer_id", "producer_epoch", "base_sequence", "record_count", "last_offset_delta",
        "base_timestamp", "max_timestamp",
    ):  # fmt: skip
        assert getattr(after, name) == getattr(header, name), name
        assert getattr(passed.header, name) == getattr(header, name), name
    assert list(iter_records(again, after, size_max=1 << 20)) == list(
        iter_records(data, header, size_max=1 << 20)
    )
    assert check(again) == after


def test_recompressed_beyond_the_limit():
    data = batch(20, value=b"v" * 9999, compression=Compression.ZSTD)
    code = code_of(data, compression_type="uncompressed", max_message_bytes=10_000)
    assert code == "MESSAGE_TOO_LARGE"
    assert code_of(data, compression_type="gzip", max_message_bytes=10_000) == "NONE"


def test_recompressing_what_cannot_be_read():
    data = with_body(b"no gzip at all", attributes=1)
    assert code_of(data, compression_type="zstd") == "CORRUPT_MESSAGE"


def test_lz4_of_dependent_blocks_is_refused():
    """Java's reader says «Dependent block stream is unsupported»: no Java consumer would ever get
    past such a batch, and Kafka's broker refuses it, as it reads it with the same code."""
    body = b"".join(encode_record(Record(n, 0, b"k", bytes(1000), [])) for n in range(300))
    linked = lz4.frame.compress(body, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    independent = lz4.frame.compress(
        body, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB
    )
    assert code_of(with_body(independent, 300, int(Compression.LZ4))) == "NONE"
    assert code_of(with_body(linked, 300, int(Compression.LZ4))) != "NONE"


@given(
    count=st.integers(1, 5),
    producer=st.sampled_from([(-1, -1), (7, 0), (7, 3)]),
    timestamp=st.integers(-1, NOW_MS),
    codec=st.sampled_from(Compression),
    time_type=st.sampled_from(["CreateTime", "LogAppendTime"]),
    is_transactional=st.booleans(),
)
def test_what_our_own_have_built_passes_as_if_it_were_looked_at(
    count, producer, timestamp, codec, time_type, is_transactional
):
    built = batch(
        count,
        timestamp=timestamp,
        compression=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        is_transactional=is_transactional,
    )
    config = Config(message_timestamp_type=time_type, cleanup_policy=("compact",))
    looked_at = checked_batch(memoryview(bytearray(built)), config, NOW_MS, internal=True)
    records = memoryview(bytearray(built))
    passed = own_batch(records, parse_header(records), config, NOW_MS)
    assert passed == looked_at
    assert bytes(passed.records) == bytes(looked_at.records)
