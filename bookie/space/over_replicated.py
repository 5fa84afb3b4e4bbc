"""OverReplicatedLedgers: entries of ledgers that are wholly on other bookies are given up
(ScanAndCompareGarbageCollector.java, removeOverReplicatedledgers).

A bookie was away, auto-recovery copied its ledgers to others, it came back: nobody asks for its
copies any more. Which these are is the metadata's to say (`KnownLedgers.over_replicated`).

Unlike BookKeeper the bookie forgets a ledger's entries only. The ledger stays known, and fenced:
- Its fence is one of those that keep an ack quorum from an old writer. Such a writer may still have
  the ensemble of long ago; bookies that had forgotten the fence would take its adds and acknowledge
  what no reader finds, for the ledger is closed. So the fence is durable before an entry goes, and
  an add without RECOVERY_ADD is refused for as long as the metadata knows the ledger.
- Auto-recovery may choose this bookie for the same ledger again. There is no deletion in the
  journal that a replay could bring upon the new copies: the index forgets the old entries between
  two checkpoints, and what comes meanwhile is flushed after that. A crash before the index is
  synced leaves the old copies as they were, and they are found again; so does a replay that brings
  back some of them.

A ledger is given up only if it got no entry from one round of collection to the next. Who copies
without a lock (`bookkeeper shell recover`, bookkeeper #4668; a worker whose session is over and who
has not heard) is at work on it: the ledger names its targets right after the last copy.

A ledger without entries costs its state in memory until it is deleted, and no look at the metadata.

Owner: the collector's task, which also compacts: nothing but a flush puts places into the index
meanwhile, and `Checkpointer.empty_ledgers` keeps that out.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

import trio

from bookie.known_ledgers import CollectionRefusedError
from bookie.storage.sorting import sort_in_slices

if TYPE_CHECKING:
    from bookie.known_ledgers import KnownLedgers
    from bookie.ledger_operations import LedgerOperations
    from bookie.ledger_table import LedgerTable
    from bookie.storage.checkpointer import Checkpointer
    from bookie.storage.entry_logs import EntryLogs
    from bookie.storage.index import EntryIndex

logger = logging.getLogger(__name__)

#: Ledgers that the index is asked for in one turn of the loop.
LEDGERS_PER_TURN = 200
#: Ledgers that are looked at together, some 100 bytes each for two rounds; the others follow.
CANDIDATES_MAX = 100_000
ID_MAX = (1 << 63) - 1
#: Ledgers that are forgotten in the maps after one look, the others after the next.
FORGOTTEN_MAX = 100_000


class OverReplicatedLedgers:
    def __init__(
        self,
        wait_ms: int,
        logs: EntryLogs,
        index: EntryIndex,
        table: LedgerTable,
        operations: LedgerOperations,
        checkpointer: Checkpointer,
        known: KnownLedgers | None,
    ) -> None:
        """`wait_ms`: between two looks; <= 0: there are none."""
        self._wait_seconds = wait_ms / 1000
        self._logs = logs
        self._index = index
        self._table = table
        self._operations = operations
        self._checkpointer = checkpointer
        self._known = known
        self._last_look = 0.0
        # Of the part of the ledgers that is looked at: ids above the one, up to the other; -1 if
        # all are done, or none is.
        self._after_id = self._last_id = -1
        #: Ledgers that had entries at the last round: this one gives up those that got no more.
        self._candidates: list[int] | None = None
        self._emptied = 0

    def start(self) -> None:
        """The first look is a whole wait later, as in BookKeeper."""
        self._last_look = trio.current_time()

    async def look(self) -> int:
        """Once in each round of collection; how many ledgers were emptied. OSError."""
        if self._known is None or self._wait_seconds <= 0:
            return 0
        self._emptied = 0
        if self._candidates is not None:
            await self._give_up(self._known, self._candidates)
        elif self._last_id >= 0 or self._is_due():
            self._candidates = await self._with_entries()
            self._checkpointer.watch_quiet(self._candidates)
        return self._emptied

    def _is_due(self) -> bool:
        if trio.current_time() - self._last_look < self._wait_seconds:
            return False
        self._last_look = trio.current_time()
        return True

    async def _with_entries(self) -> list[int]:
        """The next part of all ledgers, in the order of their ids."""
        self._after_id, self._last_id = self._last_id, -1
        ledger_ids = await sort_in_slices(self._table.ids())
        found: list[int] = []
        while some := list(islice(ledger_ids, LEDGERS_PER_TURN)):
            if some[-1] > self._after_id:
                found += self._index.with_entries([i for i in some if i > self._after_id])
            if len(found) >= CANDIDATES_MAX:
                self._last_id = some[-1]
                break
            await trio.lowlevel.checkpoint()
        return found

    async def _give_up(self, known: KnownLedgers, candidates: list[int]) -> None:
        self._candidates = None
        table, is_quiet = self._table, self._checkpointer.is_quiet
        quiet = [each for each in candidates if table.get(each) is not None and is_quiet(each)]
        try:
            if candidates:
                await known.over_replicated(quiet, self._empty)
        except CollectionRefusedError as error:
            logger.warning("superfluous copies are kept for now: %s", error)
        finally:
            self._checkpointer.watch_quiet(())
        await self._forget_in_maps(set(candidates))

    async def _empty(self, ledger_ids: list[int]) -> None:
        if await self._operations.fence_known(ledger_ids):
            count = await self._checkpointer.empty_ledgers(ledger_ids)
            self._emptied += count
            logger.info("gave up the copies of ledgers that others have count=%d", count)

    async def _forget_in_maps(self, had: set[int]) -> None:
        """The maps on disk, which a start reads, still have what was given up in an earlier life.
        `had`: ledgers of this part that had entries a round ago."""
        first, last = self._after_id, self._last_id if self._last_id >= 0 else ID_MAX

        def is_known(ledger_id: int) -> bool:
            return ledger_id in had or not first < ledger_id <= last

        found = await self._logs.walk.unknown(is_known, FORGOTTEN_MAX)
        empty = iter(found)
        while some := list(islice(empty, LEDGERS_PER_TURN)):
            await self._checkpointer.forget_empty(some)
