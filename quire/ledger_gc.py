"""Which ledgers a bookie may forget: those that metadata no longer knows.

A ledger that is absent from a listing is looked up once more, directly, and only an answer of «no
such node» lets it go (ledgers.md 2.9.10): on any doubt it is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ledger.errors import LedgerError, NoSuchLedgerError
from metadata.store import MetadataError
from runtime.logs import kv

if TYPE_CHECKING:
    from bookie.bookie import Bookie
    from ledger.metadata import LedgerManager

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0


class LedgerGc:
    def __init__(self, bookie: Bookie, manager: LedgerManager) -> None:
        self._bookie = bookie
        self._manager = manager
        self.deleted_count = 0

    async def run(self) -> None:
        """Looks every INTERVAL_SECONDS, until cancelled."""
        while True:
            await trio.sleep(INTERVAL_SECONDS)
            await self.collect()

    async def collect(self) -> int:
        """One round; the number of ledgers deleted from the bookie."""
        deleted = 0
        for ledger_id in list(self._bookie.list_ledgers()):
            if await self._is_gone(ledger_id):
                await self._bookie.delete_ledger(ledger_id)
                deleted += 1
        if deleted:
            self.deleted_count += deleted
            logger.info("ledgers_collected", kv(count=deleted))
        return deleted

    async def _is_gone(self, ledger_id: int) -> bool:
        try:
            await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return True
        except (LedgerError, MetadataError) as error:
            logger.warning("gc_keeps_ledger", kv(ledger=ledger_id, error=error))
        return False
