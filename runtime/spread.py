"""Spread: calls that are made in order, as many in each turn as it has room for.

One message may let hundreds of others go on (an answer to many questions, say). Each is counted
against the turn (runtime/turn.py); what is too much for it is called in later ones, behind what was
added before.

Owner: the event loop's thread. What is called may add more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runtime.turn import Turn


class Spread:
    __slots__ = ("_calls", "_is_put_off", "_turn", "_units_each")

    def __init__(self, turn: Turn, units_each: int) -> None:
        """`units_each`: what a call costs the turn, in its units."""
        self._turn = turn
        self._units_each = units_each
        self._calls: deque[Callable[[], None]] = deque()
        self._is_put_off = False

    def add(self, calls: Iterable[Callable[[], None]]) -> None:
        """Called at once as far as the turn has room, and nothing waits."""
        is_busy = bool(self._calls)
        self._calls.extend(calls)
        if not is_busy and not self._is_put_off:
            self._go_on()

    def _go_on(self) -> None:
        self._is_put_off = False
        calls, turn = self._calls, self._turn
        while calls:
            if turn.is_spent:
                self._is_put_off = True
                turn.later(self._go_on)
                return
            turn.spent_units += self._units_each
            # It leaves the line when it was made: what it adds comes behind, not in between.
            calls[0]()
            calls.popleft()
