"""The stores under test, and how each ends a session and begins the next on the same nodes.

ZooKeeper takes part if QUIRE_TEST_ZOOKEEPER says where one is (host:port): `make check` needs no
Java; compat_tests/test_zookeeper.py starts one and runs this folder against it.
"""

import os
import uuid

import pytest
import trio

from metadata.memory import MemoryStore, MemoryTree
from metadata.sqlite import SqliteStore
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions
from runtime.real_disk import RealDisk


class MemoryHarness:
    def __init__(self, nursery, directory):
        self._tree = MemoryTree()
        self._nursery = nursery

    async def open(self):
        store = MemoryStore(self._tree)
        await self._nursery.start(store.run)
        return store


class SqliteHarness:
    def __init__(self, nursery, directory):
        self._file = str(directory / "metadata.sqlite")
        self._nursery = nursery

    async def open(self):
        store = SqliteStore(self._file, RealDisk().run)
        await self._nursery.start(store.run)
        return store


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


HARNESSES = {"memory": MemoryHarness, "sqlite": SqliteHarness}
if "QUIRE_TEST_ZOOKEEPER" in os.environ:
    HARNESSES["zookeeper"] = ZooKeeperHarness


@pytest.fixture(params=HARNESSES.values(), ids=HARNESSES)
def harness(request, nursery, tmp_path):
    """`await harness.open()` begins a session; close the one before first."""
    return request.param(nursery, tmp_path)


@pytest.fixture
async def store(harness):
    store = await harness.open()
    yield store
    with trio.CancelScope(shield=True):
        await store.aclose()
