"""From the bytes of a read to what can be acquired, and back."""

from broker.log.transactions.aborted_index import AbortedTransaction
from broker.share.partition.acquiring import LogBatch, Taker, acquire
from broker.share.partition.log_batches import BATCHES_MAX, LogBatches
from broker.share.partition.share_partition_core import SharePartitionCore
from broker.share.ports import ShareGroupSettings
from wire.kafka.records.batch import build_batch
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch
from wire.kafka.records.record import Record

ABORT = EndTransactionMarker(committed=False, coordinator_epoch=1)
#: Producer 7 aborts what it began at 2; its marker is at 6.
ABORTED = AbortedTransaction(7, 2, 6, 7)


def batch(first, count, producer=None):
    records = [
        Record(offset_delta=delta, timestamp_delta=0, key=None, value=b"v", headers=[])
        for delta in range(count)
    ]
    options = (
        {}
        if producer is None
        else {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": 0,
            "is_transactional": True,
        }
    )
    return memoryview(build_batch(records, base_offset=first, **options))


def the_log():
    marker = build_end_transaction_batch(
        ABORT, producer_id=7, producer_epoch=0, timestamp_ms=0, base_offset=6
    )
    return [batch(0, 2), batch(2, 2, 7), batch(4, 2, 8), memoryview(marker), batch(7, 1, 7)]


def ranges(core, read):
    taker = Taker("m", 0, 500, 500)
    got = acquire(core, taker, core.next_fetch_offset(), read.batches, ShareGroupSettings())
    return [(first, last) for first, last, _ in got]


def test_aborted_txn_hidden():
    read = LogBatches(the_log(), [ABORTED])
    assert read.batches == [
        LogBatch(0, 1),
        LogBatch(2, 3, True),
        LogBatch(4, 5),
        LogBatch(6, 6, True),
        LogBatch(7, 7),
    ]
    core = SharePartitionCore(0)
    assert ranges(core, read) == [(0, 1), (4, 5), (7, 7)]
    assert core.complete_count() == 3, "what nobody is given is over"


def test_isolation_switch():
    uncommitted = SharePartitionCore(0)
    assert ranges(uncommitted, LogBatches(the_log())) == [(0, 5), (7, 7)]
    settings = ShareGroupSettings()
    uncommitted.release("m", settings)
    assert ranges(uncommitted, LogBatches(the_log(), [ABORTED])) == [(0, 1), (4, 5), (7, 7)]


def test_parts_of_batches_and_batches_of_parts():
    whole = b"".join(the_log())
    sizes = [len(each) for each in the_log()]
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    view = memoryview(whole)
    for parts in (
        [view],
        the_log(),
        [view[:100], view[100:]] if sizes[0] > 100 else [view[: sizes[0]], view[sizes[0] :]],
        [view[: ends[1] + 65], view[ends[1] + 65 :]],
    ):
        read = LogBatches(parts)
        assert [each.first for each in read.batches] == [0, 2, 4, 6, 7]
        for number in range(5):
            first, last, _ = read.batches[number]
            cut = b"".join(read.cut(parts, first, last))
            assert cut == whole[ends[number] : ends[number + 1]]
        assert b"".join(read.cut(parts, 1, 7)) == whole
        assert b"".join(read.cut(parts, 3, 4)) == whole[ends[1] : ends[3]]


def test_no_more_batches_than_a_turn_has_time_for():
    parts = [batch(number, 1) for number in range(BATCHES_MAX + 5)]
    read = LogBatches(parts)
    assert len(read.batches) == BATCHES_MAX
    last = read.batches[-1].last
    assert b"".join(read.cut(parts, last, last)) == bytes(parts[last])


def test_batches_without_records_are_hidden():
    empty = build_batch([], base_offset=3, last_offset_delta=4)
    assert LogBatches([memoryview(empty)]).batches == [LogBatch(3, 7, True)]
