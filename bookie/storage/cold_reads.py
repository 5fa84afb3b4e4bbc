"""ColdReads: who may read from the disk on a worker thread now.

Thousands of reads of old data may wait for the disk, and worker threads are few and everybody's:
the flush, the journal's next file and the index's sync need them, too. So reads take some of them
at most. What a recovery reads (BookKeeper's high-priority reads, and those that fence) goes before
all others and has threads that the others leave free: a partition waits for it. Any client may set
that flag, and recoveries may follow each other without an end: a few threads are left to others.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: At a time, of the 16 worker threads: ordinary ones, and all with those of recoveries.
ORDINARY_MAX = 8
ALL_MAX = 12
#: Of these, ordinary ones only: they go on however many urgent ones there are.
ORDINARY_SHARE = 2


class _Line:
    """Reads of one kind."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[trio.Event] = deque()

    def let_one_go_on(self) -> None:
        self.running += 1
        self.waiting.popleft().set()


class ColdReads:
    __slots__ = ("_ordinary", "_urgent")

    def __init__(self) -> None:
        self._ordinary = _Line()
        self._urgent = _Line()

    @property
    def waiting(self) -> int:
        return len(self._ordinary.waiting) + len(self._urgent.waiting)

    @asynccontextmanager
    async def turn(self, *, is_urgent: bool) -> AsyncIterator[None]:
        """Waits until it is this read's turn; the next comes when the block is left."""
        line = self._urgent if is_urgent else self._ordinary
        await self._wait(line)
        try:
            yield
        finally:
            line.running -= 1
            self._let_go_on()

    async def _wait(self, line: _Line) -> None:
        event = trio.Event()
        line.waiting.append(event)
        self._let_go_on()
        if event.is_set():
            return
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                line.running -= 1
                self._let_go_on()
            else:
                line.waiting.remove(event)
            raise

    def _let_go_on(self) -> None:
        ordinary, urgent = self._ordinary, self._urgent
        while (
            urgent.waiting
            and urgent.running < ALL_MAX - ORDINARY_SHARE
            and urgent.running + ordinary.running < ALL_MAX
        ):
            urgent.let_one_go_on()
        while ordinary.waiting and (
            ordinary.running < ORDINARY_SHARE or urgent.running + ordinary.running < ORDINARY_MAX
        ):
            ordinary.let_one_go_on()
