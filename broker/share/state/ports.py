"""What the share coordinator needs of its neighbours, as protocols.

The real parts are broker/cluster's catalog and broker/log's LogManager.
"""

from __future__ import annotations

from typing import Protocol

from broker.coordinator.ports import Logs


class StateLogs(Logs, Protocol):
    """The partitions that this broker holds."""

    async def delete_records(self, topic: str, partition: int, offset: int, /) -> int:
        """The log begins at that offset, or above it already; the new beginning. KafkaError: it is
        not held here any more, or ends before that."""
