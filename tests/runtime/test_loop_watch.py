"""Who held the loop, and for how long."""

import functools
import logging
import os
import time

import trio

from runtime.loop_watch import LIMIT_SECONDS, WARN_SECONDS, LoopWatch, watch_of_run
from runtime.poller import Poller
from runtime.turn import Turn


class SteppedClock:
    """Seconds that pass only when the test says so."""

    def __init__(self):
        self.now = 1.0

    def __call__(self):
        return self.now


async def watched(clock):
    watch = watch_of_run()
    watch.clock = clock
    return watch


def warnings(caplog):
    return [record.args for record in caplog.records if record.getMessage() == "loop_held"]


async def test_a_task_that_holds_the_loop_is_told_by_its_name(caplog):
    clock = SteppedClock()
    watch = await watched(clock)
    watch.start()

    async def hog():
        await trio.lowlevel.checkpoint()
        clock.now += 0.3
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hog, name="DescribeConfigs")
    watch.stop()
    (told,) = warnings(caplog)
    assert told["by"] == "DescribeConfigs"
    assert told["milliseconds"] == 300
    assert watch.histogram.max_seconds > 0.29
    count = watch.histogram.count
    await trio.lowlevel.checkpoint()
    assert watch.histogram.count == count, "it was stopped"


async def test_a_burst_is_told_by_what_took_longest(caplog):
    clock = SteppedClock()
    watch = await watched(clock)
    turn = Turn()
    poller = Poller(turn)
    assert turn.watch is watch
    reading, writing = os.pipe()

    def flush():
        clock.now += 0.2

    def request(_mask):
        os.read(reading, 1)
        clock.now += 0.01
        turn.watch.did("Produce")
        turn.defer(functools.partial(flush))

    poller.register(reading, 1, request)
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        before = watch.histogram.count
        os.write(writing, b"x")
        while not warnings(caplog):
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    os.close(reading)
    os.close(writing)
    assert warnings(caplog)[0]["by"].endswith("flush")
    assert warnings(caplog)[0]["milliseconds"] == 210
    assert watch.histogram.count > before


async def test_the_time_in_which_the_poller_looks_for_more_is_not_counted(monkeypatch):
    clock = SteppedClock()
    watch = await watched(clock)
    poller = Poller(Turn())
    reading, writing = os.pipe()
    served = trio.Event()

    def others_run():
        clock.now += 5.0

    monkeypatch.setattr(os, "sched_yield", others_run)
    poller.register(reading, 1, lambda mask: (os.read(reading, 1), served.set()))
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        os.write(writing, b"x")
        await served.wait()
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    os.close(reading)
    os.close(writing)
    assert clock.now > 5.0
    assert watch.histogram.max_seconds < 1.0


def test_warnings_are_few_and_say_how_many_they_stand_for(caplog, monkeypatch):
    clock = SteppedClock()
    watch = LoopWatch(clock)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def held(seconds):
        watch.begin()
        clock.now += seconds
        watch.did("Fetch")
        watch.end()

    for _ in range(10):
        held(WARN_SECONDS + 0.01)
    held(WARN_SECONDS - 0.01)
    now[0] += 2
    held(WARN_SECONDS + 0.01)
    assert [told["untold"] for told in warnings(caplog)] == [0, 9]
    assert watch.histogram.count == 12
    assert logging.getLevelName(caplog.records[0].levelno) == "WARNING"


def test_the_longest_turn_of_each_name_is_kept_if_wanted():
    clock = SteppedClock()
    watch = LoopWatch(clock)
    watch.longest_by_name = {}
    for seconds, name in ((0.001, "Fetch"), (0.003, "Fetch"), (0.002, "Produce")):
        watch.begin()
        clock.now += seconds
        watch.did(name)
        watch.end()
    assert watch.longest_by_name["Fetch"] > 0.0029
    assert set(watch.longest_by_name) == {"Fetch", "Produce"}


async def test_a_process_tells_its_turns_when_one_is_in_a_longer_bucket_and_when_it_stops(caplog):
    caplog.set_level(logging.INFO)
    clock = SteppedClock()
    watch = LoopWatch(clock)
    watch.start()

    def held(seconds):
        watch.begin()
        clock.now += seconds
        watch.did("Fetch")
        watch.end()

    def told():
        return [record.args for record in caplog.records if record.getMessage() == "loop_turns"]

    held(3.0)
    assert not told()
    watch.begin_serving()
    for seconds in (LIMIT_SECONDS - 0.001, 0.007, 0.008, 0.006, 0.03, 99.0, 99.0):
        held(seconds)
    assert [line["longest_milliseconds"] for line in told()] == [7, 30, 99_000]
    assert {line["by"] for line in told()} == {"Fetch"}
    assert told()[0]["turns"] == "5:1,10:1"
    held(0.00001)
    watch.stop()
    assert told()[3:] == [
        {
            "pid": os.getpid(),
            "longest_milliseconds": 99_000,
            "by": None,
            "turns": "0.1:1,5:1,10:3,50:1,inf:2",
        }
    ]


async def test_a_warning_says_how_much_of_it_was_the_threads_own(caplog):
    """Of the pass that it was in; what came before that is not its."""
    clock, cpu = SteppedClock(), SteppedClock()
    watch = await watched(clock)
    watch.cpu_clock = cpu
    watch.start()

    async def hog(seconds, own):
        await trio.lowlevel.checkpoint()
        clock.now += seconds
        cpu.now += own
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hog, WARN_SECONDS / 2, 7.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hog, 0.3, 0.004)
    watch.stop()
    (told,) = warnings(caplog)
    assert (told["milliseconds"], told["cpu_milliseconds"]) == (300, 4)
    assert watch.own_histogram.count == 2, "the one that was not warned of is above 5 ms, too"


def test_no_turn_had_more_of_the_processor_than_it_took(caplog):
    clock, cpu = SteppedClock(), SteppedClock()
    watch = LoopWatch(clock, cpu)
    cpu.now += 9.0
    watch.begin()
    clock.now += 0.1
    watch.end()
    (told,) = warnings(caplog)
    assert (told["milliseconds"], told["cpu_milliseconds"]) == (100, 100)
    assert watch.own_histogram.max_seconds < 0.11
    watch.begin()
    clock.now += 0.007
    cpu.now += 0.001
    watch.end()
    assert watch.own_histogram.count == 2
    assert watch.own_histogram.sum_seconds < 0.11, "what was before is counted already"
    watch.begin()
    clock.now += LIMIT_SECONDS / 2
    watch.end()
    assert watch.own_histogram.count == 2
