"""A broker is killed at each append, of a coordinator's records and of a partition's: before any
bookie has the entry, when one has it, and when all know it but the broker. Whatever was lost, each
transaction is all or nothing afterwards, and none is left open."""

import os
from collections import Counter

import pytest

from broker.cluster.topic import TRANSACTION_TOPIC
from broker.transactions.records import parse_record
from broker.transactions.types import TxnState
from metadata.faulty import StoreFaults
from sim.append_crash import AppendCrash
from sim.course import Course
from sim.names import TXN_TOPIC
from sim.plan import Fault
from sim.runner import Outcome, run_world
from sim.shape import Shape
from sim.trace import Trace
from sim.world import World

#: A clock that is not wrong: the clients go on for so long before the heal.
LATER = Fault(1, 5.0, "clock", 0.0, 0.5, 0.1)
#: Who takes over is another process, which has seen nothing of it.
SHAPE = Shape(
    bookies=3, brokers=2, partitions=1, idempotent_producers=0, plain_producers=1, consumers=0,
    admins=0, transactional=2, twins=1,
)  # fmt: skip
COPIES = (0, 1, 2)
#: By topic: what its appends are.
KINDS = {
    TRANSACTION_TOPIC: tuple(state.name for state in TxnState),
    TXN_TOPIC: ("data", "commit", "abort"),
}
#: The numbers of the appends at which the sweeps kill; `make test-long` has eight.
SWEPT = range(1, 1 + int(os.environ.get("QUIRE_SWEPT_APPENDS", "3")))


class CrashCourse(Course):
    def __init__(self, world, crash):
        super().__init__(world)
        self._crash = crash

    def _start_clients(self, nursery):
        self._crash.arm()
        super()._start_clients(nursery)


def killed_at(seed, **options):
    """What the append was that the broker did not survive."""
    world = World(seed, [LATER], SHAPE, Trace(), StoreFaults())
    is_silent = bool(options["number"] % 2)
    crash = AppendCrash(world, **options, is_silent=is_silent, seconds=1.0)
    result = run_world(world, course=lambda world: CrashCourse(world, crash))
    words = f"seed {seed}, {options}: {result.story}"
    assert result.outcome is Outcome.FINE, words
    assert result.counts["crashes at an append"] == 1, words
    assert result.counts["transactions committed"] > 0, words
    return {what for batch in crash.batches for what in kinds(batch)}


def kinds(batch):
    if batch.marker is not None:
        yield "commit" if batch.marker.committed else "abort"
    for _, record in batch.records:
        if batch.header.is_transactional:
            yield "data"
        elif record.key is not None:
            stored = parse_record(bytes(record.key), record.value)
            yield "tombstone" if stored.snapshot is None else stored.snapshot.state.name


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize(
    ("topic", "kind"), [(topic, kind) for topic, some in KINDS.items() for kind in some]
)
def test_killed_at_each_kind_of_append(topic, kind, copies):
    """Of a coordinator and of a partition's owner."""
    found = killed_at(
        1, topic=topic, number=2, copies=copies, counts=lambda batch: kind in kinds(batch)
    )
    assert kind in found


def sweep(topic):
    """Which kinds of appends it came to, and how often."""
    found = Counter()
    for number in SWEPT:
        for copies in COPIES:
            found.update(killed_at(number % 7, topic=topic, number=number, copies=copies))
    return found


# Of each kind one is killed above; here each of the first ones in turn, whatever it is.
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_coordinator_killed_at_each_append():
    assert len(sweep(TRANSACTION_TOPIC)) > 1


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_partition_owner_killed_at_each_append():
    assert len(sweep(TXN_TOPIC)) > 1
