"""How the steps of a pass share the loop."""

import itertools

import pytest
import trio

from broker.log.compact.pace import (
    BUSY_UNITS_PER_PAUSE,
    INLINE_BYTES_MAX,
    PAUSE_SECONDS,
    UNITS_PER_LONG_SLICE,
    UNITS_PER_SLICE,
    Pace,
)
from broker.log.compact.steps import Work

#: 150 records are 0.3 ms (pace.py).
UNIT_SECONDS = 0.002 / 1000


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


async def ends_of_slices(world, units):
    """After how many units each slice ended, behind a first turn of everybody else."""
    ends, done = [], 0
    pace = Pace(world, lambda: ends.append(done))
    await pace.give_way()
    ends.clear()
    while done < units:
        await pace.step(1)
        done += 1
    return ends


async def test_slices_behind_long_turns_are_longer(autojump_clock):
    for took, size in ((0.0009, UNITS_PER_SLICE), (0.0011, UNITS_PER_LONG_SLICE)):
        world = World()
        world.clock.monotonic = itertools.cycle((0.0, took)).__next__
        # The unit that is beyond a slice is the next one's first.
        assert await ends_of_slices(world, 601) == list(range(size, 601, size))


async def test_a_short_turn_makes_slices_short_again(autojump_clock):
    world = World()
    world.clock.monotonic = itertools.chain((0.0, 0.01), itertools.repeat(0.0)).__next__
    first = UNITS_PER_LONG_SLICE
    # A whole short one, without the unit that ended the long one.
    assert await ends_of_slices(world, 251) == [first, first + UNITS_PER_SLICE + 1]


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


@pytest.mark.parametrize(
    ("took", "size"), [(0.0006, UNITS_PER_SLICE), (0.01, UNITS_PER_LONG_SLICE)]
)
async def test_a_busy_loop_gets_a_pause(autojump_clock, took, size):
    world = World()
    pace = Pace(world, lambda: None)
    before = trio.current_time()
    await pace.give_way()
    assert trio.current_time() == before
    # What it reads before and after each turn of everybody else.
    world.clock.monotonic = itertools.cycle((0.0, took)).__next__
    await pace.give_way()  # behind the first, a short slice
    for _ in range(-(-(BUSY_UNITS_PER_PAUSE - UNITS_PER_SLICE) // size) - 1):
        await pace.give_way()
    assert trio.current_time() == before
    await pace.give_way()
    assert trio.current_time() - before >= PAUSE_SECONDS - 1e-9
    # And the count begins anew.
    before = trio.current_time()
    for _ in range(BUSY_UNITS_PER_PAUSE // size - 1):
        await pace.give_way()
    assert trio.current_time() == before


@pytest.mark.parametrize("took", [0.0003, 0.0006, 0.0009, 0.0011, 0.003])
async def test_a_pass_waits_no_longer_than_its_slices_took(autojump_clock, took):
    world, units = World(), 60_000
    world.clock.monotonic = itertools.cycle((0.0, took)).__next__
    began = trio.current_time()
    pace = Pace(world, lambda: None)
    for _ in range(units):
        await pace.step(1)
    waited, worked = trio.current_time() - began, units * UNIT_SECONDS
    assert waited <= 1.5 * worked
    assert (waited >= 0.9 * worked) == (took > 0.0005)


async def test_it_ends_when_it_is_to():
    asked = []

    def check():
        asked.append(1)
        raise KeyError

    pace = Pace(World(), check)
    with pytest.raises(KeyError):
        await pace.drive(steps([UNITS_PER_SLICE, 1]))
    assert asked
