"""ColdReads: who may read from the disk on a worker thread now.

Thousands of reads of old data may wait for the disk, and worker threads are few and everybody's:
the flush, the journal's next file and the index's sync need them, too. So reads take some of them
at most. What a recovery reads (BookKeeper's high-priority reads, and those that fence) goes before
all others and has threads that the others leave free: a partition waits for it.

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


class ColdReads:
    __slots__ = ("_ordinary", "_running", "_urgent")

    def __init__(self) -> None:
        self._running = 0
        self._ordinary: deque[trio.Event] = deque()
        self._urgent: deque[trio.Event] = deque()

    @property
    def waiting(self) -> int:
        return len(self._ordinary) + len(self._urgent)

    @asynccontextmanager
    async def turn(self, *, is_urgent: bool) -> AsyncIterator[None]:
        """Waits until it is this read's turn; the next comes when the block is left."""
        await self._wait(self._urgent if is_urgent else self._ordinary)
        try:
            yield
        finally:
            self._running -= 1
            self._let_go_on()

    async def _wait(self, queue: deque[trio.Event]) -> None:
        event = trio.Event()
        queue.append(event)
        self._let_go_on()
        if event.is_set():
            return
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self._running -= 1
                self._let_go_on()
            else:
                queue.remove(event)
            raise

    def _let_go_on(self) -> None:
        while self._urgent and self._running < ALL_MAX:
            self._running += 1
            self._urgent.popleft().set()
        while self._ordinary and self._running < ORDINARY_MAX:
            self._running += 1
            self._ordinary.popleft().set()
