"""Timers: many deadlines, one task.

`after(delay, function)` costs a heap push; no task, no cancel scope. The functions are short plain
`def`s and run on the loop's thread, in order of their deadlines.

A cancelled timer stays in the heap until it is due, or until cancelled ones are the greater part:
then they are all dropped, so that fetches which might have waited for days leave nothing behind.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

import trio

from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

#: Fewer cancelled timers than this are not worth dropping.
CANCELLED_KEPT_MAX = 64
#: So many are called before others have the loop: some take 20 microseconds.
CALLED_PER_TURN = 100


class Timer:
    """One deadline; `cancel` makes it do nothing."""

    __slots__ = ("_timers", "deadline", "function")

    def __init__(self, timers: Timers, deadline: float, function: Callable[[], None]) -> None:
        self._timers = timers
        self.deadline = deadline
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        if self.function is not None:
            self.function = None
            self._timers.cancelled()


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._cancelled_count = 0
        self._order = count()
        self._wake = trio.Event()

    def __len__(self) -> int:
        """Timers in memory, cancelled ones that were not dropped yet included."""
        return len(self._heap)

    def after(self, delay_seconds: float, function: Callable[[], None]) -> Timer:
        deadline = trio.current_time() + delay_seconds
        timer = Timer(self, deadline, function)
        if not self._heap or deadline < self._heap[0][0]:
            self._wake.set()
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        return timer

    def cancelled(self) -> None:
        """A timer of ours was cancelled before it was called."""
        self._cancelled_count += 1
        if self._cancelled_count > max(CANCELLED_KEPT_MAX, len(self._heap) // 2):
            # In place: `run` holds the list.
            self._heap[:] = [item for item in self._heap if item[2].function is not None]
            heapq.heapify(self._heap)
            self._cancelled_count = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Calls what is due, until cancelled."""
        task_status.started()
        heap = self._heap
        while True:
            self._wake = trio.Event()
            deadline = heap[0][0] if heap else trio.current_time() + 3600
            with trio.move_on_at(deadline):
                await self._wake.wait()
            now = trio.current_time()
            slices = Slices(CALLED_PER_TURN)
            while heap and heap[0][0] <= now:
                timer = heapq.heappop(heap)[2]
                if timer.function is None:
                    self._cancelled_count -= 1
                else:
                    function, timer.function = timer.function, None
                    function()
                    if slices.due():
                        await slices.turn()
