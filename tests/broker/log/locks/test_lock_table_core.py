"""The table never answers too low, and not too high more often than it is said to."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.locks.lock_headers_core import BatchLocks, RecordLocks, lock_of
from broker.log.locks.lock_table_core import IN_BATCH, LockTable
from wire.kafka.records.walk import BLAMED_MAX


def record(index, position, *, read=(), write=(), append=()):
    reads, writes, appends = (tuple(map(lock_of, names)) for names in (read, write, append))
    return RecordLocks(index, position, reads + writes, writes + appends)


def conflicts(table, *records, high_watermark=1 << 40):
    return table.conflicts(BatchLocks(records, 0), high_watermark)


def written(table, offset, **locks):
    table.mark_batch(BatchLocks((record(0, 0, **locks),), 0), offset)


def test_scenario_2_a_second_write_from_the_same_position():
    table = LockTable(30_000, -1)
    assert not conflicts(table, record(0, 0, write=[b"x"]))
    written(table, 5, write=[b"x"])
    (conflict,) = conflicts(table, record(0, 0, write=[b"x"]))
    assert conflict.text == "LOCK_CONFLICT position=0 conflict=5 lock=x"
    assert conflicts(table, record(0, 5, write=[b"x"]))
    assert not conflicts(table, record(0, 6, write=[b"x"]))
    assert not conflicts(table, record(0, 0, write=[b"y"]))


def test_scenario_3_readers_do_not_disturb_each_other():
    table = LockTable(30_000, -1)
    written(table, 0, read=[b"x"])
    assert not conflicts(table, record(0, 0, read=[b"x"]), record(1, 0, read=[b"x"]))


def test_scenario_4_what_was_read_was_written_since():
    table = LockTable(30_000, -1)
    written(table, 7, write=[b"x"])
    assert conflicts(table, record(0, 7, read=[b"x"]))[0].offset == 7
    assert not conflicts(table, record(0, 8, read=[b"x"]))


def test_scenario_5_appends_are_not_tested_but_count():
    table = LockTable(30_000, -1)
    for offset in (0, 1):
        assert not conflicts(table, record(0, -1, append=[b"x"]))
        written(table, offset, append=[b"x"])
    assert conflicts(table, record(0, 0, write=[b"x"]))[0].offset == 1


def test_scenario_10_in_one_batch_the_innocent_are_not_blamed():
    table = LockTable(30_000, -1)
    found = conflicts(
        table,
        record(0, 0, write=[b"x"]),
        record(1, 0, write=[b"x", b"y"]),
        record(2, 0, write=[b"y"]),  # of a record that is not written either
    )
    assert [(one.number, one.offset) for one in found] == [(1, IN_BATCH)]


def test_scenario_15_a_position_beyond_the_end():
    table = LockTable(30_000, -1)
    (ahead,) = conflicts(table, record(3, 11, read=[b"x"]), high_watermark=10)
    assert ahead.is_ahead
    assert ahead.text == "POSITION_AHEAD position=11 end=10"
    assert not conflicts(table, record(3, 10, read=[b"x"]), high_watermark=10)


def test_the_floor_is_below_no_estimate():
    table = LockTable(30_000, 41)
    written(table, 3, write=[b"x"])
    assert table.estimate(lock_of(b"x")) == table.estimate(lock_of(b"new")) == 41
    table.raise_floor(50)
    table.raise_floor(45)
    assert table.estimate(lock_of(b"x")) == 50


def test_marks_are_never_lowered():
    table = LockTable(30_000, -1)
    written(table, 9, write=[b"x"])
    written(table, 4, write=[b"x"])
    assert table.estimate(lock_of(b"x")) == 9


def test_scenario_20_locks_that_share_all_slots_conflict_and_go_on():
    table = LockTable(1_009, -1)
    name = b"a"
    twin = next(
        other
        for other in (b"%d" % n for n in range(10**7))
        if table._slots(lock_of(other)) == table._slots(lock_of(name))
    )
    written(table, 2, write=[name])
    assert conflicts(table, record(0, 0, write=[twin]))
    assert not conflicts(table, record(0, 3, write=[twin])), "who has applied it goes on"


def test_no_more_are_told_than_an_answer_may_name():
    table = LockTable(30_000, 5)
    records = [record(n, 0, read=[b"x"]) for n in range(BLAMED_MAX + 9)]
    assert len(conflicts(table, *records)) == BLAMED_MAX


@pytest.mark.parametrize("names", ["acct/%d", "%08d", "user-%d/balance"])
def test_scenario_21_false_conflicts_are_as_rare_as_they_are_said_to_be(names):
    size, written_count, asked = 30_000, 3_000, 30_000
    table = LockTable(size, -1)
    for n in range(written_count):
        table.mark(lock_of((names % n).encode()), n)
    false = sum(
        table.estimate(lock_of((names % n).encode())) >= 0
        for n in range(written_count, written_count + asked)
    )
    expected = (1 - math.exp(-3 * written_count / size)) ** 3
    assert 0.7 * expected < false / asked < 1.3 * expected


def test_memory_is_that_of_what_was_written():
    table = LockTable(10_000_000, -1)
    before = table.size_bytes
    written(table, 0, write=[b"x"])
    assert before < 100_000
    assert before < table.size_bytes <= before + 3 * 1024 * 8


@given(
    size=st.integers(1_009, 1_100),
    steps=st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.integers(0, 5)), max_size=300),
)
def test_no_conflict_is_overlooked(size, steps):
    """Against an exact map: what it refuses the table refuses."""
    table = LockTable(size, -1)
    exact = {}
    for offset, (number, is_append, lag) in enumerate(steps):
        name = b"%d" % number
        position = max(offset - lag, 0)
        one = record(0, position, append=[name]) if is_append else record(0, position, write=[name])
        refused = bool(conflicts(table, one))
        must_be = not is_append and exact.get(name, -1) >= position
        assert refused or not must_be
        if not refused:
            table.mark_batch(BatchLocks((one,), 0), offset)
            exact[name] = offset


def test_each_record_of_a_batch_marks_its_own_offset():
    table, lock = LockTable(30_000, -1), lock_of(b"x")
    table.mark_batch(BatchLocks((RecordLocks(2, -1, (), (lock,)),), 0), 10)
    assert table.estimate(lock) == 12


def test_of_several_locks_the_last_that_was_written_is_told():
    table, locks = LockTable(30_000, -1), [lock_of(name) for name in (b"x", b"y", b"z")]
    for lock, offset in zip(locks, (3, 7, 5), strict=True):
        table.mark(lock, offset)
    batch = BatchLocks((RecordLocks(0, 0, tuple(locks), ()),), 0)
    (conflict,) = table.conflicts(batch, 10)
    assert (conflict.offset, conflict.lock) == (7, b"y")


def test_two_locks_of_one_hash_are_two_locks():
    """A table of one hash would take them for the same, whatever its size."""
    one, two = lock_of(b"acct/72522202"), lock_of(b"acct/750895418")
    assert one[1] == two[1], "an example of two ids with the same CRC-32"
    table = LockTable(30_000, -1)
    table.mark(one, 5)
    assert (table.estimate(one), table.estimate(two)) == (5, -1)
