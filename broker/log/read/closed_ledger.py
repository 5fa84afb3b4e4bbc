"""Opening a ledger that the chain has with its end.

Assumed is that what metadata say of a ledger is no older than the chain, which had the ledger's end
only when it was closed. ZooKeeper keeps that order for a session; where it is broken, by whatever,
the reader would end too early, and what is missing would be a hole as compaction leaves one: passed
over, and never read. So it is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.errors import LedgerReadError

if TYPE_CHECKING:
    from broker.log.life.ledger_info import LedgerInfo
    from ledger.client import LedgerClient
    from ledger.reader import LedgerReader


async def open_closed(
    ledgers: LedgerClient, info: LedgerInfo, *, is_cached: bool = True
) -> LedgerReader:
    """As `LedgerClient.open_ledger`. LedgerError; LedgerReadError if its end is not the chain's."""
    reader = await ledgers.open_ledger(info.ledger_id, recover=False, is_cached=is_cached)
    known = reader.last_add_confirmed + 1
    if not info.is_open and known != info.entry_count:
        told = f"it has {known} entries, and the chain knows of {info.entry_count}"
        raise LedgerReadError(info.ledger_id, told)
    return reader
