"""Signals that ask a process to stop: the first one is a wish, what the next one does is a setting.

SIGINT is a terminal's ^C, SIGTERM a service manager's word, SIGHUP a terminal that is gone: as with
a Java server, all of them ask for a clean stop, but SIGHUP where it was ignored before (`nohup`).
Nothing that comes from the moment on in which the handlers are there is lost.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Belongs to the run of trio that it is made in."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._asked = trio.Event()
        self._first: signal.Signals | None = None

    def take(self, number: int, _frame: object) -> None:
        """The handler; does nothing with those behind the first."""
        if self._first is None:
            self._first = signal.Signals(number)
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._asked.set)

    async def wait(self) -> signal.Signals:
        """The first one. Those of the same moment are the same wish."""
        await self._asked.wait()
        assert self._first is not None
        return self._first


@contextmanager
def taken_signals(*, keep: bool) -> Iterator[StopSignals]:
    """Takes them, in the main thread. `keep`: for the rest of the process nothing comes of more of
    them, whoever sends them, and however often; else until the block is left, or `end_at_next`."""
    signals = StopSignals()
    before = {
        number: signal.signal(number, signals.take)
        for number in STOP_SIGNALS
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == signals.take:
                # An interpreter that ends puts the default in the place of a handler of ours.
                signal.signal(number, signal.SIG_IGN if keep else handler)


def end_at_next() -> None:
    """The next signal ends the process at once, even if its loop stands still."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
