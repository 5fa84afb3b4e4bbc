"""What the transaction coordinator needs of its neighbours, as protocols.

Part of the transaction coordinator, which is not served yet.

The real parts are broker/producer_ids, broker/cluster's catalog and view, and who writes markers
into the partitions that this broker leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.coordinator.ports import Topic
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
