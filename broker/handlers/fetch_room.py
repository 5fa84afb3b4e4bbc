"""Fetches wait to be read while much of what was read for others waits to be sent.

Reading is ten times as fast as sending: without this, what a hundred consumers catch up with would
be in memory at once. What is read from disk takes its time, in which nothing of it is in line yet:
of that so much is read at once.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.api import ANSWER_BYTES_MAX
from broker.log.read.partition_reader import ENTRY_UNITS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runtime.turn import Turn

#: What letting one in counts as in its turn at the least, whatever those before it have read: more
#: may be there for it.
LET_IN_UNITS = 400
#: Bytes that are read in a unit, and what one is taken to read that is the first to tell.
READ_BYTES_SHIFT = 11
#: What is read at once in a turn; no more than that leaves in one. Who comes then waits to be let
#: in: each of hundreds, one after the other, would keep those behind them from being heard.
AT_ONCE_BYTES = 2 << 20
#: What is read from disk at once, as fetches allow, and one more.
COLD_BYTES_MAX = 64 << 20
#: Who has waited so long for that goes on: those who read may wait for bookies that do not answer,
#: which is no reason for others not to read from bookies that do.
COLD_WAIT_SECONDS = 2.0


class FetchRoom:
    """Lets fetches in, in the order in which they came."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._waiting: deque[trio.Event] = deque()
        #: Read in the turn of that number for those that did not wait.
        self._at_once_in, self._at_once_bytes = -1, 0
        #: What those that were let in have read, the last ones most.
        self._usual_bytes = ANSWER_BYTES_MAX
        #: What may be read from disk by those that do, and those that wait for that.
        self.cold_bytes = 0
        self._cold: deque[tuple[trio.Event, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return bool(self._waiting) or self._turn.is_behind

    @property
    def is_busy(self) -> bool:
        """Or, in this turn, as much was read as may be."""
        return self.is_full or (
            self._at_once_bytes >= AT_ONCE_BYTES and self._at_once_in == self._turn.number
        )

    def enter_at_once(self) -> None:
        """One that needs not wait begins to read, as much as those before it: hundreds of tasks may
        have been woken together."""
        self.read_at_once(self._usual_bytes)

    def read_at_once(self, size_bytes: int) -> None:
        """What was read in this turn for one that did not wait."""
        number = self._turn.number
        if self._at_once_in != number:
            self._at_once_in, self._at_once_bytes = number, 0
        self._at_once_bytes += size_bytes

    def read(self, size_bytes: int, entries: int = 0) -> None:
        """What one that was let in has read. An entry costs as much as some bytes."""
        size_bytes += entries * ENTRY_UNITS << READ_BYTES_SHIFT
        self._usual_bytes += (size_bytes - self._usual_bytes) >> 2

    async def enter(self) -> None:
        """Returns when there is room. As many go on in a turn as read what it may, each as much as
        those before it: what they read is in line to be sent afterwards only."""
        if not self.is_busy:
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
            turn.spent_units += max(LET_IN_UNITS, self._usual_bytes >> READ_BYTES_SHIFT)
            waiting.popleft().set()
        if waiting:
            turn.later(self._let_in)

    @asynccontextmanager
    async def for_cold(self, size_bytes: int) -> AsyncIterator[None]:
        """While so much may be read from disk, and until the answer is in line to be sent."""
        await self._enter_cold(size_bytes)
        try:
            await self.enter()
            yield
        finally:
            self._turn.later(partial(self._leave_cold, size_bytes))

    async def _enter_cold(self, size_bytes: int) -> None:
        if self.cold_bytes <= COLD_BYTES_MAX:
            assert not self._cold, "they are let in while there is room"
            self.cold_bytes += size_bytes
            return
        waiting = event, _ = trio.Event(), size_bytes
        self._cold.append(waiting)
        try:
            with trio.move_on_after(COLD_WAIT_SECONDS):
                await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self._leave_cold(size_bytes)
            else:
                self._cold.remove(waiting)
            raise
        if not event.is_set():
            self._cold.remove(waiting)
            self.cold_bytes += size_bytes

    def _leave_cold(self, size_bytes: int) -> None:
        self.cold_bytes -= size_bytes
        while self._cold and self.cold_bytes <= COLD_BYTES_MAX:
            event, size_bytes = self._cold.popleft()
            self.cold_bytes += size_bytes
            event.set()
