"""A partition's locks alone: what of a batch changes the table. With a log: in the folder above."""

from types import SimpleNamespace

from broker.log.locks.lock_headers_core import BatchLocks, RecordLocks, lock_of
from broker.log.locks.partition_locks import LockCounts, PartitionLocks

ON = SimpleNamespace(quire_locks="optional", quire_locks_table_size=30_000)
LOCK = lock_of(b"x")


def batch(*positions):
    records = (RecordLocks(n, at, (LOCK,), ()) for n, at in enumerate(positions))
    return BatchLocks(tuple(records), 0)


def test_a_marker_of_a_transaction_has_written_no_lock():
    locks = PartitionLocks(LockCounts())
    table = locks.follow(ON, 0)
    header = SimpleNamespace(is_control=True, last_offset_delta=0)
    locks.numbered(SimpleNamespace(locks=None, header=header), 5)
    assert table.floor == -1


def test_who_is_ahead_is_told_before_who_conflicts():
    """Only of that it has to be certain that the partition is ours."""
    locks = PartitionLocks(LockCounts())
    locks.follow(ON, 0).mark(LOCK, 5)
    refusal = locks.refusal(batch(0, 99), ON, 10, 10)
    assert refusal.is_doubted
    assert list(refusal.error.record_indexes) == [1]


def test_records_are_counted():
    counts = LockCounts()
    locks = PartitionLocks(counts)
    locks.follow(ON, 0).mark(LOCK, 5)
    locks.refusal(batch(0, 1, 2), ON, 10, 10)
    assert locks.refusal(batch(6, 7), ON, 10, 10) is None
    assert (counts.accepted, counts.conflicts, counts.in_flight_conflicts) == (2, 3, 0)
