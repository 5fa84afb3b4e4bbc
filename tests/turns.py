"""TurnTooLongError, and another look: a test whose only failure was a time is run once more.

A turn is measured by its thread's processor time. On a virtual machine that counts what the host
does meanwhile, too: a page that it took and fetches, or another guest on the same core, are 8 ms
every minute here and were 60 ms once; in a bad hour, every hundredth millisecond takes eight, and
the guest counts no fault and no stolen time for it. So the next look waits, for a while, until
fixed pieces of work take about as long each time. A turn that is our code's is as long then, so
what is too long twice fails. A look says nothing if the pieces were uneven before it or are after
it: then there is another, five in all, and what is too long in all of them fails. Whatever else
fails is not tried again. What is slow once in a process only, an import or a table, is not seen.
"""

import gc
import time
from contextlib import asynccontextmanager

import pytest
import trio
from _pytest.runner import runtestprotocol
from pytest_timeout import _get_item_settings

#: A test is run so often at most, while the machine makes what it says doubtful.
LOOKS = 5
#: So long is waited for a steady machine before each.
WAIT_SECONDS = 30.0
#: Pieces of work that tell, of about half a millisecond each.
PIECES = 2_000
#: Lists that every so many pieces go through again: more than a processor's cache holds.
LISTS = 300
#: What a test has failed by, in its phases.
ERRORS = pytest.StashKey[list[BaseException]]()


class TurnTooLongError(AssertionError):
    """A time was above its bound, and nothing else was wrong."""


def check_turn(seconds, bound, what=""):
    """TurnTooLongError if it took that long."""
    if not seconds < bound:
        raise TurnTooLongError(f"{what or 'a turn'}: {seconds * 1000:.1f} ms, {bound * 1000:g} may")


def about_equal(pieces):
    """Whether none of these seconds is far above the one in their middle."""
    pieces = sorted(pieces)
    return pieces[-1] < 4 * pieces[len(pieces) // 2]


def timed(pieces):
    """The seconds of processor time of each of these."""
    seconds = []
    for work in pieces:
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return seconds


def is_steady():
    """Whether nobody takes time away that is counted as this thread's: while it counts, and while
    it goes through memory that it has had for a moment and takes new."""
    held = [[(number,) for number in range(3_000)] for _ in range(LISTS)]

    def count():
        sum(number * number % 7 for number in range(6_000))

    def go_through():
        held.append([(number,) for (number,) in held.pop(0)])

    collects = gc.isenabled()
    gc.disable()  # else its own passes are what is long
    try:
        return all(about_equal(timed([work] * PIECES)) for work in (count, go_through))
    finally:
        if collects:
            gc.enable()


def wait_until_steady():
    """Whether it is, after a while at most."""
    end = time.monotonic() + WAIT_SECONDS
    while not (steady := is_steady()) and time.monotonic() < end:
        time.sleep(0.5)
    return steady


@asynccontextmanager
async def turns_of_others():
    """Gives a function: how many turns of the loop another task has had since the last call."""
    count = 0

    async def take_turns():
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    def taken():
        nonlocal count
        taken, count = count, 0
        return taken

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        await trio.lowlevel.checkpoint()
        taken()
        yield taken
        nursery.cancel_scope.cancel()


def leaves(error):
    """The errors of a group, and of groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    # Also what a `finally` that measures took the place of.
    return [error, *([] if error.__context__ is None else leaves(error.__context__))]


def pytest_runtest_makereport(item, call):
    if call.excinfo is not None:
        item.stash.setdefault(ERRORS, []).extend(leaves(call.excinfo.value))


def look_again(item, nextitem):
    """Reports of the last look, after the first that failed by a time only."""
    for _ in range(LOOKS - 1):
        print(f"\nmeasured again: {item.nodeid}: {item.stash[ERRORS][0]}")
        item.stash[ERRORS] = []
        was_steady = wait_until_steady()
        # pytest-timeout's timer is for all, and ended with the first failure.
        settings = _get_item_settings(item)
        if settings.timeout:
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not only_too_long(item) or (was_steady and is_steady()):
            break
    return reports


def only_too_long(item):
    errors = item.stash.get(ERRORS, [])
    return bool(errors) and all(isinstance(error, TurnTooLongError) for error in errors)


def pytest_runtest_protocol(item, nextitem):
    if item.get_closest_marker("turns") is None:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if only_too_long(item):
        reports = look_again(item, nextitem)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
