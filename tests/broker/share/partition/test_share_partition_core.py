"""A share partition's rules, one by one. All of them together: test_share_partition_model.py."""

import pytest

from broker.api import all_steps
from broker.share.partition.acknowledgements import Acknowledgement
from broker.share.partition.acquiring import LogBatch, Taker, acquire
from broker.share.partition.share_partition_core import (
    ENDED_AT_ONCE,
    SharePartitionCore,
    changing,
    stored_form,
)
from broker.share.ports import ShareGroupSettings, StateBatch
from wire.kafka.errors import ErrorCode

E = ErrorCode
SETTINGS = ShareGroupSettings(record_lock_duration_ms=100)
ONE, TWO = Taker("one", 0, 500, 500), Taker("two", 0, 500, 500)


def take(core, batches, taker=ONE, settings=SETTINGS):
    offset = core.next_fetch_offset()
    read = [LogBatch(*batch) for batch in batches if batch[1] >= offset]
    return [tuple(each) for each in acquire(core, taker, offset, read, settings)]


def acknowledge(core, member, *acks, now_ms=0, settings=SETTINGS):
    wanted = [Acknowledgement(first, last, bytes(types)) for first, last, *types in acks]
    return all_steps(core.acknowledge(member, wanted, now_ms, settings))


def test_what_is_over_is_passed_in_steps():
    """100,000 acknowledgements below the start took 70 ms at once."""
    over = [Acknowledgement(offset, offset, b"\1") for offset in range(1000)]
    steps = SharePartitionCore(1000).acknowledge("one", over, 0, SETTINGS)
    assert sum(1 for _ in steps) == 1000


@pytest.mark.parametrize("is_stored", [False, True])
def test_ack_vs_lock_timeout(is_stored):
    core = SharePartitionCore(0)
    assert take(core, [(0, 9)]) == [(0, 9, 1)]
    error, change = acknowledge(core, "one", (0, 9, 1))
    assert error is E.NONE
    assert core.expire(1_000, SETTINGS) == ([], True), "storing decides"
    if is_stored:
        core.commit(change)
        assert (core.start, core.end) == (10, 10)
    else:
        assert core.fail(change, 1_000, SETTINGS) == [StateBatch(0, 9, 0, 1)]
        assert take(core, [(0, 9)], TWO) == [(0, 9, 2)]
        assert acknowledge(core, "one", (0, 9, 1))[0] is E.INVALID_RECORD_STATE


def test_the_lock_ends_first():
    core = SharePartitionCore(0)
    take(core, [(0, 9)])
    assert core.next_deadline_ms() == 100
    assert core.expire(99, SETTINGS) == ([], True)
    assert core.expire(100, SETTINGS) == ([StateBatch(0, 9, 0, 1)], True)
    assert acknowledge(core, "one", (0, 9, 1))[0] is E.INVALID_RECORD_STATE
    assert core.next_deadline_ms() is None


def test_many_locks_end_in_parts():
    core = SharePartitionCore(0)
    settings = SETTINGS._replace(partition_max_record_locks=4_000)
    for first in range(0, 4_000, 2):
        take(core, [(first, first)], settings=settings)
        take(core, [(first + 1, first + 1)], TWO, settings=settings)
    batches, is_all = core.expire(100, settings)
    assert not is_all
    assert sum(last - first + 1 for first, last, *_ in batches) >= ENDED_AT_ONCE
    while not is_all:
        _, is_all = core.expire(100, settings)
    assert core.next_deadline_ms() is None


def test_what_fails_changes_nothing():
    core = SharePartitionCore(0)
    take(core, [(0, 9)])
    error, change = acknowledge(core, "one", (0, 3, 1), (5, 12, 1))
    assert (error, change.runs) == (E.INVALID_REQUEST, [])
    assert acknowledge(core, "two", (0, 3, 1))[0] is E.INVALID_RECORD_STATE
    error, change = acknowledge(core, "one", (0, 9, *([1, 2] * 5)))
    assert error is E.NONE
    assert acknowledge(core, "one", (0, 0, 1))[0] is E.INVALID_RECORD_STATE, "it is changing"
    assert stored_form(changing(change))[:2] == [StateBatch(0, 0, 2, 1), StateBatch(1, 1, 0, 1)]
    assert core.complete_count() == 5
    core.commit(change)
    assert core.start == 1
    assert take(core, [(0, 9)]) == [(offset, offset, 2) for offset in (1, 3, 5, 7, 9)]


def test_release_to_limit_archives():
    core = SharePartitionCore(0)
    settings = SETTINGS._replace(delivery_count_limit=2)
    for deliveries in (1, 2):
        assert take(core, [(0, 0)], settings=settings) == [(0, 0, deliveries)]
        _, change = acknowledge(core, "one", (0, 0, 2), settings=settings)
        core.commit(change)
    assert core.start == 1


def test_who_leaves_was_given_nothing():
    core = SharePartitionCore(0)
    take(core, [(0, 4)])
    assert core.release("one", SETTINGS) == ([StateBatch(0, 4, 0, 0)], True)
    assert take(core, [(0, 4)], TWO) == [(0, 4, 1)]


def test_who_leaves_while_it_is_stored():
    core = SharePartitionCore(0)
    take(core, [(0, 4)])
    _, change = acknowledge(core, "one", (0, 4, 1))
    assert core.release("one", SETTINGS) == ([], True)
    core.fail(change, 1, SETTINGS)
    assert take(core, [(0, 4)], TWO) == [(0, 4, 2)]


def test_who_leaves_with_very_much_does_not_leave_what_he_is_given_later():
    core = SharePartitionCore(0)
    settings = SETTINGS._replace(partition_max_record_locks=5_000)
    log = [(offset, offset) for offset in range(ENDED_AT_ONCE + 50)]
    taker = ONE._replace(records_max=5_000, batch_size=1)
    take(core, log, taker, settings)
    for offset in range(len(log)):  # cuts it into runs
        _, change = acknowledge(core, "one", (offset, offset, 1), settings=settings)
        core.fail(change, 0, settings)
    batches, is_all = core.release("one", settings)
    assert (batches, is_all) == ([StateBatch(0, ENDED_AT_ONCE - 1, 0, 0)], False)
    assert take(core, log[:1], ONE, settings) == [(0, 0, 1)], "by the same name"
    late = (ENDED_AT_ONCE, ENDED_AT_ONCE, 1)
    error, _ = acknowledge(core, "one", late, settings=settings)
    assert error is E.INVALID_RECORD_STATE, "it is nobody's already"
    rest = StateBatch(ENDED_AT_ONCE, ENDED_AT_ONCE + 49, 0, 0)
    assert core.expire(1, settings) == ([rest], True)
    error, change = acknowledge(core, "one", (0, 0, 1), settings=settings)
    assert error is E.NONE
    core.commit(change)
    assert core.start == 1


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_lock_that_ends_while_it_is_acknowledged_in_vain(is_closed):
    core = SharePartitionCore(0)
    take(core, [(0, 9)])
    wanted = [Acknowledgement(0, 4, b"\1"), Acknowledgement(20, 29, b"\1")]
    told = []
    steps = core.acknowledge("one", wanted, 0, SETTINGS, told.append)
    next(steps)
    assert core.expire(100, SETTINGS) == ([StateBatch(5, 9, 0, 1)], True)
    assert core.next_deadline_ms() is None
    if is_closed:
        steps.close()
    else:
        assert all_steps(steps)[0] is E.INVALID_REQUEST
    assert told == [100], "somebody has to look at it again"
    assert core.expire(100, SETTINGS) == ([StateBatch(0, 4, 0, 1)], True)
    assert take(core, [(0, 9)], TWO) == [(0, 9, 2)]


def test_what_another_was_given_meanwhile_is_not_renewed():
    core = SharePartitionCore(0)
    take(core, [(0, 4)])
    steps = core.acknowledge("one", [Acknowledgement(0, 4, b"\4")], 90, SETTINGS)
    next(steps)
    core.expire(100, SETTINGS)
    assert take(core, [(0, 4)], TWO._replace(now_ms=50)) == [(0, 4, 2)]
    assert all_steps(steps)[0] is E.NONE
    assert core.next_deadline_ms() == 150


def test_locks_full():
    core = SharePartitionCore(0)
    settings = SETTINGS._replace(partition_max_record_locks=100)
    log = [(0, 59), (60, 149)]
    assert take(core, log, settings=settings) == [(0, 99, 1)], "a batch is cut at the bound"
    assert not core.can_acquire(settings)
    _, change = acknowledge(core, "one", (50, 59, 2), settings=settings)
    core.commit(change)
    assert core.can_acquire(settings)
    assert take(core, log, TWO, settings) == [(50, 59, 2)], "re-deliveries still flow"
    _, change = acknowledge(core, "one", (0, 49, 1), settings=settings)
    core.commit(change)
    assert take(core, log, TWO, settings) == [(100, 149, 1)]


def test_gaps_between_what_is_stored_are_delivered():
    core = SharePartitionCore(5, [StateBatch(20, 29, 2, 1), StateBatch(8, 9, 0, 3)])
    assert (core.start, core.end, core.complete_count()) == (5, 30, 10)
    assert take(core, [(0, 34)]) == [(5, 7, 1)], "what failed often is given alone"
    assert take(core, [(0, 34)]) == [(8, 8, 4)]
    core = SharePartitionCore(0, [StateBatch(0, 9, 2, 1), StateBatch(10, 14, 3, 1)])
    assert (core.start, core.end) == (15, 15)


def test_the_log_start_takes_all_below():
    core = SharePartitionCore(0)
    take(core, [(0, 9)])
    _, change = acknowledge(core, "one", (0, 4, 1))
    core.log_start_moved(3)
    assert (core.start, core.end) == (3, 10)
    assert stored_form(changing(change)) == [StateBatch(3, 4, 2, 1)]
    core.commit(change)
    assert core.start == 5
    assert acknowledge(core, "one", (0, 4, 1))[0] is E.NONE
    core.log_start_moved(50)
    assert (core.start, core.end, len(core.runs)) == (50, 50, 0)


def test_what_is_not_sent_is_given_back():
    core = SharePartitionCore(0)
    take(core, [(0, 9)])
    assert core.give_back("two", [(0, 9)], SETTINGS) == []
    assert core.give_back("one", [(4, 9)], SETTINGS) == [StateBatch(4, 9, 0, 0)]
    assert take(core, [(0, 9)], TWO) == [(4, 9, 1)]
