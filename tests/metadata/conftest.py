"""The stores under test, and how each ends a session and begins the next on the same nodes.

ZooKeeper takes part if QUIRE_TEST_ZOOKEEPER says where one is (host:port): `make check` needs no
Java; compat_tests/test_zookeeper.py starts one and runs this folder against it.
"""

import os
import random
import uuid
from functools import partial

import pytest
import trio

from metadata.faulty import FaultyStore
from metadata.memory import MemoryStore, MemoryTree
from metadata.remote import RemoteOptions, RemoteStore
from metadata.served import MetadataServer
from metadata.sqlite import SqliteStore
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions
from runtime.env import real_env
from runtime.real_disk import RealDisk


class MemoryHarness:
    def __init__(self, nursery, directory):
        self._tree = MemoryTree()
        self._nursery = nursery

    async def open(self):
        store = MemoryStore(self._tree)
        await self._nursery.start(store.run)
        return store

    async def beside(self, store):
        return await self.open()


class FaultyHarness:
    """The simulation's, without faults: only far away."""

    def __init__(self, nursery, directory):
        self._tree = MemoryTree()
        self._nursery = nursery

    async def open(self):
        store = FaultyStore(self._tree, random.Random(7))
        await self._nursery.start(store.run)
        return store

    async def beside(self, store):
        return await self.open()


class LaggingHarness:
    """The simulation's, which reads from a server that is behind."""

    def __init__(self, nursery, directory, *, does_wait):
        self._tree = MemoryTree()
        self._nursery = nursery
        self._does_wait = does_wait

    async def open(self):
        store = FaultyStore(self._tree, random.Random(7))
        store.follower.lag(0.02 if self._does_wait else 1.0, does_wait=self._does_wait)
        await self._nursery.start(store.run)
        return store

    async def beside(self, store):
        return await self.open()


class SqliteHarness:
    def __init__(self, nursery, directory):
        self._file = str(directory / "metadata.sqlite")
        self._nursery = nursery

    async def open(self):
        store = SqliteStore(self._file, RealDisk().run)
        await self._nursery.start(store.run)
        return store

    async def beside(self, store):
        session = store.session()
        await self._nursery.start(session.run)
        return session


class SqliteSessionHarness:
    """A session of its own each time, on a store that goes on."""

    def __init__(self, nursery, directory):
        self._store = SqliteStore(str(directory / "metadata.sqlite"), RealDisk().run)
        self._nursery = nursery
        self._is_running = False

    async def open(self):
        if not self._is_running:
            self._is_running = True
            await self._nursery.start(self._store.run)
        session = self._store.session()
        await self._nursery.start(session.run)
        return session

    async def beside(self, store):
        return await self.open()


class RemoteHarness:
    """Over a socket, from a server on an SQLite file."""

    def __init__(self, nursery, directory):
        self._directory = directory
        self._nursery = nursery
        self._env = None

    async def _start(self):
        store = SqliteStore(str(self._directory / "metadata.sqlite"), RealDisk().run)
        await self._nursery.start(store.run)
        self._env = env = real_env()
        self._nursery.start_soon(env.turn.serve)
        await self._nursery.start(env.poller.run)
        await self._nursery.start(env.net.run)
        self.server = MetadataServer(env, str(self._directory / "socket"), store.session)
        await self._nursery.start(self.server.run)

    async def open(self):
        if self._env is None:
            await self._start()
        store = RemoteStore(self._env, RemoteOptions(str(self._directory / "socket")))
        await self._nursery.start(store.run)
        return store

    async def beside(self, store):
        return await self.open()


class ZooKeeperHarness:
    """A chroot of its own for every test."""

    def __init__(self, nursery, directory):
        chroot = f"/contract/{uuid.uuid4()}"
        hosts = os.environ["QUIRE_TEST_ZOOKEEPER"]
        self._options = ZooKeeperOptions(hosts, chroot)
        self._nursery = nursery

    async def open(self):
        store = ZooKeeperStore(self._options)
        await self._nursery.start(store.run)
        return store

    async def beside(self, store):
        return await self.open()


HARNESSES = {
    "memory": MemoryHarness,
    "faulty": FaultyHarness,
    "lagging": partial(LaggingHarness, does_wait=True),
    "lagging_by_leaps": partial(LaggingHarness, does_wait=False),
    "sqlite": SqliteHarness,
    "sqlite_session": SqliteSessionHarness,
    "remote": RemoteHarness,
}
if "QUIRE_TEST_ZOOKEEPER" in os.environ:
    HARNESSES["zookeeper"] = ZooKeeperHarness


@pytest.fixture(params=HARNESSES.values(), ids=HARNESSES)
def harness(request, nursery, tmp_path):
    """`await harness.open()` begins a session; close the one before first. `beside(store)` begins
    one while that store's lives."""
    return request.param(nursery, tmp_path)


@pytest.fixture
async def store(harness):
    store = await harness.open()
    yield store
    with trio.CancelScope(shield=True):
        await store.aclose()
