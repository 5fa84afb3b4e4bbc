"""Where partitions end, whoever leads them: for what a share group has left to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.peers import Endpoint
    from broker.coordinator.ports import Logs
    from broker.transactions.ports import OtherBrokers
    from wire.kafka.message import Message

LIST_OFFSETS_VERSION = 6
#: As timestamp: the end.
_LATEST = -1

_Place = tuple[str, int]


class PartitionEnds:
    """Keeps nothing. What a leader does not say within the time of `BrokerPeers` is not known."""

    def __init__(self, logs: Logs, brokers: OtherBrokers) -> None:
        self._logs = logs
        self._brokers = brokers

    async def read(self, partitions: Sequence[_Place]) -> dict[_Place, int]:
        """The offset after the last record that is acknowledged, by (topic, partition); of those
        that cannot be asked, none."""
        found: dict[_Place, int] = {}
        elsewhere: dict[int, tuple[Endpoint, list[_Place]]] = {}
        for topic, number in partitions:
            try:
                log = self._logs.get(topic, number)
            except KafkaError:
                leader = self._brokers.leader(topic, number)
                if leader is not None and not self._brokers.is_own(leader):
                    elsewhere.setdefault(leader.node_id, (leader, []))[1].append((topic, number))
                continue
            if log.state.value == "online":
                found[topic, number] = log.high_watermark
        async with trio.open_nursery() as nursery:
            for leader, places in elsewhere.values():
                nursery.start_soon(self._ask, leader, places, found)
        return found

    async def _ask(
        self, leader: Endpoint, places: Sequence[_Place], found: dict[_Place, int]
    ) -> None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, number in places:
            asked = ListOffsetsPartition(number, timestamp=_LATEST)
            topics.setdefault(topic, []).append(asked)
        request = ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic(topic, asked) for topic, asked in topics.items()]
        )
        came = trio.Event()
        answers: list[Message | None] = []

        def heard(answer: Message | None) -> None:
            answers.append(answer)
            came.set()

        self._brokers.peers.ask(leader, request, LIST_OFFSETS_VERSION, heard)
        await came.wait()
        (answer,) = answers
        if not isinstance(answer, ListOffsetsResponse):
            return
        for topic_answer in answer.topics:
            for each in topic_answer.partitions:
                if each.error_code == ErrorCode.NONE and each.offset >= 0:
                    found[topic_answer.name, each.partition_index] = each.offset
