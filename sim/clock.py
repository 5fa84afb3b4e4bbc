"""The virtual clock of a run: time passes only when nothing can run.

trio's own MockClock spends a pass of the loop on each jump, and a task with a cancel scope on each
wake of the world's timers; a run is made of tens of thousands of both. Here the loop's question
how long it may sleep *is* the jump, and due timers are called by the loop itself, before the tasks
of that pass. `trio.run` is given the clock twice: as its clock, and as an instrument.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from runtime.timers import Timer, Timers

if TYPE_CHECKING:
    from collections.abc import Callable

#: So often there may be nothing to wait for.
IDLE_MAX = 100


class StuckError(Exception):
    """All tasks wait, for nothing that will ever come; says where."""


class VirtualTimers(Timers):
    """The world's timers; a VirtualClock calls what is due. The functions run in no task."""

    def __init__(self) -> None:
        super().__init__()
        self._failure: BaseException | None = None
        self._failed = trio.Event()
        self._sleeping: dict[Timer, None] = {}

    @property
    def next_deadline(self) -> float:
        return self._heap[0][0] if self._heap and self._failure is None else inf

    def after(self, delay_seconds: float, function: Callable[[], None]) -> Timer:
        deadline = trio.current_time() + delay_seconds
        timer = Timer(self, deadline, function)
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        return timer

    def call_due(self, now: float) -> None:
        """Calls what is due at `now`. An error ends the timers, and is raised by `run`: the loop
        that calls this would take it for one of its own."""
        heap = self._heap
        try:
            while self._failure is None and heap and heap[0][0] <= now:
                timer = heapq.heappop(heap)[2]
                if timer.function is None:
                    self._cancelled_count -= 1
                else:
                    function, timer.function = timer.function, None
                    function()
        except BaseException as error:  # whatever it is, it belongs to the task of these timers
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Ends the timers: `run` raises it."""
        self._failure = error
        self._failed.set()

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    async def sleep(self, seconds: float) -> None:
        """As trio.sleep, of which a run makes ten thousand: without a cancel scope for each."""
        if seconds <= 0:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        timer = self.after(seconds, lambda: trio.lowlevel.reschedule(task))
        self._sleeping[timer] = None

        def abort(_raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            timer.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            del self._sleeping[timer]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Raises what a timer's function raised."""
        task_status.started()
        try:
            await self._failed.wait()
        finally:
            # Else the world's last timers would come after its end. Who sleeps in a shield (a call
            # of the disk) still has to be woken.
            self._heap[:] = [entry for entry in self._heap if entry[2] in self._sleeping]
            heapq.heapify(self._heap)
        assert self._failure is not None
        raise self._failure


class VirtualClock(trio.abc.Clock, trio.abc.Instrument):
    def __init__(self, timers: VirtualTimers) -> None:
        self._timers = timers
        self._now = 0.0
        self._idle_count = 0

    def start_clock(self) -> None:
        """The loop begins; the clock began with the world."""

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """trio asks when nothing can run: it is `deadline` now, or a timer's. If there is neither,
        again and again, the timers fail with a StuckError, which ends the world in order."""
        deadline = min(deadline, self._timers.next_deadline)
        if deadline < inf:
            self._now = max(self._now, deadline)
        else:
            # At its end trio wakes a task of its own through a socket.
            self._idle_count += 1
            if self._idle_count > IDLE_MAX:
                waiting: list[str] = []
                _waiting(trio.lowlevel.current_root_task(), waiting)
                error = StuckError(f"all wait, for ever: {'; '.join(waiting)}")
                if self._timers.has_failed:
                    raise error
                self._timers.fail(error)
                self._idle_count = 0
        return 0

    def before_io_wait(self, timeout: float) -> None:
        """Once in each pass of the loop."""
        if self._timers.next_deadline <= self._now:
            self._timers.call_due(self._now)


def _waiting(task: trio.lowlevel.Task | None, found: list[str]) -> None:
    """Where the tasks below this one wait that have none below them."""
    if task is None:
        return
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    for child in sorted(children, key=lambda child: child.name):
        _waiting(child, found)
    if not children:
        place: Any = task.coro
        names = []
        while place is not None and getattr(place, "cr_frame", None) is not None:
            names.append(f"{place.cr_code.co_qualname}:{place.cr_frame.f_lineno}")
            place = place.cr_await
        found.append(" < ".join(reversed(names)))
