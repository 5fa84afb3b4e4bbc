"""Answers to members who waited, as many in each turn of the loop as it has room for.

One event lets all members of a group go on: the last JoinGroup of a rebalance, an assignment that
is stored, an acknowledgement behind which their heartbeats waited. Each of them gets an answer that
is made, encoded and sent on a connection of its own, so a group of a thousand would hold the loop
for 20 ms. What the group is by then is decided before any of them is told; an answer that comes a
few turns later is one that was on its way longer.

Who is answered before his request was handled to its end did not wait: the request was counted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtime.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.turn import Turn

#: Microseconds of the loop: made, encoded, and sent by a system call of its own.
ANSWER_UNITS = 20


class Waiting:
    """A request's `reply`, to be called once. `waits` is set when the request was handled, and not
    answered yet."""

    __slots__ = ("_reply", "_spread", "waits")

    def __init__(self, spread: Spread, reply: Callable[..., None]) -> None:
        self._spread = spread
        self._reply = reply
        self.waits = False

    def __call__(self, *result: object) -> None:
        if self.waits:
            self._spread.add((partial(self._reply, *result),))
        else:
            self._reply(*result)


class Answers:
    """One for a coordinator: who was told to be answered first is. Owner: the loop's thread."""

    __slots__ = ("_spread",)

    def __init__(self, turn: Turn) -> None:
        self._spread = Spread(turn, ANSWER_UNITS)

    def to(self, reply: Callable[..., None]) -> Waiting:
        return Waiting(self._spread, reply)
