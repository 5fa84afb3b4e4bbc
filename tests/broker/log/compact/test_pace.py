"""How the steps of a pass share the loop."""

import itertools

import pytest
import trio

from broker.log.compact.pace import (
    BUSY_TURNS_PER_PAUSE,
    INLINE_BYTES_MAX,
    LAST_TURNS,
    PAUSE_SECONDS,
    UNITS_PER_SLICE,
    UNITS_PER_SLICE_MAX,
    Pace,
)
from broker.log.compact.steps import Work


class Clock:
    """Moves only when somebody works."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class World:
    def __init__(self):
        self.clock = Clock()
        self.disk = self
        self.jobs = 0

    async def run(self, function):
        self.jobs += 1
        await trio.lowlevel.checkpoint()
        return function()


def steps(units):
    yield from units
    return "done"


async def turns_during(nursery, work):
    """How often others had the loop meanwhile."""
    count = 0

    async def other():
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    async with trio.open_nursery() as inner:
        inner.start_soon(other)
        await trio.lowlevel.checkpoint()
        count = 0
        await work()
        found = count
        inner.cancel_scope.cancel()
    return found


async def test_slices(nursery):
    pace = Pace(World(), lambda: None)

    async def work():
        assert await pace.drive(steps([25] * 240)) == "done"

    turns = await turns_during(nursery, work)
    assert 6000 // UNITS_PER_SLICE - 2 <= turns <= 6000 // UNITS_PER_SLICE + 2


async def test_many_small_batches_are_slices_too(nursery):
    pace = Pace(World(), lambda: None)

    async def work():
        for _ in range(1000):
            await pace.drive(steps([1]))

    assert await turns_during(nursery, work) >= 1000 * 5 // UNITS_PER_SLICE


async def test_large_work_is_a_threads(nursery):
    world = World()
    pace = Pace(world, lambda: None)

    def both():
        small = yield Work(INLINE_BYTES_MAX, lambda: b"small")
        large = yield Work(INLINE_BYTES_MAX + 1, lambda: b"large")
        return small + large

    assert await pace.drive(both()) == b"smalllarge"
    assert world.jobs == 1


async def test_a_busy_loop_gets_a_pause(autojump_clock):
    world = World()
    pace = Pace(world, lambda: None)
    before = trio.current_time()
    await pace.give_way()
    assert trio.current_time() == before
    # What it reads before and after each turn of everybody else.
    world.clock.monotonic = itertools.cycle((0.0, 0.01)).__next__
    for _ in range(BUSY_TURNS_PER_PAUSE - 1):
        await pace.give_way()
    assert trio.current_time() == before
    await pace.give_way()
    assert trio.current_time() - before >= PAUSE_SECONDS - 1e-9
    # And the count begins anew.
    before = trio.current_time()
    await pace.give_way()
    assert trio.current_time() == before


async def test_a_slice_is_longer_while_turns_of_others_are_long(autojump_clock):
    """Or a broker that is busy without a pause would never get through a pass."""
    world = World()
    pace = Pace(world, lambda: None)
    looks = []

    async def slices_of(seconds_of_others, turns=LAST_TURNS):
        """Records between two turns of the others."""
        world.clock.monotonic = itertools.cycle((0.0, seconds_of_others)).__next__
        for _ in range(turns):
            await pace.give_way()
        looks.clear()
        world.clock.monotonic = lambda: looks.append(done) or 0.0
        done = 0
        while not looks:
            await pace.step(1)
            done += 1
        return looks[0]

    assert await slices_of(0.0) == pytest.approx(UNITS_PER_SLICE, abs=1)
    assert await slices_of(0.0009) == pytest.approx(UNITS_PER_SLICE, abs=1)
    assert await slices_of(0.004) == pytest.approx(500, abs=1)  # 1 ms
    assert await slices_of(1.0) == pytest.approx(UNITS_PER_SLICE_MAX, abs=1)
    assert await slices_of(0.0, 1) == pytest.approx(UNITS_PER_SLICE, abs=1)
    assert await slices_of(1.0, LAST_TURNS - 1) == pytest.approx(UNITS_PER_SLICE, abs=1)
    assert await slices_of(0.0) == pytest.approx(UNITS_PER_SLICE, abs=1)


async def test_it_ends_when_it_is_to():
    asked = []

    def check():
        asked.append(1)
        raise KeyError

    pace = Pace(World(), check)
    with pytest.raises(KeyError):
        await pace.drive(steps([UNITS_PER_SLICE, 1]))
    assert asked
