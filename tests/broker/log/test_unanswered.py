"""Batches that nobody answers are told of, with what they wait for."""

import pytest
import trio

from broker.log.append.queue import CallbackAppend
from broker.log.unanswered import LINES_MAX, LOOK_SECONDS, TOLD_SECONDS, UnansweredWatch
from runtime.logs import kv


class Waiting:
    """A partition, as far as the watch looks at it."""

    name = "t-0"

    def __init__(self, append, what):
        self.waiting = append, what

    def oldest_unanswered(self):
        return self.waiting


def batch():
    return CallbackAppend(memoryview(b""), lambda _: None)


def told(caplog):
    return [record.message for record in caplog.records if "unanswered" in record.message] or [
        str(record.args) for record in caplog.records if record.msg == "batches_unanswered"
    ]


@pytest.fixture
async def watched(nursery, autojump_clock):
    log = Waiting(batch(), "acks of bookies")
    nursery.start_soon(UnansweredWatch(lambda: [log]).run)
    return log


async def test_one_that_waits_is_told_of_more_and_more_rarely(autojump_clock, watched, caplog):
    await trio.sleep(LOOK_SECONDS + TOLD_SECONDS - 1)
    assert not told(caplog)
    await trio.sleep(2)
    assert len(told(caplog)) == 1
    await trio.sleep(60)
    assert 2 <= len(told(caplog)) <= 4


async def test_one_that_is_always_another_is_not(autojump_clock, watched, caplog):
    for _ in range(60):
        await trio.sleep(1)
        watched.waiting = batch(), "acks of bookies"
    assert not told(caplog)


async def test_nothing_is_not(autojump_clock, watched, caplog):
    await trio.sleep(2 * LOOK_SECONDS)
    watched.waiting = None
    await trio.sleep(1.5 * LOOK_SECONDS)
    watched.waiting = batch(), "a ledger"
    await trio.sleep(1.5 * LOOK_SECONDS)
    assert not told(caplog)


async def test_of_very_many_some_are_named_and_all_are_counted(autojump_clock, nursery, caplog):
    """A line for each of 10,000 would hold the loop, and tell nobody more."""
    logs = [Waiting(batch(), "a ledger") for _ in range(LINES_MAX + 30)]
    nursery.start_soon(UnansweredWatch(lambda: logs).run)
    await trio.sleep(LOOK_SECONDS + TOLD_SECONDS + 1)
    lines = told(caplog)
    assert len(lines) == LINES_MAX + 1
    assert caplog.records[-1].args == kv(more_partitions=30)
