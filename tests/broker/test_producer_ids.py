"""Producer ids: never the same twice, over brokers, restarts and conflicts."""

import pytest
import trio

from broker.producer_ids import BLOCK_SIZE, PATH, ProducerIds
from metadata.memory import MemoryStore, MemoryTree


@pytest.fixture
def open_store(nursery):
    tree = MemoryTree()

    async def open_one():
        store = MemoryStore(tree)
        await nursery.start(store.run)
        return store

    return open_one


async def test_dense_from_zero(open_store):
    ids = ProducerIds(await open_store(), "a")
    assert [await ids.take() for _ in range(2 * BLOCK_SIZE + 1)] == list(range(2 * BLOCK_SIZE + 1))


async def test_a_block_costs_one_write(open_store):
    store = await open_store()
    ids = ProducerIds(store, "a")
    await ids.take()
    version = (await store.get(PATH)).version
    for _ in range(BLOCK_SIZE - 1):
        await ids.take()
    assert (await store.get(PATH)).version == version
    await ids.take()
    node = await store.get(PATH)
    assert (node.version, node.data) == (version + 1, b"%d a" % (2 * BLOCK_SIZE))


async def test_a_restart_goes_on_with_the_next_block(open_store):
    first = ProducerIds(await open_store(), "a")
    assert await first.take() == 0
    assert await ProducerIds(await open_store(), "a").take() == BLOCK_SIZE


async def test_brokers_that_ask_at_the_same_time(open_store):
    """Compare-and-set conflicts at every refill; each broker has several askers."""
    brokers = [ProducerIds(await open_store(), str(n)) for n in range(4)]
    taken = []

    async def ask(ids):
        for _ in range(BLOCK_SIZE // 2):
            taken.append(await ids.take())
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for ids in brokers:
            for _ in range(5):
                nursery.start_soon(ask, ids)
    assert len(taken) == len(set(taken)) == 4 * 5 * BLOCK_SIZE // 2


async def test_an_asker_that_is_cancelled_takes_nothing_from_others(open_store):
    ids = ProducerIds(await open_store(), "a")
    with trio.CancelScope() as scope:
        scope.cancel()
        await ids.take()
    assert scope.cancelled_caught
    assert await ids.take() == 0
