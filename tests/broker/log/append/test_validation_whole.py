"""A batch that is found whole in one step is what its check says it is."""

import random
import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.log.append.validation import checked_batch, checked_whole
from tests.broker.log.append.test_validation import FIELDS, HOUR_MS, NOW_MS, Config
from tests.wire.kafka.guarded import Guarded
from wire.kafka.errors import KafkaError
from wire.kafka.records.batch import build_batch, parse_header
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record
from wire.kafka.records.walk import whole_batch

pytestmark = pytest.mark.skipif(whole_batch is None, reason="installed where there was no compiler")

USUAL = Config()
INT64_MAX = 2**63 - 1

configs = st.builds(
    Config,
    cleanup_policy=st.sampled_from([("delete",), ("delete",), ("compact",)]),
    max_message_bytes=st.sampled_from([1_048_588, 1_048_588, 200]),
    message_timestamp_type=st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
    message_timestamp_before_max_ms=st.sampled_from([INT64_MAX, INT64_MAX, 0, 5, HOUR_MS]),
    message_timestamp_after_max_ms=st.sampled_from([HOUR_MS, 0, 5, INT64_MAX]),
    compression_type=st.sampled_from(["producer", "producer", "gzip", "uncompressed"]),
    quire_locks=st.sampled_from(["off", "off", "optional"]),
)
records = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 3, -7, HOUR_MS, -HOUR_MS - 1, -NOW_MS - 1, 2**62, 2**63 - 1]),
        st.sampled_from([None, b"key"]),
        st.sampled_from([None, b"value", b"v" * 300]),
        st.sampled_from([[], [("h", b"x")], [("h", None)]]),
    ),
    min_size=1,
    max_size=4,
)


def whole_of(batch, count_max=1000):
    return whole_batch(batch, count_max)


def batch_of(made, timestamp=NOW_MS, **options):
    listed = [Record(number, *fields) for number, fields in enumerate(made)]
    times = [timestamp + record.timestamp_delta for record in listed]
    options.setdefault("max_timestamp", max([-1, *(time for time in times if time <= INT64_MAX)]))
    return bytearray(build_batch(listed, base_timestamp=timestamp, **options))


def outcome(batch, config):
    copy = memoryview(bytearray(batch))
    checked = checked_batch(copy, config, NOW_MS, internal=False)
    return checked._replace(records=bytes(checked.records))


def check_same(batch, config):
    """Whether it was found whole and may be appended as it is."""
    whole = whole_of(batch)
    if whole is None:
        return False
    checked = checked_whole(whole, memoryview(batch), config, NOW_MS)
    if checked is None:
        return False
    expected = outcome(batch, config)
    assert checked._replace(records=bytes(checked.records)) == expected
    assert expected.records == bytes(batch)
    return True


def is_usual(config):
    """The settings that all topics have whose owner asked for nothing."""
    return config == replace(
        USUAL,
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
    )


@given(records, configs, st.sampled_from([-1, 0, 5]), st.sampled_from([NOW_MS, 0, -1]))
def test_good_batches(made, config, producer_id, timestamp):
    epoch, sequence = (1, 4) if producer_id >= 0 else (-1, -1)
    batch = batch_of(
        *(made, timestamp),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    is_taken = check_same(batch, config)
    if is_usual(config):
        try:
            outcome(batch, config)
        except KafkaError:
            assert not is_taken
        else:
            # Only a record without a time may be early: that is for the whole check to see.
            has_none = any(timestamp + delta == -1 for delta, *_ in made)
            assert is_taken or has_none


VALUES = [0, 1, -1, 2, 3, 0x40, 0x10, 0x20, 0x08, 7, 2**15 - 1, -(2**15)]


@pytest.fixture(scope="module")
def guarded():
    return Guarded()


@given(records, configs, st.integers(0, 2**32))
def test_damaged_batches(guarded, made, config, seed):
    """With checksums that are right, and that are not. No byte behind them is read."""
    rng = random.Random(seed)
    for _ in range(10):
        batch = batch_of(made)
        for name in rng.sample(sorted(FIELDS), rng.choice([0, 1, 1, 2])):
            layout, at = FIELDS[name]
            value = rng.choice(VALUES)
            if layout == ">b":
                value = rng.choice([0, 1, 2, 3])
            struct.pack_into(layout, batch, at, value)
        if rng.random() < 0.4:
            batch[rng.randrange(61, len(batch))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        if rng.random() < 0.2:
            del batch[rng.randrange(len(batch)) :]
        if rng.random() < 0.1:
            batch += bytes(rng.randrange(1, 80))
        if rng.random() < 0.8 and len(batch) > 21:
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        assert whole_of(guarded.at_end(batch)) == whole_of(batch)
        check_same(batch, rng.choice([config, USUAL]))


def one(**options):
    return batch_of([(0, b"key", b"value", [])], **options)


def test_the_usual_batch_is_taken():
    assert check_same(one(), USUAL)
    assert check_same(one(producer_id=7, producer_epoch=0, base_sequence=0), USUAL)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": Compression.LZ4},
        {"is_transactional": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
        {"is_control": True},
        {"producer_id": 1, "producer_epoch": -1, "base_sequence": 0},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": -1},
        {"base_offset": 1},
        {"max_timestamp": NOW_MS + 1},
        {"last_offset_delta": 1},
    ],
)
def test_what_is_unusual_is_checked_where_it_always_was(options):
    assert whole_of(one(**options)) is None


def test_what_is_told_of_a_batch():
    batch = batch_of([(5, b"key", None, []), (3, None, b"value", []), (9, None, b"", [])])
    for memory in (batch, bytes(batch), memoryview(b"12" + batch + b"3")[2:-1]):
        assert whole_of(memory) == (tuple(parse_header(batch)), NOW_MS + 3, 2)


def test_no_more_records_are_walked_than_there_is_time_for():
    batch = batch_of([(0, None, b"v", [])] * 7)
    assert whole_of(batch, 7) is not None
    for count_max in (6, 0, -1, -(2**40)):
        assert whole_of(batch, count_max) is None


def test_the_checksum_is_of_all_bytes_behind_it():
    for size in range(80):
        batch = batch_of([(0, None, b"v" * size, [])])
        assert whole_of(batch) is not None
        for at in range(17, len(batch)):
            batch[at] ^= 1
            assert whole_of(batch) is None
            batch[at] ^= 1
