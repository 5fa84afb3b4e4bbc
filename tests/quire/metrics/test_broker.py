"""A page about thousands of partitions is read in slices: a few hundred of them at a time."""

from types import SimpleNamespace

import pytest

from broker.log.append.producer_store import Room
from broker.log.locks.partition_locks import LockCounts
from broker.log.partition import State
from quire.metrics.broker import partition_collector
from quire.metrics.transactions import open_transactions_collector
from runtime.metrics import SAMPLES_PER_TURN

#: No partition is asked for more in one slice.
READS_EACH = 8


class Reads:
    """Counts what is read of partitions since it was asked last."""

    def __init__(self):
        self.count = 0

    def taken(self):
        count, self.count = self.count, 0
        return count


class Partition:
    def __init__(self, reads, number):
        self._reads = reads
        self._values = {
            "topic": SimpleNamespace(name=f"t{number % 7}"),
            "partition": number,
            "size_bytes": 1,
            "log_start_offset": 2,
            "log_end_offset": 3,
            "bytes_in": 4,
            "batches_in": 5,
            "state": State.ONLINE,
            "locks": SimpleNamespace(table=None),
            "producers": SimpleNamespace(oldest_transaction_append_ms=None),
            "high_watermark": 3,
            "last_stable_offset": 3,
        }

    def __getattr__(self, name):
        self._reads.count += 1
        return self._values[name]


@pytest.mark.parametrize("kind", ["partitions", "transactions"])
def test_in_slices(kind):
    reads = Reads()
    held = [Partition(reads, number) for number in range(5 * SAMPLES_PER_TURN)]
    checks = SimpleNamespace(
        inline_count=0, delayed_count=0, threaded_count=0, lock_counts=LockCounts()
    )
    logs = SimpleNamespace(all=lambda: iter(held), producers_room=Room(10), checks=checks)
    collector = {
        "partitions": partition_collector(logs),
        "transactions": open_transactions_collector(
            logs, SimpleNamespace(time_ms=lambda: 1), 60_000
        ),
    }[kind]
    families = []
    total = 0
    for family in collector():
        count = reads.taken()
        assert count <= READS_EACH * SAMPLES_PER_TURN
        total += count
        families.append(family)
    assert total > READS_EACH * SAMPLES_PER_TURN
    by_partition = [each for each in families if each and len(each.samples) == len(held)]
    assert len(by_partition) == {"partitions": 3, "transactions": 1}[kind]
