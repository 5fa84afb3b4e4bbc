"""Random logs against a list that remembers everything: whatever rolls, snapshots, clean stops and
crashes there were, readers of committed records see what was committed and nothing else.
"""

import random

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.log.transactions.aborted_list import AbortedCache

STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(-1, 3), st.integers(1, 3)),
    st.tuples(st.just("put"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 3), st.just(False)),
    st.tuples(st.sampled_from(["settle", "roll", "snapshot", "restart", "crash", "lose"])),
)


class History:
    """Steps on a partition and on the oracle. What is not acknowledged when the owner crashes may
    be lost: then the oracle forgets it, too."""

    def __init__(self, world, oracle_class):
        self.world = world
        self.oracle_class = oracle_class
        self.done = []  # steps that put something, with the offset behind each
        self.stable_seen = 0

    def oracle(self):
        made = self.oracle_class()
        for step, end in self.done:
            if step[0] == "put":
                made.put(step[2], step[1])
            else:
                made.mark(step[1], step[2])
            assert made.end == end
        return made

    async def run(self, steps):
        for step in steps:
            await self.step(step)
            stable = self.world.log.last_stable_offset
            assert stable >= self.stable_seen, "the last stable offset fell"
            self.stable_seen = stable

    async def step(self, step):
        world = self.world
        kind = step[0]
        if kind == "put":
            append = world.put(step[2], pid=step[1])
            self.done.append((step, append.last_offset + 1))
        elif kind == "end":
            world.end(step[1], commit=step[2])
            self.done.append((step, world.log.next_offset))
        elif kind == "settle":
            await world.settle()
        elif kind == "roll":
            await world.roll()
        elif kind == "snapshot":
            world.log.queue.push_snapshot()
        elif kind == "restart":
            await world.settle()
            await world.restart()
        else:
            await self.crash(is_acked=kind == "crash")

    async def crash(self, *, is_acked):
        world = self.world
        if is_acked:
            await world.settle()
        else:
            world.wire.freeze()
            await trio.sleep(0.1)
            self.stable_seen = max(self.stable_seen, world.log.last_stable_offset)
        acked = world.log.high_watermark
        await world.crash()
        assert world.log.high_watermark >= acked
        self.done = [each for each in self.done if each[1] <= world.log.high_watermark]
        assert not self.done or self.done[-1][1] == world.log.high_watermark

    async def check(self, rng):
        world, oracle = self.world, self.oracle()
        log = world.log
        await world.settle()
        stable = oracle.stable()
        assert log.last_stable_offset == stable
        assert log.high_watermark == log.log_end_offset == oracle.end
        for size_max in (1, 150, 1 << 20):
            assert await world.consume(0, size_max) == oracle.committed(0, stable)
        for _ in range(8):
            offset = rng.randint(0, oracle.end)
            size_max = rng.choice((1, 80, 200, 1 << 20))
            headers, aborted, end = await world.fetch(offset, size_max)
            assert all(header.last_offset < stable for header in headers)
            told = [(each.producer_id, each.first_offset) for each in aborted]
            assert told == (oracle.aborted(offset, end) if headers else [])
            wanted = oracle.committed(offset, stable)
            assert await world.consume(offset, size_max) == wanted


async def run_history(txn, steps, seed, rows_max):
    async with txn.open_world(settings=txn.LogSettings(snapshot_interval_bytes=400)) as world:
        history = History(world, txn.Everything)
        await history.run(steps)
        if rows_max is not None:
            # Hardly any index of a closed ledger stays in memory.
            world.shared.aborted = world.log.transactions.aborted._cache = AbortedCache(rows_max)
        await history.check(random.Random(seed))
        await history.crash(is_acked=True)
        await history.check(random.Random(seed + 1))


@given(
    steps=st.lists(STEPS, min_size=5, max_size=60),
    seed=st.integers(0, 1000),
    rows_max=st.sampled_from([None, 0]),
)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_histories(txn, steps, seed, rows_max):
    trio.run(run_history, txn, steps, seed, rows_max, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("how", ["crash", "restart", "lose"])
def test_partition_owner_killed_at_each_append(txn, how):
    """A transaction over three ledgers: the owner goes behind each of its appends."""
    whole = [
        ("put", 1, 2), ("put", -1, 1), ("roll",), ("put", 1, 1), ("put", 2, 1), ("snapshot",),
        ("put", 1, 1), ("end", 2, False), ("roll",), ("put", -1, 1), ("end", 1, False),
        ("put", 2, 1), ("end", 2, True),
    ]  # fmt: skip
    for position in range(1, len(whole) + 1):
        steps = [*whole[:position], (how,), *whole[position:]]
        trio.run(run_history, txn, steps, position, None, clock=MockClock(autojump_threshold=0))
