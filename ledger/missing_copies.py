"""MissingCopies: what a client knows of copies that are missing, told to auto-recovery.

What a writer confirmed without a bookie is in the middle of the ledger, where an auditor's look at
both ends sees nothing; and a writer may die before it closes the ledger. So it says so at once, by
an under-replication mark that names the bookie. Whoever recovers a ledger does not know what its
writer knew: he asks all bookies which entries they have, after the recovery, and marks what they
lack. That finds also what a writer had sent and nobody acknowledged when it died. A worker that
finds such a mark on an open ledger keeps it, and does not fence the ledger for it
(ledger/autorecovery/repair.py). When the bookie is sent all entries again the writer says that too
(ledger/writer_marks.py), and then a worker may take the mark back, if no copy is missing.

Nobody waits for any of this: it runs in the client's tasks, a few ledgers at a time, and is tried
again while the metadata, or a bookie, is away. What is forgotten when the client ends is found by
the auditor's check of all ledgers (ledger/autorecovery/checks.py).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from ledger.copy_check import CopyChecker
from ledger.errors import LedgerError
from ledger.fragments import fragments
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.metadata import LedgerManager
    from runtime.env import Rng
    from runtime.running import Spawn
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)

LEDGERS_AT_A_TIME = 8
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 30.0
#: A bookie that gave no answer so often after a recovery is taken for one that lacks entries.
ASKED_MAX = 5


class MissingCopies:
    def __init__(
        self, manager: LedgerManager, bookies: BookieClient, rng: Rng, spawn: Spawn
    ) -> None:
        self._manager = manager
        self._bookies = bookies
        self._rng = rng
        self._spawn = spawn
        self._places = trio.Semaphore(LEDGERS_AT_A_TIME)

    def tell(
        self, ledger_id: int, bookies: Iterable[BookieId], is_whole: Callable[[], bool]
    ) -> None:
        """Has the ledger marked for these bookies by its writer, soon. `is_whole` as for
        `take_back`, of when the mark is made, which may be after it was to be taken back."""
        self._spawn(partial(self._tell, ledger_id, frozenset(bookies), is_whole))

    async def _tell(
        self, ledger_id: int, bookies: frozenset[BookieId], is_whole: Callable[[], bool]
    ) -> None:
        marks = self._manager.writer_marks
        await self._until_done(partial(marks.mark, ledger_id, bookies))
        if is_whole():
            await self._take_back(ledger_id, is_whole)

    def take_back(self, ledger_id: int, is_whole: Callable[[], bool]) -> None:
        """Has the writer's mark left to auto-recovery's judgement, soon, if then `is_whole()`: all
        bookies are sent all entries, and what one will lack is told anew."""
        self._spawn(partial(self._take_back, ledger_id, is_whole))

    async def _take_back(self, ledger_id: int, is_whole: Callable[[], bool]) -> None:
        marks = self._manager.writer_marks
        await self._until_done(partial(marks.leave_to_auditors, ledger_id, is_whole))

    async def _mark(self, ledger_id: int, bookies: frozenset[BookieId]) -> None:
        await self._until_done(partial(self._manager.mark_under_replicated, ledger_id, bookies))

    async def _until_done(self, function: Callable[[], Awaitable[bool]]) -> None:
        pause = PAUSE_SECONDS
        while True:
            async with self._places:
                if await function():
                    return
            await trio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def look_after(
        self, ledger_id: int, metadata: LedgerMetadata, left_out: Collection[BookieId]
    ) -> None:
        """Has a ledger that was recovered just now marked for those of its bookies that lack
        entries; `left_out` are known to."""
        self._spawn(partial(self._look_after, ledger_id, metadata, frozenset(left_out)))

    async def _look_after(
        self, ledger_id: int, metadata: LedgerMetadata, left_out: frozenset[BookieId]
    ) -> None:
        lacking = set(left_out)
        wanted = {bookie for _, ensemble in metadata.segments for bookie in ensemble} - lacking
        pause = PAUSE_SECONDS
        for attempt in range(ASKED_MAX):
            if attempt:
                await trio.sleep(pause)
                pause *= 2
            try:
                async with self._places:
                    silent = await self._ask(ledger_id, metadata, wanted, lacking)
            except LedgerError as error:
                logger.info("copies_not_counted", kv(ledger=ledger_id, error=error))
                break
            wanted = silent
            if not wanted:
                break
        lacking |= wanted
        if lacking:
            words = kv(ledger=ledger_id, bookies=",".join(sorted(lacking)))
            logger.warning("recovered_without_copies", words)
            await self._mark(ledger_id, frozenset(lacking))

    async def _ask(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        wanted: set[BookieId],
        lacking: set[BookieId],
    ) -> set[BookieId]:
        """Adds to `lacking`; returns who gave no answer. LedgerMetadataError."""
        checker = CopyChecker(self._bookies, ledger_id, metadata, self._rng)
        silent: set[BookieId] = set()
        for fragment in fragments(ledger_id, metadata):
            for missing in await checker.check_lists(fragment, wanted):
                (lacking if missing.is_there else silent).add(missing.bookie)
        return silent - lacking
