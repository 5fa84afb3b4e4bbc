"""Topics and chains that are larger than what ZooKeeper takes in one request, on a real one.

As test_zookeeper.py, this imports our packages: what is tested against is ZooKeeper.
"""

import random
from dataclasses import replace

import pytest
from harness.zookeeper import ZooKeeper
from harness.zookeeper_store import opened

from broker.cluster.catalog import TopicCatalog
from broker.cluster.ownership import Incarnation
from broker.cluster.registry import ConfigRegistry
from broker.log.life.chain import Chain, new_document
from broker.log.life.document import read_chain, write_chain
from broker.log.life.ledger_info import LedgerInfo
from broker.log.settings import LogSettings
from runtime.env import Env, RealClock

PARTITIONS = 10_000
LEDGERS = 12_000


@pytest.fixture(scope="module")
def zookeeper(scratch):
    server = ZooKeeper(scratch / "zookeeper-sizes", {}).start()
    yield server
    server.discard()


async def catalog_on(store):
    env = Env(clock=RealClock(), rng=random.Random(1), net=None, disk=None, turn=None)
    registry = ConfigRegistry(store, {})
    await registry.load()
    catalog = TopicCatalog(store, env, registry, initial_partition_document=new_document)
    await catalog.load()
    return catalog


@pytest.mark.trio
@pytest.mark.timeout(300)
async def test_a_topic_of_10_000_partitions(zookeeper):
    async with opened(zookeeper.hosts, "/topics-of-a-chroot-with-a-long-name") as store:
        catalog = await catalog_on(store)
        topic = await catalog.create("t", PARTITIONS)
        assert len(await store.children(f"/quire/partitions/{topic.id}")) == PARTITIONS
        assert await store.children("/quire/staged") == []
        small = await catalog.create("u", 1)
        await catalog.add_partitions("u", PARTITIONS)
        assert len(await store.children(f"/quire/partitions/{small.id}")) == PARTITIONS
        again = await catalog_on(store)
        assert [each.partition_count for each in again.all()] == [PARTITIONS] * 2
        await again.delete("t")
        assert len(await store.children(f"/quire/deleted/{topic.id}")) == PARTITIONS


def info(number):
    offset = 10**12 + 10 * number
    return LedgerInfo(
        2_000_000_000 + number, offset, 7, 1_700_000_000_000, offset + 9,
        5000, 1 << 30, 1_700_000_000_000, offset, 4998, 4999,
    )  # fmt: skip


@pytest.mark.trio
@pytest.mark.timeout(300)
async def test_a_chain_of_12_000_ledgers(zookeeper):
    path, settings = "/quire/partitions/x/0", LogSettings()
    async with opened(zookeeper.hosts, "/chains") as store:
        known = Chain(7, 10**12, owner=Incarnation(1, "0f" * 16))
        await store.create(path, known.to_bytes(), make_parents=True)
        version = 0
        for start in range(0, LEDGERS, 100):
            added = tuple(map(info, range(start, start + 100)))
            longer = replace(known, ledgers=(*known.ledgers, *added))
            known, version = await write_chain(store, path, known, longer, version, settings)
        read, read_version = await read_chain(store, path)
        assert (read, read_version) == (known, version)
        assert read.ledgers == tuple(map(info, range(LEDGERS)))
        # From the front they go again, archives and all.
        raised = read.with_log_start(read.closed_end_offset)
        gone = raised.with_deleted(frozenset(raised.all_deleting))
        await write_chain(store, path, read, gone, version, settings)
        assert await store.children("/quire/partitions/x") == ["0"]
