"""A partition's next ledger, made before it is needed, so that a roll need not wait for it.

Owner: the partition's keeper, which alone calls it, from its one task. A spare ledger is in no
document, and nothing is written to it before the chain names it: `take` gives it out once, and
until then whoever made it may delete it. If its maker dies it is an orphan of the maker's epoch
(broker/log/life/orphans.py): never the chain's, as only the maker could add it. If the topic is
deleted before the orphan is found, its stamps still tell whose it was (broker/log/life/swept.py).

A spare is only made with all the copies that the topic asks for, and is given up when bookies came
or went, as it may be on one that is gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.log.life.new_ledger import create_ledger
from ledger.errors import LedgerError
from metadata.store import MetadataError
from runtime.logs import kv

if TYPE_CHECKING:
    from broker.cluster.durability import Copies
    from broker.log.partition import PartitionLog
    from ledger.client import LedgerClient
    from ledger.writer import LedgerWriter

logger = logging.getLogger(__name__)


class SpareLedger:
    def __init__(self, log: PartitionLog, ledgers: LedgerClient) -> None:
        self._log = log
        self._ledgers = ledgers
        self._writer: LedgerWriter | None = None
        self._copies: Copies | None = None
        self._is_stale = False
        #: The open ledger that one was tried for: once, as a roll can do without.
        self._tried_for = -1

    def is_wanted(self, open_ledger_id: int) -> bool:
        return self._writer is None and self._tried_for != open_ledger_id

    @property
    def is_unfit(self) -> bool:
        """It is to be deleted."""
        return self._writer is not None and (self._is_stale or self._copies != self._log.copies)

    async def make(self, open_ledger_id: int) -> None:
        """For the time when this ledger has enough. Only logged, if it cannot be made now."""
        self._tried_for = open_ledger_id
        copies = self._log.copies
        self._copies, self._is_stale = copies, False
        try:
            self._writer = await create_ledger(self._ledgers, self._log, copies)
        except LedgerError as error:
            logger.info("no_spare_ledger", kv(partition=self._log.name, error=error))

    def take(self) -> LedgerWriter | None:
        """The caller adds it to the chain."""
        if self.is_unfit:
            return None
        writer, self._writer = self._writer, None
        return writer

    def bookies_changed(self) -> None:
        self._is_stale = True

    async def discard(self) -> None:
        """What cannot be deleted now is an orphan."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.abandon()
        try:
            await self._ledgers.delete_ledger(writer.ledger_id)
        except (LedgerError, MetadataError) as error:
            logger.warning("spare_ledger_left", kv(ledger=writer.ledger_id, error=error))
