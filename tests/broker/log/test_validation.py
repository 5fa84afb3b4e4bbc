"""What a produced batch must be: each refusal's code, and that nothing else ever escapes.

The codes are Apache Kafka's (compat_tests/control_answers.json has its answers to such bytes), but
for the deviations that compat_tests/test_bad_batches.py names.
"""

import random
import struct
from dataclasses import dataclass

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.log.validation import check_record_lengths, recompressed, validated_header
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import build_batch, iter_records, parse_header
from wire.kafka.records.compression import Compression, compress
from wire.kafka.records.record import Record

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


def check(data, *, internal=False, **config):
    return validated_header(
        memoryview(bytearray(data)), Config(**config), NOW_MS, internal=internal
    )


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
    "transactional": (
        change(batch(), attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
        "INVALID_TXN_STATE",
    ),
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
    assert code_of(change(batch(), max_timestamp=1, seal=False), internal=True) != "NONE"


@given(st.integers(1, 16), st.integers(0, 2**32), st.sampled_from(list(Compression)))
def test_any_damage_is_a_kafka_error_or_harmless(count, seed, codec):
    """Random bytes changed under a checksum that is right: never another exception, and what
    passes at up to 16 records can be read."""
    rng = random.Random(seed)
    data = bytearray(batch(count, compression=codec, value=rng.randbytes(rng.randrange(30))))
    for _ in range(rng.choice([1, 1, 3])):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    for policy in (("delete",), ("compact",)):
        code = code_of(data, cleanup_policy=policy, message_timestamp_after_max_ms=2**63)
        assert code != "UNKNOWN_SERVER_ERROR"
        if code == "NONE":
            header = parse_header(data)
            assert header.record_count == header.last_offset_delta + 1
            if policy == ("compact",):
                size = header.size
                assert list(iter_records(bytes(data[:size]), header, size_max=1 << 20))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30), st.integers(0, 2**32))
def test_record_lengths_against_the_real_walk(values, seed):
    """Cutting records anywhere is seen; whole ones always pass."""
    records = [Record(n, n, None, value, []) for n, value in enumerate(values)]
    body = build_batch(records)[61:]
    check_record_lengths(body, len(values))
    cut = random.Random(seed).randrange(len(body))
    with pytest.raises(KafkaError):
        check_record_lengths(body[:cut], len(values))
    for count in (len(values) - 1, len(values) + 1):
        with pytest.raises(KafkaError):
            check_record_lengths(body, count)


@pytest.mark.parametrize("wanted", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", list(Compression))
def test_recompressed_is_the_same_but_for_its_codec(wanted, codec):
    data = batch(
        20, compression=codec, producer_id=7, producer_epoch=3, base_sequence=9, value=b"v" * 99
    )
    header = parse_header(data)
    again = recompressed(memoryview(data), header, wanted)
    after = parse_header(again)
    assert after.compression == Compression.by_name(wanted)
    for name in (
        "producer_id", "producer_epoch", "base_sequence", "record_count", "last_offset_delta",
        "base_timestamp", "max_timestamp",
    ):  # fmt: skip
        assert getattr(after, name) == getattr(header, name), name
    assert list(iter_records(again, after, size_max=1 << 20)) == list(
        iter_records(data, header, size_max=1 << 20)
    )
    assert check(again) == after


def test_recompressing_what_cannot_be_read():
    data = with_body(b"no gzip at all", attributes=1)
    with pytest.raises(KafkaError) as caught:
        recompressed(memoryview(data), parse_header(data), "zstd")
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
