"""What a broker stands on, and what its handlers share: named once, and handed on whole.

`Foundation` is given to the broker by its composition. `Services` is what the broker makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.durability import Bookies
    from broker.cluster.features import FinalizedFeatures
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import ClusterView
    from broker.groups.coordinator import GroupCoordinator
    from broker.log.manager import LogManager
    from broker.node.member import ClusterMember
    from broker.transactions.coordinator import TransactionCoordinator
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from runtime.env import Env
    from runtime.timers import Timers


@dataclass(frozen=True, slots=True)
class Foundation:
    """All of it runs before the broker starts and until it has stopped."""

    env: Env
    store: MetadataStore
    ledgers: LedgerClient
    #: Which of them take writes now.
    bookies: Bookies
    #: What clients are told that their data are in; whose disk is shown.
    data_directory: str


@dataclass(frozen=True, slots=True)
class Services:
    """What answers requests, below the handlers."""

    registry: ConfigRegistry
    catalog: TopicCatalog
    logs: LogManager
    coordinator: GroupCoordinator
    view: ClusterView
    timers: Timers
    #: None: this broker is the whole cluster.
    member: ClusterMember | None = None
    #: None: transactions are not served, which they are by no broker yet, as offsets in them and
    #: compaction of what they left are missing. Transactional ids are refused then.
    transactions: TransactionCoordinator | None = None
    features: FinalizedFeatures | None = None
