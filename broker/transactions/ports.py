"""What the transaction coordinator needs of its neighbours, as protocols.

The real parts are broker/producer_ids, broker/cluster's catalog and view, and who writes markers
into the partitions that this broker leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.coordinator.ports import Catalog
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.cluster.peers import BrokerPeers, Endpoint
    from broker.coordinator.ports import Leaders, Logs, Topic
    from wire.kafka.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse


class FreshIdSource(Protocol):
    async def take(self) -> int:
        """A producer id that nobody else ever gets. MetadataError."""


class Topics(Protocol):
    """The cluster's topics, as this broker has them in memory."""

    def get(self, name: str, /) -> Topic | None: ...
    async def catch_up(self) -> None:
        """Memory has all that was made or deleted before this call. MetadataError."""


class OwnPartitions(Protocol):
    """Markers for partitions that this broker leads."""

    def write_markers(
        self, request: WriteTxnMarkersRequest, done: Callable[[WriteTxnMarkersResponse], None]
    ) -> None:
        """As the handler of WriteTxnMarkers: `done` once each partition's marker is acknowledged or
        refused, possibly before this returns. A partition that is not here: as of a broker that
        does not lead it."""


@dataclass(frozen=True, slots=True)
class OtherBrokers:
    """Who leads what, and how to ask it. `listener`: by which brokers speak with each other."""

    leaders: Leaders
    listener: str
    node_id: int
    peers: BrokerPeers

    def leader(self, topic: str, partition: int) -> Endpoint | None:
        """None: nobody does now, or it cannot be reached by the listener."""
        return self.leaders.leader(topic, partition, self.listener)

    def is_own(self, endpoint: Endpoint) -> bool:
        return endpoint.node_id == self.node_id


class AllTopics(Catalog, Topics, Protocol):
    """broker/cluster's TopicCatalog is both."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What a coordinator stands on in its broker."""

    topics: AllTopics
    logs: Logs
    ids: FreshIdSource
    own: OwnPartitions
