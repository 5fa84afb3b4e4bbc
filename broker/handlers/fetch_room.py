"""Fetches wait to be read while much of what was read for others waits to be sent.

Reading is ten times as fast as sending: without this, what a hundred consumers catch up with would
be in memory at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from runtime.turn import Turn

#: What letting one in is counted as in its turn: its look, and half a megabyte.
LET_IN_UNITS = 500


class FetchRoom:
    """Lets fetches in, in the order in which they came."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._waiting: deque[trio.Event] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return bool(self._waiting) or self._turn.is_behind

    async def enter(self) -> None:
        """Returns when there is room."""
        if not self.is_full:
            return
        if not self._waiting:
            self._turn.later(self._let_in)
        event = trio.Event()
        self._waiting.append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            if not event.is_set():
                self._waiting.remove(event)
            raise

    def _let_in(self) -> None:
        waiting, turn = self._waiting, self._turn
        while waiting and not turn.is_behind and not turn.is_spent:
            turn.spent_units += LET_IN_UNITS
            waiting.popleft().set()
        if waiting:
            turn.later(self._let_in)
