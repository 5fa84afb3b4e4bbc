"""What a broker stands on, and what its handlers share: named once, and handed on whole.

`Foundation` is given to the broker by its composition. `Services` is what the broker makes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.durability import Bookies
    from broker.cluster.features import FinalizedFeatures
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import ClusterView
    from broker.groups.coordinator import GroupCoordinator
    from broker.handlers.txn_markers import TransactionMarkersHandler
    from broker.log.manager import LogManager
    from broker.node.member import ClusterMember
    from broker.node.security import Security
    from broker.node.share import ShareParts
    from broker.producer_ids import ProducerIds
    from broker.quotas.quotas import ClientQuotas
    from broker.telemetry.clients import TelemetryClients
    from broker.transactions.coordinator import TransactionCoordinator
    from broker.transactions.ports import OtherBrokers
    from broker.transactions.verifier import CoordinatorVerifier
    from broker.unsent import UnsentAnswers
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
    #: Whether this broker may become the controller of its cluster.
    may_be_controller: bool = True


@dataclass(frozen=True, slots=True)
class Transactions:
    """What answers requests about transactions."""

    coordinator: TransactionCoordinator
    features: FinalizedFeatures
    #: Whom partitions ask about transactions.
    verifier: CoordinatorVerifier
    #: How coordinators ask others.
    brokers: OtherBrokers


@dataclass(frozen=True, slots=True)
class Services:
    """What answers requests, below the handlers."""

    registry: ConfigRegistry
    catalog: TopicCatalog
    logs: LogManager
    coordinator: GroupCoordinator
    view: ClusterView
    timers: Timers
    transactions: Transactions
    producer_ids: ProducerIds
    markers: TransactionMarkersHandler
    quotas: ClientQuotas
    telemetry: TelemetryClients
    security: Security
    share: ShareParts
    answers: UnsentAnswers
    #: None: this broker is the whole cluster.
    member: ClusterMember | None = None
