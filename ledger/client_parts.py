"""What a LedgerClient gives to all that it makes: writers, readers, recoveries.

The client builds these parts once and keeps no handle. A handle that is given `ClientParts` takes
what it needs of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from ledger.bookie_client import BookieClient
    from ledger.config import LedgerClientConfig
    from ledger.entry_cache import EntryCache
    from ledger.health import BookieHealth
    from ledger.metadata import LedgerManager
    from ledger.missing_copies import MissingCopies
    from ledger.placement import Placement
    from ledger.statistics import LedgerStatistics
    from runtime.running import Spawn
    from runtime.turn import Gathered, Turn
    from wire.bookkeeper.entry import Digest


@dataclass(slots=True, frozen=True)
class ClientParts:
    config: LedgerClientConfig
    bookies: BookieClient
    manager: LedgerManager
    placement: Placement
    health: BookieHealth
    turn: Turn
    #: The passes of all pipelines that have something to confirm.
    deliveries: Gathered
    spawn: Spawn
    missing: MissingCopies
    statistics: LedgerStatistics
    #: None: entries are not kept in memory.
    cache: EntryCache | None


@dataclass(slots=True, frozen=True)
class LedgerSeal:
    """What every add to one ledger carries: its entries' digest, the ledger's key, the flags."""

    digest: Digest
    master_key: bytes
    flags: int = 0
