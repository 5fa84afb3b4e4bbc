"""Very many transactional ids in one partition: no turn of the loop is long, whatever happens to
all of them at once.

Turns are measured by the thread's processor time. What the memory log and partitions of these
tests cost is in them; the target is 5 ms, and the bound leaves room for a busy machine's caches.
`pytest -s` prints the table; QUIRE_TURNS_IDS asks for more ids.
"""

import gc
import os
import time
import tracemalloc
from collections import deque

import pytest
import trio

from broker.transactions.markers import PARTITION_UNITS, PARTITIONS_PER_REQUEST, MarkerJob
from broker.transactions.records import txn_record
from broker.transactions.types import Markers, TxnSnapshot
from runtime.loop_watch import LoopWatch
from runtime.turn import SPENT_UNITS
from tests.broker.transactions.world import E, Log, S, World
from tests.turns import check_turn
from wire.kafka.records.batch import build_batch, parse_header, patch
from wire.kafka.records.record import Record

pytestmark = pytest.mark.turns

IDS = int(os.environ.get("QUIRE_TURNS_IDS", "20000"))
BATCH_RECORDS = 500
TURN_SECONDS_MAX = 0.02


class SlowLog(Log):
    """Acknowledges one batch a turn; reads where it is asked to."""

    def ack(self):
        if self._waiting:
            waiting, self._waiting = deque(self._waiting), []
            base_offset, records, done, append = waiting.popleft()
            self.batches.append((base_offset, records))
            self.high_watermark = base_offset + parse_header(records).last_offset_delta + 1
            done(append)
            self._waiting = [*waiting, *self._waiting]
            if self._waiting:
                self._turn.later(self.ack)

    async def read(self, offset, size_max):
        await self.reads_allowed.wait()
        at = offset // BATCH_RECORDS
        base_offset, records = self.batches[at]
        return _Read([memoryview(records)], base_offset + BATCH_RECORDS)


class _Read:
    def __init__(self, parts, next_offset):
        self.parts, self.next_offset = parts, next_offset


def log_of(turn, state, *, partitions, started_ms):
    """A log with one record of each id."""
    log = SlowLog(turn)
    records = [
        txn_record(
            TxnSnapshot(
                f"transactional-id-{number:06}", 10_000 + number, -1, -1, 3, 60_000, state,
                frozenset(partitions), started_ms, started_ms, 2,
            )
        )
        for number in range(IDS)
    ]  # fmt: skip
    for start in range(0, IDS, BATCH_RECORDS):
        some = records[start : start + BATCH_RECORDS]
        batch = bytearray(
            build_batch(
                [Record(at, 0, key, value) for at, (key, value) in enumerate(some)],
                base_timestamp=0,
            )
        )
        patch(batch, 0, start, 6)
        log.batches.append((start, bytes(batch)))
    log.high_watermark = log._next = IDS
    return log


@pytest.fixture
async def measured(nursery, request):
    """`measured(name)` tells the longest turn since the last one."""
    gc.collect()
    gc.freeze()
    gc.disable()  # a process of ours looks elsewhere (runtime/young_objects.py)
    watch = LoopWatch(time.thread_time)
    watch.start()
    table = {}

    def tell(name):
        if name is not None:
            table[name] = (watch.histogram.max_seconds, dict(watch.longest_by_name or {}))
        watch.histogram.max_seconds = 0.0
        watch.longest_by_name = {}

    tell.watch = watch
    yield tell
    watch.stop()
    gc.enable()
    gc.unfreeze()
    print()
    for name, (seconds, by) in table.items():
        print(f"{seconds * 1000:8.1f} ms  {name:30} {max(by, key=by.get, default='')}")
    for name, (seconds, by) in table.items():
        check_turn(seconds, TURN_SECONDS_MAX, f"{name} ({by})")


async def held(nursery, measured, state, *, partitions=(("t", 0), ("u", 1)), age_ms=0, **config):
    """A coordinator that is given the partition, whose log it has not loaded yet."""
    world = World(nursery, **config)
    world.turn.watch = measured.watch
    world.logs.elsewhere.add(0)
    await world.start()
    started_ms = world.coordinator.timers.now_ms() - age_ms
    log = log_of(world.turn, state, partitions=partitions, started_ms=started_ms)
    await world.settle()
    measured(None)
    world.logs.hold(0, log)
    return world


async def until(condition):
    with trio.fail_after(3600):
        while not condition():
            await trio.sleep(0.05)


def ids(world):
    return world.coordinator.statistics()["transactional_ids"]


async def test_decided_ones_are_loaded(nursery, measured, autojump_clock):
    world = await held(nursery, measured, S.PREPARE_COMMIT)
    await until(lambda: ids(world) == IDS)
    await until(lambda: len(world.log.batches) >= 2 * IDS // BATCH_RECORDS)
    await until(lambda: not world.coordinator.statistics()["pending_bytes"])
    measured("markers of all")
    error, txns = world.coordinator.list_transactions()
    assert not error
    assert {txn.state for txn in txns} == {S.COMPLETE_COMMIT}
    assert len(world.partitions.written) == 2 * IDS


async def test_open_ones_that_took_too_long(nursery, measured, autojump_clock):
    """All at the same time: when they are loaded, and while they are here."""
    world = await held(nursery, measured, S.ONGOING, age_ms=59_000)
    await until(lambda: ids(world) == IDS)
    measured("open ones are loaded")
    await trio.sleep(2)
    await until(lambda: not world.coordinator.statistics()["pending_bytes"])
    measured("all take too long")
    states = {txn.state for txn in world.coordinator.list_transactions()[1]}
    assert states == {S.COMPLETE_ABORT}


async def test_a_leader_that_is_away_comes_back(nursery, measured, autojump_clock):
    world = await held(nursery, measured, S.PREPARE_ABORT)
    world.leaders = {("t", 0): None, ("u", 1): None}
    await until(lambda: world.coordinator.statistics()["markers_parked"] == IDS)
    measured("no leader")
    await trio.sleep(5)
    measured("and not yet")
    world.leaders = {}
    world.coordinator.markers.wake()
    await world.settle()  # no time passes: nobody waits for its own
    assert len(world.partitions.written) == 2 * IDS
    measured("there is one")


async def test_all_topics_are_deleted(nursery, measured, autojump_clock):
    world = await held(nursery, measured, S.PREPARE_COMMIT, partitions=(("gone", 0), ("u", 1)))
    await until(lambda: len(world.log.batches) >= 2 * IDS // BATCH_RECORDS)
    measured("a topic is gone")
    assert len(world.partitions.written) == IDS


async def test_all_expire(nursery, measured, autojump_clock):
    world = await held(
        nursery, measured, S.COMPLETE_COMMIT, partitions=(), transactional_id_expiration_ms=10_000
    )
    await until(lambda: ids(world) == IDS)
    measured("ids are loaded")
    await trio.sleep(11)
    await world.coordinator.expire()
    await until(lambda: not world.coordinator.statistics()["pending_bytes"])
    measured("ids expire")
    assert ids(world) == 0


@pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_COMMIT])
async def test_the_partition_is_lost(nursery, measured, autojump_clock, state):
    world = await held(nursery, measured, state)
    world.partitions.is_mute = True
    await until(lambda: ids(world) == IDS)
    await world.settle()
    measured(None)
    world.logs.elsewhere.add(0)
    world.log.go_offline()
    await world.settle()
    measured("lost")
    assert world.coordinator.describe("transactional-id-000000")[0] is E.NOT_COORDINATOR
    await trio.sleep(100)
    measured("and its timers come up")
    world.partitions.break_off()
    measured(None)


async def test_memory_of_an_id(nursery, measured, autojump_clock):
    """What is kept of each, with its name: bounded by what transactional.id.expiration.ms lets
    be."""
    world = await held(nursery, measured, S.COMPLETE_COMMIT, partitions=())
    tracemalloc.start()
    await until(lambda: ids(world) == IDS)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    measured(None)
    print(f"{taken / IDS:.0f} bytes an id")
    assert taken / IDS < 1_000


async def test_markers_of_one_turn_leave_in_several(nursery, measured, autojump_clock):
    """Acknowledgements of many batches may come in one burst."""
    world = await held(nursery, measured, S.COMPLETE_COMMIT, partitions=())
    spent, taken = [], world.partitions.take

    def take(*request):
        spent.append(world.turn.spent_units)
        taken(*request)

    world.partitions.take = take
    done = []
    for number in range(1_000):
        markers = Markers(1, number, 0, True, 2, frozenset({("t", 0), ("u", 1)}))
        world.coordinator.markers.send(MarkerJob(markers, 7, done.append, lambda: True))
    await world.settle()
    assert len(done) == 1_000
    assert len(spent) == 1_000 * 2 / PARTITIONS_PER_REQUEST
    assert max(spent) <= SPENT_UNITS + PARTITION_UNITS * PARTITIONS_PER_REQUEST
    measured("markers of one turn")
