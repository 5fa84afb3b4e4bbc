"""Which records a member is given."""

import pytest

from broker.share.partition.acquiring import RUNS_MAX, LogBatch, Taker, acquire
from broker.share.partition.share_partition_core import SharePartitionCore
from broker.share.ports import ShareGroupSettings

SETTINGS = ShareGroupSettings(record_lock_duration_ms=100)


def take(core, log, settings=SETTINGS, *, now_ms=0, **wish):
    options = {"records_max": 500, "batch_size": 500} | wish
    offset = core.next_fetch_offset()
    read = [LogBatch(*batch) for batch in log if batch[1] >= offset]
    return [
        tuple(one) for one in acquire(core, Taker("m", now_ms, **options), offset, read, settings)
    ]


def test_batches_are_taken_whole():
    core = SharePartitionCore(0)
    log = [(0, 4), (5, 9), (10, 14)]
    assert take(core, log, records_max=6) == [(0, 9, 1)]
    assert take(core, log, records_max=0) == []
    assert take(core, log, records_max=1) == [(10, 14, 1)]


def test_record_limit_one():
    core = SharePartitionCore(0)
    assert take(core, [(0, 4)], records_max=1, is_record_limit=True) == [(0, 0, 1)]
    assert take(core, [(0, 4)], records_max=2, is_record_limit=True) == [(1, 2, 1)]
    assert take(core, [(0, 4)]) == [(3, 4, 1)]


@pytest.mark.parametrize(
    ("batch_size", "ranges"),
    [(1, [(0, 4), (5, 9), (10, 14)]), (6, [(0, 9), (10, 14)]), (500, [(0, 14)])],
)
def test_batch_size_splits_at_record_batches(batch_size, ranges):
    taken = take(SharePartitionCore(0), [(0, 4), (5, 9), (10, 14)], batch_size=batch_size)
    assert [(first, last) for first, last, _ in taken] == ranges


def test_poison_alone():
    """Offset 37 of a hundred crashes whoever is given it: only that one is archived."""
    core = SharePartitionCore(0)
    given, now_ms, sizes = {}, 0, []
    for _ in range(300):
        taken = take(core, [(0, 99)], now_ms=now_ms)
        if not taken:
            break
        sizes.append(sum(last - first + 1 for first, last, _ in taken))
        for first, last, deliveries in taken:
            for offset in range(first, last + 1):
                given[offset] = deliveries
        assert not (sizes[-1] > 1 and any(each[2] == 5 for each in taken))
        crashes = any(first <= 37 <= last for first, last, _ in taken)
        now_ms += 100
        if crashes:
            core.expire(now_ms, SETTINGS)
        else:
            for run in core.runs:
                if run.member:
                    run.become(2)
            core.runs.advance()
    assert core.start == 100
    assert given[37] == 5
    assert all(deliveries <= 5 for deliveries in given.values())
    alone = [offset for offset, deliveries in given.items() if deliveries == 5]
    assert len(alone) < 60, "most are delivered before the last attempt"
    assert sizes[:4] == [100, 100, 100, 50]


def test_compacted_gap():
    core = SharePartitionCore(0)
    assert take(core, [(3, 4), (9, 9)]) == [(3, 4, 1), (9, 9, 1)]
    core.expire(100, SETTINGS)
    assert take(core, [(9, 9)]) == [(9, 9, 2)], "the others are in no log any more"
    assert core.start == 9


def test_a_gap_that_is_wider_than_the_locks():
    settings = SETTINGS._replace(partition_max_record_locks=100)
    core = SharePartitionCore(0)
    log = [(0, 0), (1_000, 1_001)]
    assert take(core, log, settings) == [(0, 0, 1)]
    assert take(core, log, settings) == []
    core.runs[0].become(2)
    core.runs.advance()
    assert take(core, log, settings) == [(1_000, 1_001, 1)]


def test_hidden_batches_are_passed_over():
    core = SharePartitionCore(0)
    assert take(core, [(0, 1, True), (2, 3), (4, 4, True), (5, 5)]) == [(2, 3, 1), (5, 5, 1)]
    assert core.start == 2
    core = SharePartitionCore(0)
    assert take(core, [(0, 0, True)]) == []
    assert (core.start, core.end, len(core.runs)) == (1, 1, 0)


def test_a_limit_that_was_lowered():
    core = SharePartitionCore(0)
    for _ in range(2):
        take(core, [(0, 0)])
        core.expire(100, SETTINGS)
    assert take(core, [(0, 0)], SETTINGS._replace(delivery_count_limit=2)) == []
    assert core.start == 1


def test_what_is_in_many_pieces_is_given_in_parts():
    settings = SETTINGS._replace(partition_max_record_locks=4_000)
    core = SharePartitionCore(0)
    take(core, [(0, 3_999)], settings, records_max=4_000)
    for number in range(2_000):
        core.runs.carve(core.runs.find(2 * number + 1), 2 * number + 1, 2 * number + 1)
    core.expire(100, settings)
    core.expire(100, settings)
    taken = take(core, [(0, 3_999)], settings, records_max=4_000, now_ms=100)
    assert taken == [(0, RUNS_MAX - 1, 2)]
