"""Clients that ask every broker who is there, again and again, when sessions are over.

Between the end of all sessions and the first registration no broker is registered: an answer that
says so is what sim/client.py judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from sim.client import KafkaClient
    from sim.world import World

#: Less than a registration takes, which is several calls of the metadata.
PAUSE_SECONDS = 0.005


def ask_for(world: World, name: str, seconds: float) -> None:
    """From now on, as one client for each broker; `name` is nobody else's."""
    for broker in world.brokers:
        client = world.client(f"{name}-{broker.name}")
        client.seeds = [seed for seed in client.seeds if seed[0] == broker.name]
        world.nursery.start_soon(_ask, world, client, seconds)


async def _ask(world: World, client: KafkaClient, seconds: float) -> None:
    topic, partition = world.partitions[0]
    with trio.move_on_after(seconds):
        while not world.is_draining:
            client.forget(topic, partition)
            await client.try_leader(topic, partition)
            await trio.sleep(PAUSE_SECONDS)
    client.close()
