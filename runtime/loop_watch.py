"""LoopWatch: how long each turn of the loop took, and a warning with the name of who held it.

A turn is a stretch in which nobody else ran: one step of a task, or one burst of input with all
that was deferred to its end (runtime/poller.py). A server whose turns are short answers everybody.

Whoever does one of several things in a burst says so after each (`did`); a long turn is told with
the longest of them, by the API's or the function's name, else with its task's name. Reading the
clock costs some 50 ns: once per request and per deferred function, never per record or entry.

Turns are measured by the wall clock, as clients wait by it. On a busy machine others may have had
the processor meanwhile; so of a long turn it is said, too, how much of it this thread had at most:
since the pass of the loop that the turn was in began, or the last long turn ended. That clock costs
1 us, and is read once in a pass.

A process tells the number of its turns of each length when it stops, and whenever a turn above
LIMIT_SECONDS is in a longer bucket than all before it. So one that is killed has told its longest.
What it did before it served (`begin_serving`) held nobody up, and is not among them.

One for each trio run (`watch_of_run`), on while a Poller runs there, so in every process of ours.
Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
import math
import os
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

import trio

from runtime.histogram import BOUNDS_SECONDS, LatencyHistogram
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: Turns above this are warned of.
WARN_SECONDS = 0.05
#: One warning within that time; the next says how many were not told.
WARN_INTERVAL_SECONDS = 1.0
#: What input may cause. A process whose turns are shorter tells of them when it stops only.
LIMIT_SECONDS = 0.005


class LoopWatch(trio.abc.Instrument):
    __slots__ = (
        "_began", "_cpu_began", "_is_serving", "_last", "_longest", "_longest_what", "_starts",
        "_tell_above", "_untold", "_warn_from", "clock", "cpu_clock", "histogram",
        "longest_by_name", "own_histogram",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clock()`: seconds. A test on a busy machine gives `time.thread_time`. `cpu_clock()`:
        those in which this thread ran."""
        self.clock = clock
        self.cpu_clock = cpu_clock
        self._cpu_began = 0.0
        self.histogram = LatencyHistogram()
        #: Of turns above LIMIT_SECONDS: what this thread had of the processor.
        self.own_histogram = LatencyHistogram()
        #: name -> seconds of the longest turn in which that took longest; None: not wanted.
        self.longest_by_name: dict[str, float] | None = None
        self._starts = 0
        self._began = 0.0
        self._last = 0.0
        self._longest = 0.0
        self._longest_what: object = None
        self._warn_from = 0.0
        self._untold = 0
        self._tell_above = math.inf
        self._is_serving = False

    def start(self) -> None:
        """Watches the present trio run's tasks, until as many `stop`s as `start`s were called; the
        last tells what was seen since `begin_serving`."""
        self._starts += 1
        if self._starts == 1:
            trio.lowlevel.add_instrument(self)

    def stop(self) -> None:
        self._starts -= 1
        if self._starts == 0:
            trio.lowlevel.remove_instrument(self)
            if self._is_serving:
                self._tell_turns(None)

    def leave_out(self) -> None:
        """The present step of a task is no turn that anybody waits for."""
        self._began = 0.0

    def begin_serving(self) -> None:
        """The process is set up: its turns are counted from here on."""
        self.histogram = LatencyHistogram()
        self.own_histogram = LatencyHistogram()
        self._tell_above = LIMIT_SECONDS
        self._is_serving = True

    # -- of bursts -----------------------------------------------------------------------------

    def begin(self) -> None:
        """A burst begins: what the task did before, waiting mostly, is not counted."""
        self._began = self._last = self.clock()
        self._longest = 0.0
        self._longest_what = "burst"

    def did(self, what: object) -> None:
        """`what` is done: a name, or a function whose name is taken if it is wanted."""
        now = self.clock()
        took = now - self._last
        self._last = now
        if took > self._longest:
            self._longest = took
            self._longest_what = what

    def end(self) -> None:
        """The burst is over."""
        took = self.clock() - self._began
        self._began = 0.0
        self._record(took, None)

    # -- of tasks (trio.abc.Instrument) ----------------------------------------------------------

    def after_io_wait(self, timeout: float) -> None:
        """A pass begins."""
        self._cpu_began = self.cpu_clock()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = self._last = self.clock()
        self._longest = 0.0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began:  # else bursts were its work, and are counted
            self._record(self.clock() - self._began, task)

    def _record(self, took: float, task: trio.lowlevel.Task | None) -> None:
        if took <= BOUNDS_SECONDS[0] and self.longest_by_name is None:
            # Most of them; `record` would find the same bucket.
            histogram = self.histogram
            histogram.counts[0] += 1
            histogram.count += 1
            histogram.sum_seconds += took
            return
        self.histogram.record(took)
        own = took
        if took > LIMIT_SECONDS:
            now = self.cpu_clock()
            own = min(took, now - self._cpu_began)
            self._cpu_began = now
            self.own_histogram.record(own)
        if took > self._tell_above:
            index = bisect_left(BOUNDS_SECONDS, took)
            self._tell_above = (*BOUNDS_SECONDS, math.inf)[index]
            self._tell_turns(self._name(took, task))
        if took > WARN_SECONDS or self.longest_by_name is not None:
            self._told(took, own, self._name(took, task))

    def _name(self, took: float, task: trio.lowlevel.Task | None) -> str:
        """Of what took at least half of the turn, if that was said, else of the task."""
        if task is None or self._longest > took / 2:
            return _name_of(self._longest_what)
        return str(task.name)

    def _told(self, took: float, own: float, name: str) -> None:
        longest = self.longest_by_name
        if longest is not None and took > longest.get(name, 0.0):
            longest[name] = took
        if took <= WARN_SECONDS:
            return
        now = time.monotonic()
        if now < self._warn_from:
            self._untold += 1
            return
        self._warn_from = now + WARN_INTERVAL_SECONDS
        untold, self._untold = self._untold, 0
        logger.warning(
            "loop_held",
            kv(
                by=name,
                milliseconds=round(took * 1000),
                cpu_milliseconds=round(own * 1000),
                untold=untold,
            ),
        )

    def _tell_turns(self, by: str | None) -> None:
        """Of all since it serves, by bucket; `by` had the longest so far, which came just now."""
        histogram = self.histogram
        turns = {
            bound * 1000: count
            for bound, count in zip((*BOUNDS_SECONDS, math.inf), histogram.counts, strict=True)
            if count
        }
        logger.info(
            "loop_turns",
            kv(
                pid=os.getpid(),
                longest_milliseconds=round(histogram.max_seconds * 1000, 1),
                by=by,
                # Of each bucket that has any: its upper bound in milliseconds, the number of turns.
                turns=",".join(f"{bound:g}:{count}" for bound, count in turns.items()),
            ),
        )


def _name_of(what: object) -> str:
    if isinstance(what, str):
        return what
    what = getattr(what, "func", what)  # of a partial
    return str(getattr(what, "__qualname__", what))


_watch_of_run: trio.lowlevel.RunVar[LoopWatch] = trio.lowlevel.RunVar("loop_watch")


def watch_of_run() -> LoopWatch:
    """The one of the present trio run."""
    try:
        return _watch_of_run.get()
    except LookupError:
        watch = LoopWatch()
        _watch_of_run.set(watch)
        return watch
