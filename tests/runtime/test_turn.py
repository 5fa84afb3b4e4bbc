"""The order of what is put off to the end of a burst."""

import trio
import trio.testing

from runtime.turn import Turn


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
