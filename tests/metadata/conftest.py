"""The stores under test, and how each ends a session and begins the next on the same nodes."""

import pytest
import trio

from metadata.memory import MemoryStore, MemoryTree
from metadata.sqlite import SqliteStore
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


@pytest.fixture(params=[MemoryHarness, SqliteHarness], ids=["memory", "sqlite"])
def harness(request, nursery, tmp_path):
    """`await harness.open()` begins a session; close the one before first."""
    return request.param(nursery, tmp_path)


@pytest.fixture
async def store(harness):
    store = await harness.open()
    yield store
    with trio.CancelScope(shield=True):
        await store.aclose()
