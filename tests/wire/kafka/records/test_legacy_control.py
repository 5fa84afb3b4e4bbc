"""Message sets of old, and control records."""

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from wire.kafka.errors import WireError
from wire.kafka.records.batch import build_batch, iter_records, parse_header, scan_batches
from wire.kafka.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
    decode_control_type,
    decode_end_transaction_marker,
    encode_control_key,
)
from wire.kafka.records.legacy import LegacyMessage, is_legacy, scan_messages
from wire.kafka.records.record import Record

T0 = 1_700_000_000_000


def message_set(magic: int, codec: int = 0) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    builder.append(0, T0, b"key", b"value")
    builder.append(1, T0 + 5, None, b"")
    builder.append(2, T0 + 9, b"", None)
    return bytes(builder.build())


@pytest.mark.parametrize("magic", [0, 1])
def test_message_set(magic):
    data = message_set(magic)
    assert is_legacy(data)
    assert is_legacy(memoryview(data))
    messages = scan_messages(data)
    assert [(each.offset, each.magic, each.crc_ok) for each in messages] == [
        (index, magic, True) for index in range(3)
    ]
    expected = [T0, T0 + 5, T0 + 9] if magic else [-1] * 3
    assert [each.timestamp for each in messages] == expected
    assert sum(each.size for each in messages) == len(data)
    with pytest.raises(WireError, match=f"at byte 0 has magic {magic}, not 2"):
        scan_batches(data)


@pytest.mark.parametrize(("magic", "codec"), [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)])
def test_compressed_set_is_one_message(magic, codec):
    [message] = scan_messages(message_set(magic, codec))
    assert (message.magic, message.compression, message.crc_ok) == (magic, codec, True)


def test_log_append_time_and_bad_crc():
    body = struct.pack(">bbqi", 1, 0x08, T0, -1) + struct.pack(">i", 3) + b"abc"
    data = struct.pack(">qiI", 4, len(body) + 4, zlib.crc32(body)) + body
    assert scan_messages(data) == [LegacyMessage(4, len(data), 1, 0, True, T0, True)]
    [message] = scan_messages(data[:-1] + b"d")
    assert not message.crc_ok


def test_v2_is_not_legacy():
    batch = build_batch([Record(0, 0, b"k", b"v")])
    assert not is_legacy(batch)
    assert not is_legacy(b"")
    assert not is_legacy(bytes(16))
    with pytest.raises(WireError, match="magic 2, not 0 or 1"):
        scan_messages(batch)


@pytest.mark.parametrize("magic", [0, 1])
def test_cut_short_at_every_byte(magic):
    [first, *_] = scan_messages(message_set(magic))
    data = message_set(magic)[: first.size]
    for size in range(1, len(data)):
        with pytest.raises(WireError, match="at byte 0"):
            scan_messages(data[:size])


@given(data=st.binary(max_size=100), magic=st.integers(0, 1))
def test_any_bytes(data, magic):
    for each in (data, data[:16] + bytes([magic]) + data[17:]):
        with suppress(WireError):
            assert sum(message.size for message in scan_messages(each)) == len(each)


@given(position=st.integers(0, 200), value=st.integers(0, 255), magic=st.integers(0, 1))
def test_damaged(position, value, magic):
    data = bytearray(message_set(magic))
    data[position % len(data)] = value
    with suppress(WireError):
        scan_messages(data)


@pytest.mark.parametrize("committed", [True, False])
def test_same_marker_as_java(vectors, committed):
    marker = EndTransactionMarker(committed, coordinator_epoch=9)
    ours = build_end_transaction_batch(
        marker,
        producer_id=42,
        producer_epoch=3,
        timestamp_ms=T0,
        base_offset=77,
        leader_epoch=4,
    )
    assert ours == vectors["marker_commit" if committed else "marker_abort"]
    header = parse_header(ours)
    assert header.is_control
    assert header.is_transactional
    [record] = iter_records(ours, header, size_max=1000)
    assert decode_end_transaction_marker(record) == marker


def test_control_types():
    for each in ControlType:
        assert decode_control_type(encode_control_key(each)) is each
    assert decode_control_type(b"\x00\x00\x00\x63") is None
    assert decode_control_type(b"\x00\x07\x00\x01and more") is ControlType.COMMIT
    leader_change = Record(0, 0, encode_control_key(ControlType.LEADER_CHANGE), b"")
    assert decode_end_transaction_marker(leader_change) is None
    newer = Record(0, 0, b"\x00\x01\x00\x00", b"\x00\x01\x00\x00\x00\x05more")
    assert decode_end_transaction_marker(newer) == EndTransactionMarker(False, 5)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"", "key is null"),
        (b"\x00\x00\x00", b"", "key is 3 bytes, needs 4"),
        (b"\xff\xff\x00\x00", b"", "key has version -1"),
        (b"\x00\x00\x00\x00", None, "end of transaction is null"),
        (b"\x00\x00\x00\x00", b"\x00\x00\x00", "end of transaction is 3 bytes, needs 6"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x00", "end of transaction has version -1"),
    ],
)
def test_control_errors(key, value, message):
    with pytest.raises(WireError, match=message):
        decode_end_transaction_marker(Record(0, 0, key, value))
