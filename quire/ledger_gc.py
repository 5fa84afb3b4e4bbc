"""What a bookie may know of its ledgers from the metadata (bookie/known_ledgers.py).

A ledger that is absent from a listing is looked up once more, directly, and only an answer of «no
such node» lets it go (ledgers.md 2.9.10): on any doubt it is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ledger.errors import LedgerError, NoSuchLedgerError
from metadata.store import MetadataError
from runtime.logs import kv
from runtime.throttle import Throttle
from wire.bookkeeper.entry import Digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.metadata import LedgerManager

logger = logging.getLogger(__name__)


class MetadataLedgers:
    def __init__(self, manager: LedgerManager, reads_per_second: float) -> None:
        """`reads_per_second`: gcMetadataOpRateLimit, of the direct look-ups."""
        self._manager = manager
        self._throttle = Throttle(reads_per_second)

    async def gone(self, ledger_ids: Sequence[int]) -> list[int]:
        try:
            # A ledger is in the metadata before anything of it is at a bookie, so a listing that
            # is younger than `ledger_ids` has each that lives.
            listed = set(await self._manager.ledger_ids())
        except (LedgerError, MetadataError) as error:
            logger.warning("gc_without_metadata", kv(error=error))
            return []
        found = []
        for ledger_id in ledger_ids:
            if ledger_id not in listed:
                await self._throttle.take(1)
                if await self._is_gone(ledger_id):
                    found.append(ledger_id)
        return found

    async def _is_gone(self, ledger_id: int) -> bool:
        try:
            await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return True
        except (LedgerError, MetadataError) as error:
            logger.warning("gc_keeps_ledger", kv(ledger=ledger_id, error=error))
        return False

    async def digest(self, ledger_id: int) -> Digest | None:
        await self._throttle.take(1)
        try:
            metadata = (await self._manager.read(ledger_id)).metadata
        except (LedgerError, MetadataError):
            return None
        if metadata.digest_type is None or metadata.password is None:
            return None
        return Digest(metadata.digest_type, metadata.password)
