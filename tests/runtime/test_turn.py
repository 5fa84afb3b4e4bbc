"""The order of what is put off to the end of a burst."""

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from runtime.turn import Gathered, Turn


def test_what_is_deferred_last_runs_behind_all_that_the_turn_brings():
    turn, told = Turn(), []

    def first():
        told.append("first")
        turn.defer(lambda: told.append("brought by the first"))

    turn.begin()
    turn.defer_last(lambda: (told.append("last"), turn.defer(lambda: told.append("after it"))))
    turn.defer(first)
    turn.run()
    assert told == ["first", "brought by the first", "last", "after it"]


async def test_outside_of_a_burst_what_is_deferred_last_runs_too(nursery):
    turn, done = Turn(), trio.Event()
    nursery.start_soon(turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    turn.defer_last(done.set)
    with trio.fail_after(5):
        await done.wait()


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6))
def test_what_is_gathered_runs_once_each_in_its_order(bursts):
    """As if each had been deferred alone, whatever the ones that run bring."""
    turn, alone, together = Turn(), [], []
    gathered = Gathered(turn)

    def brings(defer, told, count):
        def run():
            told.append(count)
            if count:
                defer(brings(defer, told, count - 1))

        return run

    for burst in bursts:
        turn.begin()
        for count in burst:
            gathered.defer(brings(gathered.defer, together, count))
        turn.run()
        turn.begin()
        for count in burst:
            turn.defer(brings(turn.defer, alone, count))
        turn.run()
    assert together == alone


async def test_outside_of_a_burst_what_is_gathered_runs_too(nursery):
    turn, done = Turn(), trio.Event()
    nursery.start_soon(turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    Gathered(turn).defer(done.set)
    with trio.fail_after(5):
        await done.wait()
