"""A client that asks for offsets by time, and judges what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.fetching import RETRY_SECONDS
from sim.workload import EARLIEST, THINK_SECONDS, Consumer
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import ListOffsetsRequest, ListOffsetsResponse
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic

if TYPE_CHECKING:
    from sim.history import Partition
    from sim.world import World

#: How far back it asks.
PAST_MS_MAX = 12_000


class Looker:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._reader = Consumer(world, name)

    async def run(self) -> None:
        world = self._world
        while not world.is_draining:
            partition = world.partitions[self._rng.randrange(len(world.partitions))]
            await self._look(partition, world.time_ms() - self._rng.randrange(PAST_MS_MAX))
            await trio.sleep(2 * THINK_SECONDS * self._rng.random())

    async def _look(self, partition: Partition, time_ms: int) -> None:
        history = self._world.history
        epoch = self._world.leader_epoch(partition)
        acked = history.acked_since(partition, time_ms)
        answer = await self._ask(partition, time_ms)
        if answer is None:
            return
        client = self._reader.client
        if client.leader_epoch(*partition) < epoch:
            # It was deposed before it was asked. Till its next write it does not know, and answers
            # from what it has, as Kafka's zombie leaders do: all that it acknowledged itself.
            self._world.trace.count("times looked up at a deposed leader")
            acked = history.known_to(client.leader(*partition), partition, acked)
        # Asked afterwards: what was deleted meanwhile need not have been found.
        start = await self._reader.offset(partition, EARLIEST)
        if start is None:
            return
        history.looked_up(partition, time_ms, answer, acked, start)
        self._world.trace.count("times looked up")
        self._world.made_progress(self.name)

    async def _ask(self, partition: Partition, time_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp); None if there was no answer, or an error."""
        client = self._reader.client
        asked = ListOffsetsPartition(partition_index=partition[1], timestamp=time_ms)
        topic = ListOffsetsTopic(name=partition[0], partitions=[asked])
        try:
            answer = await client.ask_leader(
                *partition, ListOffsetsRequest(replica_id=-1, topics=[topic]), ListOffsetsResponse
            )
        except Unanswered:
            await trio.sleep(RETRY_SECONDS)
            return None
        found = answer.topics[0].partitions[0]
        if found.error_code:
            self._reader.check_code(ErrorCode(found.error_code))
            client.forget(*partition)
            await trio.sleep(RETRY_SECONDS)
            return None
        return found.offset, found.timestamp
