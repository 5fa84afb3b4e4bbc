"""Poller: one epoll for everything that this process waits for, looked at in bursts.

An epoll descriptor can itself be waited for, so trio sees a single descriptor, and one wake-up
serves all that is ready: sockets (runtime.real_net), finished syncs (runtime.real_disk). After each
burst the turn runs once (runtime.turn), for all of it.

After a burst the poller looks again a few times before it sleeps. It yields the processor between
two looks: a broker and its bookies may share the cores, and would otherwise wait for each other.
Looking is for who waits for each answer; where many are under way it is hardly worth it (`Looks`).

Owner: the event loop's thread.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

import trio

from runtime.loop_watch import watch_of_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.turn import Turn

    #: A descriptor, its events, and its handler.
    _Ready = tuple[int, int, Callable[[int], None] | None]

#: Bursts that are served before other tasks get their turn.
BURSTS_PER_WAKE_MAX = 8
#: After a burst, so many looks (about a microsecond each) before the loop goes to sleep: a client
#: with one request under way sends the next within that time, and going to sleep and waking up
#: costs it 50 us. Between two looks another process may run: without that, a broker and three
#: bookies on two cores keep each other waiting (p50 0.81 ms; with it 0.48; with no looks 0.72).
LOOKS_MAX = 100
#: A look that let another process run for so long cost more than sleeping would have: others want
#: all of the processors, and give them back to who sleeps sooner than to who stands aside. Then
#: nothing is looked at twice for a while.
LOOK_SECONDS_MAX = 0.001
REST_FROM_LOOKS_SECONDS = 0.1
#: Descriptors looked at in one burst.
EVENTS_PER_BURST_MAX = 1024


#: The fewest looks.
LOOKS_MIN = 8
#: What makes a burst a large one, in the turn's units: five requests to produce. Its clients have
#: more under way than they wait for, and while the loop sleeps, more of it comes together.
LARGE_BURST_UNITS = 150
#: After so many sleeps in a row that no look spared, all looks are tried again.
SLEEPS_UNTIL_TRIED = 16


class Looks:
    """How often to look, by what the last looks came to.

    With 32 connections what comes is there after 7 looks, or not within 100; where 50 requests of
    one client are under way, it takes 60, and each sleep would bring more of them together. Half of
    the processor's time went into looks there."""

    __slots__ = ("_burst_units", "_limit", "_sleeps")

    def __init__(self) -> None:
        self._limit = LOOKS_MAX
        self._sleeps = 0
        #: Of the largest burst lately.
        self._burst_units = 0

    def burst(self, units: int) -> None:
        """There was a burst, and this was done in it."""
        self._burst_units = max(units, self._burst_units * 3 >> 2)

    @property
    def limit(self) -> int:
        """So often it is worth looking now."""
        return LOOKS_MIN if self._burst_units >= LARGE_BURST_UNITS else self._limit

    def found(self, number: int) -> None:
        """The `number`th look found something. A limit that was spares sleeps goes slowly."""
        self._sleeps = 0
        kept = self._limit - (self._limit >> 3)
        self._limit = min(LOOKS_MAX, max(LOOKS_MIN, 2 * number, kept))

    def in_vain(self) -> None:
        """None did. Once says little: a sync took longer, a client thought."""
        self._sleeps += 1
        if self._sleeps % SLEEPS_UNTIL_TRIED == 0:
            self._limit = LOOKS_MAX
        elif self._sleeps > 1:
            self._limit = max(LOOKS_MIN, self._limit >> 1)


class Poller:
    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        # A command makes its Env before there is a run: then the watch comes with `run`.
        if trio.lowlevel.in_trio_run():
            turn.watch = watch_of_run()
        self._watch = turn.watch
        self.is_running = False
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        #: Descriptor, events and handler of those that are ready, but others come first.
        self._put_off: list[_Ready] = []
        self._at_end: list[Callable[[], None]] = []
        #: Before that time it goes to sleep at once.
        self._looks_from = 0.0
        self._looks = Looks()

    def register(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """`handler(events)` is called in every burst in which the descriptor is ready."""
        self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def modify(self, fd: int, mask: int) -> None:
        if not self._epoll.closed:
            self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> bool:
        """Before the descriptor is closed; whether it was registered."""
        if self._handlers.pop(fd, None) is None or self._epoll.closed:
            return False
        self._epoll.unregister(fd)
        return True

    def at_end(self, function: Callable[[], None]) -> None:
        """`function()` is called when `run` ends, in reverse order."""
        self._at_end.append(function)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled. Once only."""
        self.is_running = True
        self._watch = self.turn.watch = watch_of_run()
        self._watch.start()
        task_status.started()
        try:
            while True:
                if self._put_off:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                bursts = 0
                while bursts < BURSTS_PER_WAKE_MAX and (self._burst() or self._look()):
                    bursts += 1
                    if self._put_off:
                        break  # tasks come in between, too
        finally:
            self.is_running = False
            self._watch.stop()
            for function in reversed(self._at_end):
                function()
            self._epoll.close()

    def _look(self) -> bool:
        """Looks for more, and serves it, rather than sleeping; whether there was anything."""
        now = time.monotonic()
        if now < self._looks_from:
            return False
        looks = self._looks
        for number in range(1, looks.limit + 1):
            os.sched_yield()
            if self._burst():
                looks.found(number)
                return True
            before, now = now, time.monotonic()
            if now - before > LOOK_SECONDS_MAX:
                self._looks_from = now + REST_FROM_LOOKS_SECONDS
                return False
        looks.in_vain()
        return False

    def _ready(self) -> list[_Ready]:
        """What is ready now."""
        handlers = self._handlers
        events = self._epoll.poll(0, EVENTS_PER_BURST_MAX)
        return [(fd, mask, handlers.get(fd)) for fd, mask in events]

    def _serve(self, ready: list[_Ready]) -> None:
        handlers, turn = self._handlers, self.turn
        for number, (fd, mask, handler) in enumerate(ready, 1):
            # Another may have closed the descriptor, and a new one have its number.
            if handler is not None and handlers.get(fd) is handler:
                handler(mask)
                if turn.is_spent:
                    self._put_off = ready[number:]  # or the first would come first for ever
                    break

    def _burst(self) -> bool:
        """Serves all that is ready now, or what takes so long that others should come in between;
        whether there was anything."""
        ready, self._put_off = self._put_off, []
        if not ready and not (ready := self._ready()):
            return False
        turn, watch = self.turn, self._watch
        watch.begin()
        turn.begin()
        self._serve(ready)
        if turn.spent_units and not turn.is_spent and (ready := self._ready()):
            # Requests came, and others while they were handled: one turn for all of them.
            self._serve(ready)
        turn.run()
        self._looks.burst(turn.spent_units)
        watch.end()
        return True
