"""Aside: calls that take too long for the loop, made one after the other by a thread.

For who is called by a driver and has no task in which to wait (`Disk.run` is for those that have):
what a call returned, or raised, is told on the loop's thread when it is done. Nothing that a call
uses may be touched by the loop meanwhile; whoever asks for the call sees to that.

One at a time: many that wait here (handshakes of a crowd, say) are to leave the other processors to
others, and a thread for each would cost memory that no limit counts.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    import outcome

    Call = Callable[[], None]
    Told = Callable[[outcome.Outcome[None]], None]


class Aside:
    __slots__ = ("_calls", "_is_busy", "_name")

    def __init__(self, name: str) -> None:
        """`name`: the thread's, as operators see it."""
        self._name = name
        self._calls: deque[tuple[Call, Told]] = deque()
        self._is_busy = False

    def add(self, call: Call, told: Told) -> None:
        """`told` is called once, in a later turn; never, if the loop ends before that."""
        self._calls.append((call, told))
        if not self._is_busy:
            self._go_on()

    @property
    def waiting_count(self) -> int:
        """Calls that no thread has begun."""
        return len(self._calls)

    def _go_on(self) -> None:
        self._is_busy = True
        call, told = self._calls.popleft()
        token = trio.lowlevel.current_trio_token()

        def done(result: outcome.Outcome[None]) -> None:
            self._is_busy = False
            if self._calls:
                self._go_on()
            told(result)

        def deliver(result: outcome.Outcome[None]) -> None:
            try:
                token.run_sync_soon(done, result)
            except trio.RunFinishedError:
                return  # nobody is left to tell

        trio.lowlevel.start_thread_soon(call, deliver, self._name)
