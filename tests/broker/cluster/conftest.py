"""A catalog and a registry on a real metadata store in memory."""

import random

import pytest

from broker.cluster.catalog import TopicCatalog
from broker.cluster.registry import ConfigRegistry
from metadata.memory import MemoryStore, MemoryTree
from runtime.env import Env, RealClock

DOCUMENT = b'{"document":"of broker/log"}'


def make_env(seed=0):
    return Env(clock=RealClock(), rng=random.Random(seed), net=None, disk=None, turn=None)


class Node:
    """What one broker knows; several may share one tree, as brokers share a ZooKeeper."""

    def __init__(self, tree, static, seed):
        self.store = MemoryStore(tree)
        self.env = make_env(seed)
        self.registry = ConfigRegistry(self.store, static)
        self.catalog = TopicCatalog(
            self.store, self.env, self.registry, initial_partition_document=lambda: DOCUMENT
        )
        self.events = []
        self.catalog.subscribe(lambda event: self.events.append((event.change, event.topic.name)))

    async def load(self):
        await self.registry.load()
        await self.catalog.load()


@pytest.fixture
def open_node(nursery):
    """`await open_node()` is a broker that just started; the same tree unless one is given."""
    tree = MemoryTree()

    async def open_one(static=None, *, tree=tree):
        open_one.count += 1
        node = Node(tree, static or {}, open_one.count)
        await nursery.start(node.store.run)
        await node.load()
        return node

    open_one.count = 0
    return open_one


@pytest.fixture
async def node(open_node):
    return await open_node()
