"""A ledger for a partition: with so many copies, and with the stamps that say whose it is
(broker/log/life/orphans.py). Nobody writes to it before the chain names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.life.orphans import stamps_of

if TYPE_CHECKING:
    from broker.cluster.durability import Copies
    from broker.log.partition import PartitionLog
    from ledger.client import LedgerClient
    from ledger.metadata import Place
    from ledger.writer import LedgerWriter


async def create_ledger(
    ledgers: LedgerClient,
    log: PartitionLog,
    copies: Copies,
    *,
    is_cached: bool = True,
    place: Place | None = None,
) -> LedgerWriter:
    """`is_cached`: whether the broker keeps its entries in memory. `place`: makes it in metadata,
    together with what names it. LedgerError, and whatever `place` raises."""
    return await ledgers.create_ledger(
        ensemble_size=copies.ensemble_size,
        write_quorum_size=copies.write_quorum,
        ack_quorum_size=copies.ack_quorum,
        custom_metadata=stamps_of(log),
        is_cached=is_cached,
        place=place,
    )


async def can_create(ledgers: LedgerClient, copies: Copies) -> bool:
    """Whether there are bookies for it now."""
    return await ledgers.can_create(
        ensemble_size=copies.ensemble_size,
        write_quorum_size=copies.write_quorum,
        ack_quorum_size=copies.ack_quorum,
    )
