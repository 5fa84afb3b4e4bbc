"""One task that wakes what a coordinator keeps at its deadlines: one heap for all of it.

What can be due arms one timer; an armed time that is not its latest is stale and dropped when it
comes up, so a group's heartbeat, which moves a deadline away, costs nothing here.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from runtime.env import Clock

#: Of those that are due at the same time, so many in one turn of the loop: of transactions, which
#: there are most of, 2 ms.
FIRED_PER_TURN = 50
#: And those that were armed for another time since, which are dropped.
DROPPED_PER_TURN = 2_000


class Timed(Protocol):
    """What can be woken: `timer_at_ms` belongs to the timers."""

    timer_at_ms: int | None

    def on_timer(self, now_ms: int, /) -> None: ...


class CoordinatorTimers:
    """Owner: the coordinator. `now_ms` is the clock of deadlines: wall-clock time as it was
    at the start plus what a monotonic clock measured since, so it never goes back."""

    __slots__ = ("_clock", "_epoch_ms", "_heap", "_sequence", "_wake")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoch_ms = clock.time_ms() - int(clock.monotonic() * 1000)
        self._heap: list[tuple[int, int, Timed]] = []
        self._sequence = 0
        self._wake = trio.Event()

    def now_ms(self) -> int:
        return self._epoch_ms + int(self._clock.monotonic() * 1000)

    def wall_ms(self) -> int:
        """For what is stored and compared across brokers: commit timestamps."""
        return self._clock.time_ms()

    def arm(self, timed: Timed, at_ms: int) -> None:
        """Calls `timed.on_timer(now_ms)` at that time or a little later, instead of at the time
        armed for before."""
        timed.timer_at_ms = at_ms
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, timed))
        if self._heap[0][2] is timed:
            self._wake.set()

    def cancel(self, timed: Timed) -> None:
        timed.timer_at_ms = None

    async def run(self) -> None:
        """Never returns. One per coordinator."""
        while True:
            self._wake = trio.Event()
            if not self._fire():
                await trio.lowlevel.checkpoint()
                continue
            if not self._heap:
                await self._wake.wait()
                continue
            # One millisecond more than the difference, which is rounded down on both sides.
            wait_ms = max(self._heap[0][0] - self.now_ms(), 0) + 1
            with trio.move_on_after(wait_ms / 1000):
                await self._wake.wait()

    def _fire(self) -> bool:
        """Whether those were all that are due."""
        now_ms = self.now_ms()
        heap = self._heap
        to_fire, to_drop = FIRED_PER_TURN, DROPPED_PER_TURN
        while heap and heap[0][0] <= now_ms:
            if not to_fire or not to_drop:
                return False
            at_ms, _, timed = heapq.heappop(heap)
            to_drop -= 1
            if timed.timer_at_ms == at_ms:
                to_fire -= 1
                timed.timer_at_ms = None
                timed.on_timer(now_ms)
        return True

    def __len__(self) -> int:
        return len(self._heap)
