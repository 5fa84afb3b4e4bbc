"""Timers: order, cancellation, and that cancelled ones do not pile up."""

import random

import pytest
import trio
import trio.testing

from runtime.timers import CANCELLED_KEPT_MAX, Timers


@pytest.fixture
async def timers(nursery):
    timers = Timers()
    await nursery.start(timers.run)
    return timers


async def test_in_order_of_deadlines(timers, autojump_clock):
    called = []
    for delay in (0.3, 0.1, 0.2, 0.1, -1, 0):
        timers.after(delay, lambda delay=delay: called.append(delay))
    await trio.sleep(1)
    assert called == [-1, 0, 0.1, 0.1, 0.2, 0.3]
    assert len(timers) == 0


async def test_at_the_right_time(timers, autojump_clock):
    times = []
    begin = trio.current_time()
    for delay in (5, 1, 3):
        timers.after(delay, lambda: times.append(trio.current_time() - begin))
    await trio.sleep(2)
    timers.after(0.5, lambda: times.append(trio.current_time() - begin))
    await trio.sleep(8)
    assert times == pytest.approx([1, 2.5, 3, 5])


async def test_an_earlier_one_wakes_the_sleeper(timers, autojump_clock):
    called = []
    timers.after(1000, lambda: called.append("late"))
    await trio.testing.wait_all_tasks_blocked()
    timers.after(1, lambda: called.append("soon"))
    await trio.sleep(2)
    assert called == ["soon"]


async def test_cancelled_ones_are_not_called(timers, autojump_clock):
    called = []
    kept = [timers.after(1, lambda n=n: called.append(n)) for n in range(10)]
    for timer in kept[::2]:
        timer.cancel()
        timer.cancel()
    await trio.sleep(2)
    assert called == [1, 3, 5, 7, 9]
    for timer in kept:
        timer.cancel()
    assert len(timers) == 0


async def test_a_function_may_set_and_cancel_timers(timers, autojump_clock):
    called = []

    def first():
        called.append("first")
        second.cancel()
        timers.after(0, lambda: called.append("third"))

    timers.after(1, first)
    second = timers.after(1, lambda: called.append("second"))
    await trio.sleep(2)
    assert called == ["first", "third"]


async def test_cancelled_ones_do_not_pile_up(timers, autojump_clock):
    called = []
    stays = [timers.after(1_000_000, lambda: None) for _ in range(10)]
    for _ in range(10_000):
        timers.after(1_000_000, lambda: called.append("never")).cancel()
        assert len(timers) <= 10 + CANCELLED_KEPT_MAX + 2
    timers.after(1, lambda: called.append("soon"))
    await trio.sleep(2)
    assert called == ["soon"]
    assert all(timer.function is not None for timer in stays)


async def test_random_histories(timers, autojump_clock):
    """What is called is exactly what was not cancelled before its time, in order."""
    rng = random.Random(5)
    called, expected, alive = [], {}, {}
    for number in range(500):
        deadline = trio.current_time() + rng.uniform(0, 50)
        alive[number] = timers.after(
            deadline - trio.current_time(), lambda number=number: called.append(number)
        )
        expected[number] = deadline
        if rng.random() < 0.6:
            victim = rng.choice(list(alive))
            if victim not in called:
                expected.pop(victim, None)
            alive.pop(victim).cancel()
        if rng.random() < 0.1:
            await trio.sleep(rng.uniform(0, 5))
    await trio.sleep(100)
    assert called == sorted(expected, key=expected.get)
    assert len(timers) == 0
