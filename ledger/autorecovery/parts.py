"""What auditor, checks and repair of one process share; `AutoRecovery` is given all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.autorecovery.audit_marks import AuditMarks
    from ledger.autorecovery.config import AutoRecoveryConfig
    from ledger.bookie_client import BookieClient, BookieId
    from ledger.bookie_watcher import BookieWatcher
    from ledger.client import LedgerClient
    from ledger.placement import Placement
    from ledger.underreplication import UnderReplication
    from metadata.store import MetadataStore
    from runtime.env import Env


@dataclass(slots=True, frozen=True)
class AutoRecoveryParts:
    config: AutoRecoveryConfig
    env: Env
    store: MetadataStore
    #: Where BookKeeper's tree is in the store.
    root: str
    records: UnderReplication
    audit_marks: AuditMarks
    client: LedgerClient
    bookies: BookieClient
    watcher: BookieWatcher
    placement: Placement
    #: Where the bookies are that are there.
    locations: Callable[[], Mapping[BookieId, str]]
    #: On how many racks a write quorum is to be.
    min_racks: int
