"""Names and ids of topics, as a client of the simulation knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wire.kafka.messages import MetadataRequest, MetadataResponse
from wire.kafka.messages.metadata import MetadataRequestTopic

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from sim.client import KafkaClient
    from sim.history import Partition


class _Assigned(Protocol):
    topic_id: uuid.UUID
    partitions: list[int]


class TopicIds:
    def __init__(self) -> None:
        self._names: dict[uuid.UUID, str] = {}
        self._ids: dict[str, uuid.UUID] = {}

    async def look_up(self, client: KafkaClient, topics: Iterable[str]) -> None:
        """Asks for those that are not known; what does not exist stays unknown."""
        names = sorted(set(topics).difference(self._ids))
        if not names:
            return
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        request.allow_auto_topic_creation = False
        got = await client.ask_any(request, MetadataResponse)
        for found in got.topics:
            if not found.error_code and found.name is not None:
                self._names[found.topic_id] = found.name
                self._ids[found.name] = found.topic_id

    def names(self) -> list[str]:
        return sorted(self._ids)

    def name(self, topic_id: uuid.UUID) -> str:
        return self._names[topic_id]

    def id(self, name: str) -> uuid.UUID:
        return self._ids[name]

    def partitions(self, assigned: Iterable[_Assigned]) -> list[Partition]:
        return [
            (self._names[each.topic_id], number) for each in assigned for number in each.partitions
        ]

    def grouped(self, partitions: Iterable[Partition]) -> list[tuple[uuid.UUID, list[int]]]:
        numbers: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            numbers.setdefault(topic, []).append(number)
        return [(self._ids[topic], some) for topic, some in numbers.items()]
