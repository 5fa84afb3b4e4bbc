"""Whether this broker reaches enough bookies for the partitions that it leads.

A broker that is cut off from the bookies, but not from the metadata, stays registered and cannot
write: it says so in its registration, and the controller gives its partitions to brokers that can
(broker/cluster/controller.py). Bookies are asked only while there is a doubt: something failed, or
another broker says that it cannot write. What nobody could write, as there are too few bookies at
all, is no reason either.

It is said after UNABLE_SECONDS without enough answers, and taken back after ABLE_SECONDS with them,
so that a network that comes and goes moves nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
UNABLE_SECONDS = 8.0
ABLE_SECONDS = 10.0


class BookieReach:
    def __init__(
        self,
        writable: Callable[[], Collection[str]],
        reachable: Callable[[Collection[str]], Awaitable[int]],
        needed: Callable[[], Awaitable[int]],
        is_doubtful: Callable[[], Awaitable[bool]],
        tell: Callable[[bool], None],
    ) -> None:
        """`writable`: bookies that are registered and take writes. `reachable`: how many of those
        given answer. `needed`: the largest ack quorum of what this broker leads. `is_doubtful`:
        whether something failed lately. `tell(can_write)`: it has changed. Those that are awaited
        may look at very many partitions, and give the loop away meanwhile."""
        self._writable = writable
        self._reachable = reachable
        self._needed = needed
        self._is_doubtful = is_doubtful
        self._tell = tell
        self._can_write = True
        #: Since when the answers say otherwise.
        self._since: float | None = None
        #: What was needed when there was not enough: what is led has moved away since.
        self._needed_then = 0

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        if self._can_write and not await self._is_doubtful():
            self._since = None
            return
        writable = self._writable()
        needed = max(await self._needed(), 1 if self._can_write else self._needed_then)
        count = await self._reachable(writable)
        is_enough = count >= needed or len(writable) < needed
        if is_enough is self._can_write:
            self._since = None
            return
        now = trio.current_time()
        if self._since is None:
            self._since = now
        if now - self._since < (ABLE_SECONDS if is_enough else UNABLE_SECONDS):
            return
        self._since, self._can_write, self._needed_then = None, is_enough, needed
        facts = kv(bookies=len(writable), reached=count, needed=needed)
        logger.warning("reaches_bookies_again" if is_enough else "cut_off_from_bookies", facts)
        self._tell(is_enough)
