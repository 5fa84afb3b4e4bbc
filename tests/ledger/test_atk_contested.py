"""A connection whose bookie proved who it is does not end because another one claims its address."""

import pytest
import trio

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_addresses import following_client, register, world  # noqa: F401
from wire.bookkeeper.status import Status


async def test_a_proven_connection_outlives_a_claim_to_its_address(world):  # noqa: F811
    node = world.first
    await register(world.store, "b1", *node.address)
    watcher, bookies = await following_client(world)
    assert (await bookies.read_entry("b1", 7, 0))[0] is Status.ENOLEDGER
    read = node.server._processor.read
    held = []
    node.server._processor.read = lambda *request: held.append(request)
    answers = []

    async def ask():
        answers.append((await bookies.read_entry("b1", 7, 0))[0])

    world.nursery.start_soon(ask)
    while not held:
        await trio.sleep(0.01)
    # A bookie that was here before, whose session is not over; or one that is configured wrongly.
    await register(world.store, "b9", *node.address)
    while watcher.writable != {"b1", "b9"}:
        await trio.sleep(0.01)
    await trio.sleep(0.2)
    read(*held[0])
    with trio.fail_after(5):
        while not answers:
            await trio.sleep(0.01)
    assert answers == [Status.ENOLEDGER]
