"""Who watches a partition: told once per turn that it made progress, each by one call.

All fetches that wait may wait for one partition, so who is called is counted (runtime/turn.py):
those who do not fit into a turn are called in later ones, and those first who were called longest
ago.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.turn import Turn

#: So many hear of progress in the turn in which it was made, however much was done in it.
WATCHERS_AT_LEAST = 4


class Watchers:
    """A function that is called may add and remove any."""

    __slots__ = ("_functions", "_is_deferred", "_is_put_off", "_turn", "_untold")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._functions: OrderedDict[Callable[[], None], None] = OrderedDict()
        #: So many of them, from the first on, are still to be called.
        self._untold = 0
        self._is_put_off = False
        self._is_deferred = False

    def __len__(self) -> int:
        return len(self._functions)

    def add(self, function: Callable[[], None]) -> None:
        """`function()` is called at each `tell`, until it is removed."""
        self._functions[function] = None

    def remove(self, function: Callable[[], None]) -> None:
        self._functions.pop(function, None)

    def tell_soon(self) -> None:
        """At the end of this turn, once for all that happened in it."""
        if self._functions and not self._is_deferred:
            self._is_deferred = True
            self._turn.defer(self.tell)

    def tell(self) -> None:
        """Calls everybody, in this turn as far as it is not spent."""
        self._is_deferred = False
        self._untold = len(self._functions)
        if not self._is_put_off:  # else it goes on, and comes by all of them
            self._tell_some()

    def _tell_some(self) -> None:
        self._is_put_off = False
        functions, turn = self._functions, self._turn
        called = 0
        while self._untold > 0 and functions:
            if called >= WATCHERS_AT_LEAST and turn.is_spent:
                self._is_put_off = True
                turn.later(self._tell_some)
                return
            called += 1
            self._untold -= 1
            turn.spent_units += 1
            function = next(iter(functions))
            functions.move_to_end(function)
            function()
