"""One contract for every Clock: the operating system's and the simulated one."""

import time

import pytest
import trio

from runtime.env import RealClock
from runtime.sim_clock import SimClock


@pytest.mark.parametrize("clock", [RealClock(), SimClock(), SimClock(offset_ms=-3_600_000)])
async def test_both_clocks_go_on_with_time(clock):
    wall, monotonic = clock.time_ms(), clock.monotonic()
    assert isinstance(wall, int)
    assert wall > 1_700_000_000_000
    last = monotonic
    for _ in range(20):
        await trio.sleep(0.005)
        now = clock.monotonic()
        assert now >= last
        last = now
    assert 0.1 <= last - monotonic < 5
    assert 95 <= clock.time_ms() - wall < 5_000


async def test_a_skewed_clock_steps_back_and_its_monotonic_one_does_not(autojump_clock):
    clock = SimClock()
    await trio.sleep(10)
    wall, monotonic = clock.time_ms(), clock.monotonic()
    clock.offset_ms = -5_000
    assert clock.time_ms() == wall - 5_000
    assert clock.monotonic() == monotonic
    start = time.monotonic()
    await trio.sleep(3600)
    assert clock.time_ms() == wall - 5_000 + 3_600_000
    assert time.monotonic() - start < 60
