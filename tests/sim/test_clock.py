"""The virtual clock: when time passes, in which order things are due, and what cannot go on."""

import pytest
import trio

from sim.clock import StuckError, VirtualClock, VirtualTimers


def run(main):
    """`await main(timers)` under a virtual clock, with its timers; the time when it ended."""
    timers = VirtualTimers()
    clock = VirtualClock(timers)

    async def whole():
        async with trio.open_nursery() as nursery:
            await nursery.start(timers.run)
            await main(timers)
            nursery.cancel_scope.cancel()

    trio.run(whole, clock=clock, instruments=[clock])
    return clock.current_time()


def test_time_passes_only_when_nothing_can_run():
    told = []

    async def main(timers):
        timers.after(2.0, lambda: told.append(trio.current_time()))
        timers.after(1000.0, lambda: told.append("never"))
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert trio.current_time() == 0
        await trio.sleep(5)
        with trio.move_on_after(3):
            await trio.sleep_forever()

    assert run(main) == 8
    assert told == [2.0]


def test_what_is_due_is_called_in_order():
    told = []

    async def main(timers):
        timers.after(2.0, lambda: told.append("b"))
        timers.after(1.0, lambda: timers.after(0, lambda: told.append("a, then")))
        timers.after(1.0, lambda: told.append("a"))
        timers.after(1.5, lambda: told.append("cancelled")).cancel()
        await timers.sleep(2.0)
        told.append("c")

    assert run(main) == 2
    assert told == ["a", "a, then", "b", "c"]


def test_a_sleep_can_be_cancelled():
    async def main(timers):
        with trio.move_on_after(1) as scope:
            await timers.sleep(60)
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await timers.sleep(0)
        assert scope.cancelled_caught
        await timers.sleep(1)

    assert run(main) == 2


def test_an_error_is_the_timers():
    def fail():
        raise AssertionError("a broken invariant")

    async def main(timers):
        timers.after(1, fail)
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert caught.group_contains(AssertionError, match="a broken invariant")


def test_who_waits_for_ever_is_named():
    async def wait_for_nobody():
        await trio.Event().wait()

    async def main(timers):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_nobody)

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert caught.group_contains(StuckError, match="wait_for_nobody")
