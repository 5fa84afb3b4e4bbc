"""Aside: calls that take too long for the loop, made one after the other by a thread.

For who is called by a driver and has no task in which to wait (`Disk.run` is for those that have):
what a call returned, or raised, is told on the loop's thread when it is done. Nothing that a call
uses may be touched by the loop meanwhile; whoever asks for the call sees to that.

One at a time: many that wait here (handshakes of a crowd, say) are to leave the other processors to
others, and a thread for each would cost memory that no limit counts. Who leaves the line says so
(`forget`): else a crowd that comes and goes would be kept here for longer than it stayed.

Owner: the event loop's thread.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    import outcome

    Call = Callable[[], None]
    Told = Callable[[outcome.Outcome[None]], None]


class Aside:
    __slots__ = ("_calls", "_is_busy", "_name", "_numbers")

    def __init__(self, name: str) -> None:
        """`name`: the thread's, as operators see it."""
        self._name = name
        #: In the order of asking.
        self._calls: dict[int, tuple[Call, Told]] = {}
        self._numbers = count()
        self._is_busy = False

    def add(self, call: Call, told: Told) -> int:
        """The call's number. `told` is called once, in a later turn; never, if the loop ends before
        that."""
        number = next(self._numbers)
        self._calls[number] = (call, told)
        if not self._is_busy:
            self._go_on()
        return number

    def forget(self, number: int) -> bool:
        """True: the call is not made, and nothing is told. False: a thread has begun it."""
        return self._calls.pop(number, None) is not None

    @property
    def waiting_count(self) -> int:
        """Calls that no thread has begun."""
        return len(self._calls)

    def _go_on(self) -> None:
        self._is_busy = True
        call, told = self._calls.pop(next(iter(self._calls)))
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
