"""DamageMarks: has auto-recovery mend what a bookie finds damaged on its own disk.

The scrub, and reads, tell of entries whose records are damaged (bookie/health/damage.py). Such an
entry has a copy less than its ledger promises, and nobody else knows: an auditor reads the ends of
a ledger only, and the list of entries is the index's. So the ledger is marked as under-replicated,
with this bookie's name; the bookie leaves the damaged entries out of what it says that it has; and
the replication worker gives it those again, from another bookie's copies.

Only ledgers whose metadata name this bookie are marked. While the metadata are away it is tried
again; what is not marked when the process ends is found again when it starts, as the scrub then
looks first at the logs that had damage.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ledger.errors import LedgerError, NoSuchLedgerError
from runtime.logs import kv
from runtime.throttle import Throttle

if TYPE_CHECKING:
    from ledger.metadata import LedgerManager

logger = logging.getLogger(__name__)

#: A disk may be damaged everywhere: its ledgers are marked one after the other.
LEDGERS_PER_SECOND = 50
RETRY_SECONDS = 5.0


class DamageMarks:
    """Start `run`, and give `found` to `Bookie.on_damage`."""

    def __init__(self, manager: LedgerManager, bookie_id: str) -> None:
        self._manager = manager
        self._bookie_id = bookie_id
        #: In the order in which they were told.
        self._waiting: dict[int, None] = {}
        self._wake = trio.Event()
        self._throttle = Throttle(LEDGERS_PER_SECOND)
        #: Ledgers that were marked.
        self.marked_count = 0

    def found(self, ledger_id: int) -> None:
        """An entry of this ledger is damaged here."""
        self._waiting[ledger_id] = None
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        task_status.started()
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._waiting:
                ledger_id = next(iter(self._waiting))
                del self._waiting[ledger_id]
                await self._throttle.take(1)
                if not await self._mark(ledger_id):
                    self._waiting[ledger_id] = None
                    await trio.sleep(RETRY_SECONDS)

    async def _mark(self, ledger_id: int) -> bool:
        """False if it is to be tried again."""
        try:
            metadata = (await self._manager.read(ledger_id)).metadata
        except NoSuchLedgerError:
            return True
        except LedgerError as error:
            logger.warning("damage_not_marked", kv(ledger=ledger_id, error=error))
            return False
        if not any(self._bookie_id in ensemble for _, ensemble in metadata.segments):
            return True
        if not await self._manager.mark_under_replicated(ledger_id, [self._bookie_id]):
            return False
        self.marked_count += 1
        logger.warning("damage_marked", kv(ledger=ledger_id, bookie=self._bookie_id))
        return True
