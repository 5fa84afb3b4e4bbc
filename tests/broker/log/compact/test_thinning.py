"""Damage is told by its offset and nothing behind it is copied; odd numbers stay what they are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.compact.aborted import TransactionPass
from broker.log.compact.compaction_core import Filter, Mapping, PassRules
from broker.log.compact.key_map import OpenAddressingKeyMap
from broker.log.compact.steps import (
    BYTES_PER_STEP,
    BYTES_PER_UNIT,
    LONG_KEY_BYTES,
    RECORDS_PER_STEP,
    CompactionError,
    Work,
    run_inline,
)
from broker.log.compact.thinning import as_int64
from tests.broker.log.compact.logs import (
    BASE_MS,
    SIZE_MAX,
    DictKeyMap,
    Ledger,
    batch_of,
    compact,
    marker_of,
    rows,
    rules_for,
)
from wire.kafka.records.batch import assemble, build_batch, parse_header
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record, encode_record

BATCH = batch_of(70, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))


def refusals(batch):
    """What both passes say of a batch; its header is what its bytes say."""
    header = parse_header(batch)
    mapping = Mapping(DictKeyMap(), TransactionPass(), start_offset=0, size_max=SIZE_MAX)
    copying = Filter(rules_for([Ledger([BATCH])]), DictKeyMap(), TransactionPass())
    for steps in (
        mapping.add(memoryview(batch), header),
        copying.keep(memoryview(batch), header, is_compacted=False, is_range_end=False),
    ):
        with pytest.raises(CompactionError) as refused:
            run_inline(steps)
        yield str(refused.value)


def changed(data=None, batch=BATCH, **fields):
    """The batch with other fields or other records, and a CRC that is right."""
    header = parse_header(batch)._replace(**fields)
    return bytes(assemble(header, batch[61:] if data is None else data))


GOOD = b"".join(encode_record(Record(n, 0, b"k", b"v")) for n in range(3))

DAMAGE = {
    "has another CRC": BATCH[:-1] + b"\x01",
    "4 records in 3 offsets": changed(record_count=4),
    "-1 records in 3 offsets": changed(record_count=-1),
    "0 records in -1 offsets": changed(record_count=0, last_offset_delta=-2),
    "spans 2147483648 offsets": changed(last_offset_delta=2**31 - 1),
    "batch of": BATCH + b"x",
    "offset delta 0 behind 0, last 2": changed(encode_record(Record(0, 0, b"k", b"v")) * 3),
    "offset delta 3 behind 2, last 2": changed(
        b"".join(encode_record(Record(n, 0, b"k", b"v")) for n in (1, 2, 3))
    ),
    "bytes are left behind the last of 3 records, at": changed(GOOD + b"x"),
    "record 2, which begins at byte 18": changed(GOOD[:-2]),
    "not lz4 data": changed(attributes=3),
    "unknown compression 7": changed(attributes=7),
    "control record key is 1 bytes": changed(attributes=0x30),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_damage_is_refused(words):
    for text in refusals(DAMAGE[words]):
        assert words in text
        assert text.startswith("offset 70: ")


@given(st.integers(0, len(BATCH) * 8 - 1))
def test_no_flipped_bit_is_copied(bit):
    """But for offset and leader epoch, which are not in the CRC: the ledger's digest has them."""
    damaged = bytearray(BATCH)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        header = parse_header(damaged)
    except ValueError:
        return
    copying = Filter(rules_for([Ledger([BATCH])]), DictKeyMap(), TransactionPass())
    steps = copying.keep(memoryview(damaged), header, is_compacted=False, is_range_end=False)
    if bit // 8 < 8 or 12 <= bit // 8 < 16:
        return
    with pytest.raises(CompactionError):
        run_inline(steps)


def test_a_marker_that_is_damaged():
    bad = build_batch(
        [Record(0, 0, b"\0\0\0\0", b"short")], base_offset=70, is_control=True,
        is_transactional=True, producer_id=4,
    )  # fmt: skip
    for text in refusals(bad):
        assert "end of transaction is 5 bytes" in text


def test_control_batches_that_end_no_transaction_stay():
    leader_change = build_batch([Record(0, 0, b"\0\0\0\2", b"x")], is_control=True)
    unknown = build_batch([Record(0, 0, b"\0\0\0\x63", b"x")], base_offset=1, is_control=True)
    log = [Ledger([leader_change, unknown, marker_of(2, 5, committed=True), BATCH])]
    copied = compact(compact(log).ledgers, now_ms=BASE_MS * 2)
    assert copied.ledgers[0].batches[:2] == [leader_change, unknown]
    assert len(copied.ledgers[0].batches) == 3


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.SNAPPY])
def test_timestamps_at_the_ends_of_their_field(codec):
    """Deltas wrap as Java's longs do, so that every record keeps its timestamp."""
    times = [2**63 - 1, -(2**63), -1, 0, BASE_MS]
    records = [Record(n, time, b"k%d" % n, None) for n, time in enumerate(times)]
    log = [Ledger([build_batch(records, compression=codec)])]
    after = rows(compact(log).ledgers)
    assert [as_int64(row.timestamp) for row in after] == times


def test_a_record_keeps_attributes_that_nobody_uses():
    record = bytearray(encode_record(Record(1, 5, b"k", b"v")))
    record[1] = 0x5A
    body = encode_record(Record(0, 0, b"a", b"1")) + record
    batch = changed(body, build_batch([], last_offset_delta=1, base_timestamp=9), record_count=2)
    log = [Ledger([batch]), Ledger([batch_of(2, (b"a", b"2"), (b"k", b"w"))])]
    left = compact([*log[:1], Ledger([batch_of(2, (b"a", b"2"))])]).ledgers[0].batches[0]
    assert left[62] == 0x5A
    assert parse_header(left).base_timestamp == 14


def test_long_keys_are_hashed_by_work():
    """400 kB of a key take 0.5 ms, and a batch may have hundreds of them: none is hashed between
    two steps, and short ones not more than a step's bytes."""
    long_key = b"k" * 400_000
    records = [Record(0, 0, long_key, b"1"), Record(1, 0, b"short", b"1")]
    records += [Record(2 + n, 0, b"%d" % n * 30_000, b"") for n in range(30)]
    records.append(Record(32, 0, long_key + b"!", None))
    records.append(Record(33, 0, long_key, b"2"))
    batch = build_batch(records, base_timestamp=0)
    key_map = OpenAddressingKeyMap(24 * 64, hash_key=b"sixteen bytes of")
    hashed, works = [], []
    put, get = key_map.put, key_map.get

    class Counting:
        is_full, shorten = False, key_map.shorten

        def put(self, key, offset):
            hashed[-1] += len(key)
            put(key, offset)

        def get(self, key):
            hashed[-1] += len(key)
            return get(key)

    def drive(steps):
        answer = None
        hashed.append(0)
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = None
            if isinstance(step, Work):
                works.append(step.size_bytes)
                answer = step.run()
            else:
                hashed.append(0)

    header, view = parse_header(batch), memoryview(batch)
    mapping = Mapping(Counting(), TransactionPass(), start_offset=0, size_max=1 << 30)
    assert drive(mapping.add(view, header))
    rules = PassRules(0, 1000, 33, 34, 1 << 30)
    kept = drive(
        Filter(rules, Counting(), TransactionPass()).keep(
            view, header, is_compacted=False, is_range_end=True
        )
    )
    assert kept.records_dropped == 1
    assert [size for size in works if size >= 400_000] == [400_000, 400_001, 400_000] * 2
    assert max(hashed) < BYTES_PER_STEP + LONG_KEY_BYTES
    assert get(b"k" * 400_000) == get(key_map.shorten(long_key + b"x")) == -1


def steps_of(steps):
    """What they yield and, at the end, what they return."""
    seen, answer = [], None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            return seen, done.value
        seen.append(step)
        answer = step.run() if isinstance(step, Work) else None


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("what", ["dropped", "stamped", "bit 6"])
def test_large_records_are_moved_in_steps(codec, what):
    """A few records may be a hundred megabytes, whose copy at once would hold the loop for long;
    on a thread, too, as that copy keeps the interpreter's lock."""
    noise = random.Random(4).randbytes(2 * BYTES_PER_STEP - 70_000)
    records = [Record(n, 0, b"k%d" % n, noise) for n in range(2)]
    if what == "stamped":
        records.append(Record(2, 0, b"gone", None))
    horizon_ms = BASE_MS if what == "bit 6" else None
    batch = build_batch(
        records, base_timestamp=BASE_MS, compression=codec, delete_horizon_ms=horizon_ms
    )
    key_map = DictKeyMap()
    if what == "dropped":
        key_map.put(b"k1", 9)
    header = parse_header(batch)
    copying = Filter(PassRules(BASE_MS, 1000, 9, 10, SIZE_MAX), key_map, TransactionPass())
    seen, kept = steps_of(
        copying.keep(memoryview(batch), header, is_compacted=False, is_range_end=False)
    )
    assert kept.is_changed
    assert kept.record_count == len(records) - (what == "dropped")
    units = [step for step in seen if not isinstance(step, Work)]
    # All of them are looked at, and what stays is moved; what is less than a step may be untold.
    step_units = BYTES_PER_STEP // BYTES_PER_UNIT
    assert sum(units) >= 2 * (len(kept.data) // BYTES_PER_UNIT) - len(units) - step_units
    # A record is looked at whole, which is a look at its lengths and its key.
    largest = 1 + len(noise) // BYTES_PER_UNIT
    assert max(units) <= max(RECORDS_PER_STEP + step_units, largest)
    # Nothing but codecs is work for a thread.
    assert bool(len(seen) - len(units)) is (codec is not Compression.NONE)
    left = rows([Ledger([bytes(kept.data)])])
    assert [row.offset for row in left] == [
        n for n in range(len(records)) if (n, what) != (1, "dropped")
    ]
    assert [as_int64(row.timestamp) for row in left] == [BASE_MS] * len(left)
    assert {row.value for row in left} <= {noise, None}
