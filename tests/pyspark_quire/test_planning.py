"""Splits of a real server's ledgers: every offset once, whatever is asked for."""

import dataclasses
import json
import random
import time

import pytest
from confluent_kafka import TopicPartition

from pyspark_quire.choose_core import DataLossError, UnknownTopicError
from pyspark_quire.planning import batch_splits
from tests.pyspark_quire.conftest import rows_of


def test_ledgers_are_cut_and_each_record_is_in_one_split(served, topic):
    served.create(topic, 2)
    served.fill(topic, 400)
    expected = [(0, n, b"v%d" % n) for n in range(400)]
    rows, splits = served.read(subscribe=topic)
    assert rows == expected
    assert len(splits) == 1
    assert len(splits[0].parts) > 1, "several ledgers"
    for given in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "10"}):
        rows, splits = served.read(subscribe=topic, **given)
        assert sorted(rows) == expected
        assert len(splits) >= 7
    assert len(splits) == 40
    assert all(split.end - split.start <= 10 for split in splits)


def test_without_a_broker_the_end_is_what_bookies_know(served, topic):
    """The last entries may be missing, and nothing else."""
    served.create(topic)
    served.fill(topic, 100, runs=10)
    rows, _ = served.read(by_broker=False, subscribe=topic)
    assert rows == [(0, n, b"v%d" % n) for n in range(len(rows))]
    assert 80 <= len(rows) <= 100


def test_offsets_times_and_patterns(served, topic):
    served.create(topic, 2)
    served.fill(topic, 60)
    start = 1_700_000_000_000
    begin, end = json.dumps({topic: {"0": 10, "1": -2}}), json.dumps({topic: {"0": 20, "1": -1}})
    rows, _ = served.read(subscribePattern=f"{topic}.*", startingOffsets=begin, endingOffsets=end)
    assert [row[1] for row in rows] == list(range(10, 20))
    options = {"startingTimestamp": str(start + 29_001), "endingTimestamp": str(start + 40_000)}
    rows, _ = served.read(assign=json.dumps({topic: [0]}), **options)
    assert [row[1] for row in rows] == list(range(30, 40))
    with pytest.raises(ValueError, match="No offset matched"):
        served.read(subscribe=topic, startingTimestamp=str(start + 10**8))
    rows, splits = served.read(subscribe=topic, minTimestamp=str(start + 50_000))
    assert [row[1] for row in rows] == list(range(50, 60))
    assert splits[0].start > 0, "older ledgers are not read"


def test_ledgers_of_other_times_are_not_read_and_no_record_is_lost(served, topic):
    """Times in no order, some records without one, each ledger with its own span: whatever times
    are asked for, what is read is what a look at every record finds."""
    served.create(topic)
    chosen, start = random.Random(topic), 1_700_000_000_000
    producer, times = served.producer(), []
    for hour in (3, 0, 5, 1, 4, 2):
        for _ in range(20):
            time_ms = start + 3_600_000 * hour + chosen.randrange(5_400_000)
            times.append(time_ms)
            producer.produce(topic, b"v%d" % (len(times) - 1), timestamp=time_ms)
        assert producer.flush(20) == 0
        served.wait_rolled(topic, 0)
    infos = served.chain(topic, 0).ledgers
    assert all(info.min_timestamp >= start for info in infos if not info.is_open)
    all_ledgers = {info.ledger_id for info in infos}
    skipped = set()
    for _ in range(8):
        low, high = sorted(chosen.choice(times) for _ in range(2))
        high = min(high, low + 3_600_000)
        rows, splits = served.read(
            subscribe=topic, minTimestamp=str(low), maxTimestamp=str(high), minPartitions="3"
        )
        expected = [offset for offset, time_ms in enumerate(times) if low <= time_ms <= high]
        assert sorted(row[1] for row in rows) == expected
        read = {part.ledger_id for split in splits for part in split.parts}
        skipped |= all_ledgers - read
        outside = {
            info.ledger_id
            for info in infos
            if not info.is_open and (info.max_timestamp < low or info.min_timestamp > high)
        }
        assert not read & outside
    assert skipped, "of each window some ledgers are not read"
    rows, splits = served.read(subscribe=topic, maxTimestamp=str(start - 1))
    assert rows == []
    assert {part.ledger_id for split in splits for part in split.parts} <= {infos[-1].ledger_id}


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": "nothing-like-it"},
        {"assign": '{"nothing-like-it":[0]}'},
    ],
    ids=str,
)
def test_what_is_named_must_be_there(served, given):
    with pytest.raises(UnknownTopicError, match="nothing-like-it"):
        served.read(**given)


def test_deleted_records_are_told_of(served, topic):
    served.create(topic)
    served.fill(topic, 100)
    asked = TopicPartition(topic, 0, 40)
    served.admin.delete_records([asked])[asked].result(20)
    rows, _ = served.read(subscribe=topic)
    assert [row[1] for row in rows] == list(range(40, 100))
    early = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 10}})}
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 10 to 100"):
        served.read(**early)
    rows, _ = served.read(failOnDataLoss="false", **early)
    assert [row[1] for row in rows] == list(range(40, 100))


@pytest.mark.parametrize("by_broker", [True, False])
def test_only_what_is_committed(served, topic, by_broker):
    served.create(topic)
    producer = served.producer(**{"transactional.id": topic})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush(20)
        if number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(20)
    served.fill(topic, 3, runs=3)
    given = {"subscribe": topic, "isolation.level": "read_committed"}
    rows, _ = served.read(by_broker, **given)
    assert [row[2] for row in rows] == [b"0", b"2", b"4"]
    producer.commit_transaction(20)
    served.fill(topic, 3, runs=3)
    rows, _ = served.read(by_broker, **given)
    wanted = [b"0", b"2", b"4", b"open", b"v0", b"v1", b"v2", b"v0", b"v1", b"v2"]
    # Without a broker the end may trail by what was written last.
    assert [row[2] for row in rows] == wanted[: len(rows)]
    assert len(rows) >= (10 if by_broker else 7)


def test_reading_fences_nobody(served, topic):
    """The partition's writer goes on in the ledger that was read while it was open."""
    before: set[int] = set()
    served.create(topic, **{"segment.ms": "600000"})
    for number in range(3):
        served.fill(topic, 10, runs=1, is_rolled=False)
        rows, splits = served.read(subscribe=topic)
        assert len(rows) == 10 * (number + 1)
        ledgers = {part.ledger_id for split in splits for part in split.parts}
        assert len(ledgers) == 1
        if number:
            assert ledgers == before, "the same ledger, still open"
        before = ledgers


def test_compacted_ledgers_have_holes_and_are_read_as_they_are(served, topic):
    served.create(topic, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    producer = served.producer()
    for number in range(60):
        producer.produce(topic, b"v%d" % number, key=b"k%d" % (number % 6))
        if number % 20 == 19:
            assert producer.flush(20) == 0
            served.wait_rolled(topic, 0)
    deadline = time.monotonic() + 60
    while not any(info.is_compacted for info in served.chain(topic, 0).ledgers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    rows = split = again = None
    while rows is None or again != rows:  # no pass came in between
        assert time.monotonic() < deadline
        rows, _ = served.read(subscribe=topic)
        split, _ = served.read(subscribe=topic, minPartitions="5")
        again, _ = served.read(subscribe=topic)
    assert len(rows) < 60
    assert [row[1] for row in rows] == sorted({row[1] for row in rows})
    assert all(value == b"v%d" % offset for _, offset, value in rows)
    assert {offset % 6 for _, offset, _ in rows} == set(range(6)), "a record of each key"
    assert sorted(split) == rows


def test_a_plan_from_before_a_compaction_goes_on_in_what_is_there_now(served, topic):
    served.create(topic)
    producer = served.producer()
    for number in range(40):
        producer.produce(topic, b"v%d" % number, key=b"k%d" % (number % 4))
    assert producer.flush(20) == 0
    served.wait_rolled(topic, 0)
    options = served.options(subscribe=topic)
    [split] = batch_splits(options)
    before = {part.ledger_id for part in split.parts}
    served.configure(topic, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    producer.produce(topic, b"v40", key=b"k0")
    assert producer.flush(20) == 0
    deadline = time.monotonic() + 60
    while before & {info.ledger_id for info in served.chain(topic, 0).ledgers}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    away = dataclasses.replace(split, addresses=dict.fromkeys(split.addresses, ("127.0.0.1", 1)))
    rows = rows_of([away], options)
    assert 0 < len(rows) <= 40
    assert all(value == b"v%d" % offset for _, offset, value in rows)
    # Record 40 is behind the split; of its key the last one before it may be gone.
    assert {offset for _, offset, _ in rows} >= {37, 38, 39}
