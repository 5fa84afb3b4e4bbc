"""`dump batch` and `dump snapshot`: batches of all kinds against what they were built from."""

import gzip
import struct
import zlib

import pytest

from bookie.storage.entry_log_format import pack_header
from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    KIND_ABORTED,
    KIND_BATCHES,
    KIND_INDEX,
    KIND_SNAPSHOT,
)
from broker.log.append.entry_format import pack_header as payload_header
from broker.log.append.producer_snapshot import Batch, Producer, encode_snapshot, pack_producer
from broker.log.read.offset_index import OffsetIndex
from broker.log.transactions.aborted_index import AbortedIndex, AbortedTransaction
from wire.kafka.records.batch import TimestampType, build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch
from wire.kafka.records.coordinator import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    encode_key,
    encode_value,
)
from wire.kafka.records.record import Record

RECORDS = [
    Record(0, 0, b"key", b"value", [("h", b"\xff\x00"), ("null", None)]),
    Record(1, 7, None, None),
    Record(2, -3, b"", "ünïcode".encode()),
]


@pytest.mark.parametrize("codec", list(Compression))
def test_records_of_every_codec(tmp_path, dump, codec):
    first = build_batch(
        RECORDS,
        base_offset=40,
        leader_epoch=3,
        compression=codec,
        base_timestamp=1000,
        producer_id=5,
        producer_epoch=1,
        base_sequence=2**31 - 2,
        is_transactional=True,
    )
    second = build_batch(
        RECORDS[:1],
        base_offset=43,
        compression=codec,
        max_timestamp=9999,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    path = tmp_path / "00000000000000000040.log"
    path.write_bytes(first + second)
    got = dump("batch", path, "--print-data-log")
    assert (got.exit_code, got.stderr) == (0, "")
    one, two = got.rows("batch")
    assert (one["base_offset"], one["last_offset"], one["count"], one["size"]) == (
        40,
        42,
        3,
        len(first),
    )
    assert (one["base_sequence"], one["last_sequence"]) == (2**31 - 2, 0)
    assert (one["producer_id"], one["producer_epoch"], one["is_transactional"]) == (5, 1, True)
    assert (one["compress_codec"], one["is_valid"]) == (codec.name.lower(), True)
    assert (two["position"], two["timestamp_type"]) == (len(first), "log_append_time")
    records = got.rows("record")
    assert [(r["offset"], r["timestamp"], r["sequence"]) for r in records] == [
        (40, 1000, 2**31 - 2),
        (41, 1007, 2**31 - 1),
        (42, 997, 0),
        (43, 9999, -1),
    ]
    assert (records[0]["key"], records[0]["value"]) == (b"key".hex(), b"value".hex())
    assert records[0]["headers"] == [{"key": "h", "value": "ff00"}, {"key": "null", "value": None}]
    assert (records[1]["key"], records[1]["value"]) == (None, None)
    assert (records[1]["key_size"], records[2]["key_size"]) == (-1, 0)
    base64 = dump("batch", path, "--records", "--bytes", "base64").rows("record")
    assert base64[0]["key"] == "a2V5"
    assert dump("batch", path).rows("record") == []
    # The same from stdin, and from the second batch on.
    piped = dump("batch", "-", "--records", stdin=first + second)
    assert piped.rows("record") == records
    assert dump("batch", path, "--at", len(first), "--records").rows("record") == records[3:]
    assert dump("batch", "-", "--at", len(first), stdin=first + second).rows("batch") == [two]


def test_damaged_batches(tmp_path, dump):
    batch = build_batch(RECORDS, compression=Compression.GZIP)
    path = tmp_path / "batches"
    bad = bytearray(batch)
    bad[-1] ^= 1
    path.write_bytes(batch + bad + batch)
    got = dump("batch", path, "--records")
    assert [row["is_valid"] for row in got.rows("batch")] == [True, False, True]
    assert len(got.rows("record")) == 6
    assert f"offset {len(batch)}: the batch's checksum does not match" in got.stderr
    for cut in (1, 16, 17, 60, 61, len(batch) - 1):
        path.write_bytes(batch + batch[:cut])
        got = dump("batch", path)
        assert got.exit_code == 1
        assert f"offset {len(batch)}: " in got.stderr
        assert len(got.rows("batch")) == 1
    path.write_bytes(b"")
    assert "offset 0: the file is empty" in dump("batch", path).stderr
    # Kafka preallocates segments.
    path.write_bytes(batch + bytes(100_000))
    got = dump("batch", path)
    assert (got.exit_code, got.row("end")["offset"]) == (0, len(batch))
    # A good checksum over records that are none.
    wrong = bytearray(build_batch([Record(0, 0, b"a", b"b")]))
    wrong[61:] = b"\xff" * (len(wrong) - 61)
    from crc32c import crc32c

    wrong[17:21] = crc32c(bytes(wrong[21:])).to_bytes(4, "big")
    path.write_bytes(wrong)
    got = dump("batch", path, "--records")
    assert got.exit_code == 1
    assert "the batch's records" in got.stderr


def legacy(offset, value, *, magic=1, key=None, codec=0, timestamp=77):
    fields = struct.pack(">bb", magic, codec) + (struct.pack(">q", timestamp) if magic else b"")
    for data in (key, value):
        fields += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
    return struct.pack(">qiI", offset, 4 + len(fields), zlib.crc32(fields)) + fields


def test_messages_of_old_formats(tmp_path, dump):
    inner = legacy(0, b"one", key=b"k") + legacy(1, b"two")
    data = legacy(5, b"plain", magic=0) + legacy(7, gzip.compress(inner), codec=1)
    path = tmp_path / "old"
    path.write_bytes(data)
    got = dump("batch", path, "--records")
    assert (got.exit_code, got.stderr) == (0, "")
    assert [(m["offset"], m["magic"], m.get("value")) for m in got.rows("message")] == [
        (5, 0, b"plain".hex()),
        (7, 1, None),
        (0, 1, b"one".hex()),
        (1, 1, b"two".hex()),
    ]
    bad = bytearray(data)
    bad[30] ^= 1
    path.write_bytes(bad)
    assert dump("batch", path).exit_code == 1


def test_control_and_coordinator_records(tmp_path, dump):
    path = tmp_path / "batches"
    markers = [EndTransactionMarker(True, 4), EndTransactionMarker(False, 5)]
    path.write_bytes(
        b"".join(
            build_end_transaction_batch(m, producer_id=9, producer_epoch=2, timestamp_ms=1)
            for m in markers
        )
    )
    got = dump("batch", path, "--records")
    assert [(r["control"], r["coordinator_epoch"]) for r in got.rows("record")] == [
        ("COMMIT", 4),
        ("ABORT", 5),
    ]
    member = MemberMetadata("m", None, "c", "/h", 1, 2, b"\1", b"\2")
    pairs = [
        (OffsetCommitKey("g", "t", 3), OffsetCommitValue(10, 1, "meta", 50)),
        (OffsetCommitKey("g", "t", 4), None),
        (GroupMetadataKey("g"), GroupMetadataValue("consumer", 2, "range", "m", 5, [member])),
    ]
    records = [
        Record(number, 0, encode_key(key), None if value is None else encode_value(value))
        for number, (key, value) in enumerate(pairs)
    ]
    path.write_bytes(build_batch([*records, Record(3, 0, b"\0\x63", b"?")]))
    commit, tombstone, group, unknown = dump("batch", path, "--offsets-decoder").rows("record")
    assert commit["key"] == {
        "type": 1,
        "kind": "OffsetCommitKey",
        "group": "g",
        "topic": "t",
        "partition": 3,
    }
    assert (commit["value"]["offset"], commit["value"]["metadata"]) == (10, "meta")
    assert (tombstone["key"]["partition"], tombstone["value"]) == (4, None)
    assert group["value"]["members"][0]["assignment"] == "02"
    assert (unknown["key"], unknown["decode_error"]) == (
        "0063",
        "a key of a type that is not known",
    )
    value = TransactionLogValue(7, 7, -1, 1, -1, 60000, 1, [PartitionsSchema("t", [0, 1])], 5, 4)
    path.write_bytes(
        build_batch([Record(0, 0, encode_key(TransactionLogKey("x")), encode_value(value))])
    )
    row = dump("batch", path, "--transaction-log-decoder").row("record")
    assert (row["key"]["transactional_id"], row["value"]["transaction_status"]) == ("x", "Ongoing")
    assert row["value"]["transaction_partitions"] == [{"topic": "t", "partition_ids": [0, 1]}]


@pytest.fixture
def log_of(tmp_path, make_entry):
    """log_of([payload, ...]) -> an entry log with these as ledger 1's entries."""

    def build(payloads):
        parts = [pack_header(0, 0)]
        for number, payload in enumerate(payloads):
            entry = make_entry(1, number, payload)
            parts += [len(entry).to_bytes(4, "big"), entry]
        path = tmp_path / "0.log"
        path.write_bytes(b"".join(parts))
        return path

    return build


def test_a_batch_that_spans_entries(log_of, dump):
    batch = build_batch([Record(0, 0, b"k", bytes(range(256)) * 40)], base_offset=17)
    cuts = [0, 100, 5000, len(batch)]
    flags = [FLAG_CONTINUES, FLAG_CONTINUED | FLAG_CONTINUES, FLAG_CONTINUED]
    payloads = [
        payload_header(KIND_BATCHES, 17, 1, flag) + batch[start:end]
        for flag, start, end in zip(flags, cuts[:-1], cuts[1:], strict=True)
    ]
    path = log_of(payloads)
    got = dump("entrylog", path, "--records")
    assert (got.exit_code, got.stderr) == (0, "")
    assert [row["is_valid"] for row in got.rows("batch")] == [None, True]
    assert got.row("record")["value"] == (bytes(range(256)) * 40).hex()
    # Without its beginning it cannot be shown, and nothing is made up.
    got = dump("entrylog", log_of(payloads[1:]), "--records")
    assert (got.exit_code, got.rows("batch")) == (0, [])


def test_aborted_transactions(log_of, dump):
    index = AbortedIndex()
    index.add(AbortedTransaction(7, 3, 9, 5))
    index.add(AbortedTransaction(8, 5, 12, 13))
    [content] = index.parts()
    got = dump("snapshot", log_of([payload_header(KIND_ABORTED, 13) + content]))
    assert (got.exit_code, got.stderr) == (0, "")
    assert [
        (row["producer_id"], row["first_offset"], row["last_offset"], row["last_stable_offset"])
        for row in got.rows("aborted")
    ] == [(7, 3, 9, 5), (8, 5, 12, 13)]
    broken = content[:-1] + bytes([content[-1] ^ 1])
    assert dump("snapshot", log_of([payload_header(KIND_ABORTED, 13) + broken])).exit_code != 0


def test_snapshots_and_offset_indexes(tmp_path, log_of, dump):
    index = OffsetIndex()
    for number in range(3):
        index.add(number, number * 10, 1 << 20, number * 100 - 1)
    producer = Producer()
    producer.epoch, producer.last_timestamp, producer.run_length = 3, 55, 9
    producer.batches.append(Batch(4, 8, 100, 66))
    [part] = encode_snapshot([pack_producer(12, producer)], 777)
    snapshot = part()
    path = log_of(
        [
            payload_header(KIND_BATCHES, 0, 1) + build_batch(RECORDS[:1]),
            payload_header(KIND_INDEX, 777) + index.to_bytes(),
            payload_header(KIND_SNAPSHOT, 777) + snapshot,
        ]
    )
    got = dump("snapshot", path)
    assert (got.exit_code, got.stderr) == (0, "")
    assert [row["entry"] for row in got.rows("entry")] == [1, 2]
    assert [
        (s["entry"], s["first_offset"], s["max_timestamp_before"]) for s in got.rows("slot")
    ] == [
        (0, 0, -1),
        (1, 10, 99),
        (2, 20, 199),
    ]
    assert got.row("snapshot")["end_offset"] == 777
    shown = got.row("producer")
    assert (shown["producer_id"], shown["epoch"], shown["last_sequence"]) == (12, 3, 8)
    assert shown["batches"] == [
        {"first_sequence": 4, "last_sequence": 8, "base_offset": 100, "log_append_time_ms": 66}
    ]
    only = dump("snapshot", path, "--at", got.rows("entry")[1]["offset"])
    assert only.row("producer") == shown
    assert len(dump("batch", path).rows("batch")) == 1
    for name, data in (("s", snapshot), ("i", index.to_bytes())):
        bare = tmp_path / name
        bare.write_bytes(data)
        assert dump("snapshot", bare).exit_code == 0
        bare.write_bytes(data[:-1])
        assert dump("snapshot", bare).exit_code == 1


def test_transactions_in_words(tmp_path, log_of, dump):
    """Without --json: what an operator looks for is in the text."""
    path = tmp_path / "batches"
    value = TransactionLogValue(7, 6, 8, 1, -1, 60000, 3, [PartitionsSchema("t", [0])], 5, 4)
    key = encode_key(TransactionLogKey("my-app"))
    ended = Record(1, 0, encode_key(TransactionLogKey("gone")), None)
    path.write_bytes(build_batch([Record(0, 0, key, encode_value(value)), ended]))
    text = dump("batch", path, "--transaction-log-decoder", json_rows=False).stdout
    for said in ("my-app", "PrepareAbort", "producer_id=7", "next_producer_id=8", "gone"):
        assert said in text, text
    marker = EndTransactionMarker(False, 5)
    path.write_bytes(
        build_end_transaction_batch(marker, producer_id=9, producer_epoch=2, timestamp_ms=1)
    )
    text = dump("batch", path, "--records", json_rows=False).stdout
    for said in ("control=ABORT", "coordinator_epoch=5", "producer_id=9", "is_control=yes"):
        assert said in text, text


def test_open_transactions_of_a_snapshot(log_of, dump):
    producers = []
    for number, start in ((5, 70), (6, -1)):
        producer = Producer()
        producer.epoch, producer.coordinator_epoch = 2, 4
        producer.transaction_start_offset = start
        producers.append(pack_producer(number, producer))
    [part] = encode_snapshot(producers, 90)
    index = AbortedIndex()
    index.add(AbortedTransaction(7, 3, 9, 5))
    [aborted] = index.parts()
    path = log_of(
        [payload_header(KIND_ABORTED, 90) + aborted, payload_header(KIND_SNAPSHOT, 90) + part()]
    )
    got = dump("snapshot", path)
    assert (got.row("snapshot")["producers"], got.row("snapshot")["open_transactions"]) == (2, 1)
    assert [row["transaction_start_offset"] for row in got.rows("producer")] == [70, -1]
    text = dump("snapshot", path, json_rows=False).stdout
    for said in ("open_transactions=1", "transaction_start_offset=70", "first_offset=3"):
        assert said in text, text
