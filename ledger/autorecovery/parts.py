"""What auditor, checks and repair of one process share; `AutoRecovery` is given all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.autorecovery.audit_marks import AuditMarks
from ledger.underreplication import UnderReplication
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.autorecovery.config import AutoRecoveryConfig
    from ledger.bookie_client import BookieClient, BookieId
    from ledger.bookie_watcher import BookieWatcher
    from ledger.client import LedgerClient
    from ledger.placement import Placement
    from metadata.store import MetadataStore
    from runtime.env import Env


@dataclass(slots=True, frozen=True, kw_only=True)
class AutoRecoveryParts:
    """All of them are running ones."""

    config: AutoRecoveryConfig
    env: Env
    store: MetadataStore
    client: LedgerClient
    bookies: BookieClient
    watcher: BookieWatcher
    placement: Placement
    #: Where the bookies are that are there.
    locations: Callable[[], Mapping[BookieId, str]]
    #: On how many racks a write quorum is to be; the check of placements goes by both.
    min_racks: int = 1
    #: Where BookKeeper's tree is in the store.
    root: str = "/ledgers"

    @property
    def records(self) -> UnderReplication:
        """Who is marked, and who repairs it; made anew each time, as it keeps nothing."""
        return UnderReplication(self.store, self.root)

    @property
    def audit_marks(self) -> AuditMarks:
        """Which of the marks auditors alone made; keeps nothing either."""
        return AuditMarks(self.store, self.records, self.root)
