"""The token bucket of the cleaner: the mean, bursts, and a limit that changes."""

import pytest
import trio
from hypothesis import given, settings, strategies
from trio.testing import MockClock

from broker.log.compact.throttle import BURST_SECONDS, Throttle


def run(function):
    return trio.run(function, clock=MockClock(autojump_threshold=0))


@given(
    sizes=strategies.lists(strategies.floats(0, 3), min_size=1, max_size=20),
    limit=strategies.sampled_from([1_000.0, 1e6, 33_554_432.0]),
)
@settings(deadline=None)
def test_the_mean_is_the_limit(sizes, limit):
    """Never more than the limit and one burst; and no slower than that."""

    async def main():
        throttle = Throttle(lambda: limit, trio.current_time)
        start = trio.current_time()
        taken = 0
        for size in [int(seconds * limit) for seconds in sizes]:
            await throttle.take(size)
            taken += size
            seconds = trio.current_time() - start
            assert taken <= (seconds + BURST_SECONDS) * limit * (1 + 1e-6) + 1
        assert trio.current_time() - start <= taken / limit + 0.002 * len(sizes)

    run(main)


def test_throttle_obeyed_and_dynamic():
    """Who waits is held up by the limit, and freed by a higher one."""

    async def main():
        limit = [1.0]
        throttle = Throttle(lambda: limit[0], trio.current_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(throttle.take, 10_000)
            await trio.sleep(5_000)
            assert nursery.child_tasks
            limit[0] = 1e9
            with trio.fail_after(1):
                while nursery.child_tasks:
                    await trio.sleep(0.01)

    run(main)


def test_a_pause_earns_one_burst_only():
    async def main():
        throttle = Throttle(lambda: 1000.0, trio.current_time)
        await trio.sleep(50_000)
        start = trio.current_time()
        await throttle.take(int(1000 * BURST_SECONDS))
        assert trio.current_time() == start
        await throttle.take(1000)
        assert trio.current_time() - start == pytest.approx(1.0, abs=0.01)

    run(main)
