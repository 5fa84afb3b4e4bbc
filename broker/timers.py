"""Timers: many deadlines, one task.

`at(delay, function)` costs a heap push; no task, no cancel scope. The functions are short plain
`def`s and run on the loop's thread, in order of their deadlines.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer:
    """One deadline; `cancel` makes it do nothing. A cancelled timer leaves the heap when due."""

    __slots__ = ("deadline", "function")

    def __init__(self, deadline: float, function: Callable[[], None]) -> None:
        self.deadline = deadline
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        self.function = None


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._wake = trio.Event()

    def after(self, delay_seconds: float, function: Callable[[], None]) -> Timer:
        deadline = trio.current_time() + delay_seconds
        timer = Timer(deadline, function)
        if not self._heap or deadline < self._heap[0][0]:
            self._wake.set()
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        return timer

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
            while heap and heap[0][0] <= now:
                timer = heapq.heappop(heap)[2]
                if timer.function is not None:
                    function, timer.function = timer.function, None
                    function()
