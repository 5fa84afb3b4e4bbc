"""Which copies a bookie gives up, by the metadata; and with auto-recovery around it."""

import random
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.known_ledgers import CollectionRefusedError
from bookie.space.gc_config import GcConfig
from bookie.storage.index import MemoryIndex
from joined.ledger_gc import MetadataLedgers
from joined.local_bookie import LocalBookieClient
from joined.over_replicated import SurplusCopies
from ledger.autorecovery.config import AutoRecoveryConfig
from ledger.autorecovery.parts import AutoRecoveryParts
from ledger.autorecovery.service import AutoRecovery
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.metadata import LedgerManager, ledger_path
from ledger.placement import RandomPlacement
from ledger.underreplication import UnderReplication
from metadata.faulty import FaultyStore, StoreFaults
from metadata.memory import MemoryStore, MemoryTree
from runtime.env import Env
from runtime.sim_clock import SimClock
from runtime.sim_disk import SimDisk
from runtime.turn import Turn
from wire.bookkeeper.entry import DigestType
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, serialize
from wire.bookkeeper.records import BookieServiceInfo, Endpoint, encode_service_info
from wire.bookkeeper.status import Status

HOURS = 10_000.0
KIB = 1024
OURS = "b1"
NAMES = ("b1", "b2", "b3", "b4")


def new_env():
    return Env(clock=SimClock(), rng=random.Random(1), net=None, disk=None, turn=Turn())


def ledger_of(*segments, state=LedgerState.CLOSED):
    return LedgerMetadata(
        2,
        2,
        1,
        tuple(segments),
        state=state,
        last_entry_id=20 if state is LedgerState.CLOSED else -1,
        length=21 if state is LedgerState.CLOSED else 0,
        digest_type=DigestType.CRC32C,
    )


async def register(store, *names, folder="available"):
    for name in names:
        data = encode_service_info(BookieServiceInfo((Endpoint("bookie", "127.0.0.1", 1),)))
        await store.create(f"/ledgers/{folder}/{name}", data, make_parents=True)


@pytest.fixture
async def parts(nursery):
    """A leader's session, and a bookie's on a follower hours behind; all bookies are there."""
    env, tree = new_env(), MemoryTree()
    leader = MemoryStore(tree)
    manager = LedgerManager(leader, env)
    await manager.ensure_layout()
    await register(leader, "b1", "b2", "b3")
    await register(leader, "b4", folder="available/readonly")
    store = FaultyStore(tree, random.Random(2), StoreFaults())
    await nursery.start(store.run)
    ours = LedgerManager(store, env)
    surplus = SurplusCopies(store, ours, OURS)
    known = MetadataLedgers(ours, 0, 0.0, surplus)
    given_up = []

    async def give_up(ledger_ids):
        given_up.append(list(ledger_ids))

    async def ask(*ledger_ids):
        given_up.clear()
        await known.over_replicated(ledger_ids, give_up)
        return [each for some in given_up for each in some]

    async def make(*segments, **changes):
        return (await manager.create(ledger_of(*segments, **changes), None))[0]

    records = UnderReplication(leader)
    await records.ensure_layout()
    return SimpleNamespace(
        leader=leader, store=store, manager=manager, known=known, records=records,
        ask=ask, make=make,
    )  # fmt: skip


async def test_only_a_closed_ledger_that_names_it_nowhere(parts, autojump_clock):
    elsewhere = await parts.make((0, ("b2", "b3")))
    read_only = await parts.make((0, ("b2", "b4")), (7, ("b3", "b2")))
    kept = [
        await parts.make((0, ("b1", "b2"))),
        await parts.make((0, ("b1", "b2")), (5, ("b2", "b3"))),
        await parts.make((0, ("b2", "b3")), (5, ("b3", "b1"))),
        await parts.make((0, ("b2", "b3")), state=LedgerState.OPEN),
        await parts.make((0, ("b2", "b3")), state=LedgerState.IN_RECOVERY),
        await parts.make((0, ("b2", "gone"))),
        777,
    ]
    assert await parts.ask(elsewhere, read_only, *kept) == [elsewhere, read_only]
    assert await parts.records.locks() == []


async def test_a_marked_one_is_kept(parts, autojump_clock):
    ledger_id = await parts.make((0, ("b2", "b3")))
    await parts.records.mark(ledger_id, ["b2"], 1)
    assert await parts.ask(ledger_id) == []
    task = await parts.records.task(ledger_id)
    await parts.records.finish(ledger_id, task.version)
    assert await parts.ask(ledger_id) == [ledger_id]


async def test_a_worker_is_not_disturbed(parts, autojump_clock):
    ledger_id = await parts.make((0, ("b2", "b3")))
    assert await parts.records.lock(ledger_id, "worker")
    assert await parts.ask(ledger_id) == []
    assert await parts.records.lock_holder(ledger_id) == "worker"
    await parts.records.unlock(ledger_id)

    held = []

    async def give_up(_ledger_ids):
        held.append(await parts.records.lock(ledger_id, "worker"))

    await parts.known.over_replicated([ledger_id], give_up)
    assert held == [False], "nor does a worker begin meanwhile"
    assert await parts.records.lock(ledger_id, "worker")


async def test_a_follower_that_is_behind_loses_no_copy(parts, autojump_clock):
    """It shows the ledger as it was before a worker gave it to this bookie again, and not that it
    is marked."""
    given, marked = [await parts.make((0, ("b2", "b3"))) for _ in range(2)]
    await parts.store.sync("/ledgers")
    parts.store.follower.lag(HOURS, does_wait=False)
    before = await parts.manager.read(given)
    data = serialize(ledger_of((0, ("b2", "b1"))))
    await parts.leader.put(ledger_path("/ledgers", given), data, before.version)
    await parts.records.mark(marked, ["b2"], 1)
    assert await parts.ask(given, marked) == []


async def test_a_bookie_that_is_called_otherwise_keeps_all(parts, autojump_clock):
    """Its id was changed, and the ledgers still have the old one."""
    ledger_id = await parts.make((0, ("b2", "b3")))
    await parts.leader.delete("/ledgers/available/b1")
    assert await parts.ask(ledger_id) == []
    await register(parts.leader, "b1")
    await parts.leader.delete("/ledgers/available/b2")
    assert await parts.ask(ledger_id) == []


async def test_more_than_are_locked_at_a_time(parts, autojump_clock):
    ids = [await parts.make((0, ("b2", "b3"))) for _ in range(230)]
    assert await parts.ask(*ids) == ids
    assert await parts.records.locks() == []


async def test_without_metadata_nothing_goes(parts, autojump_clock):
    ledger_id = await parts.make((0, ("b2", "b3")))
    parts.store.faults.unavailable_share = 1.0
    with pytest.raises(CollectionRefusedError):
        await parts.ask(ledger_id)


# With real bookies and auto-recovery.


class Node:
    """A bookie's disk and index, which outlive its processes."""

    def __init__(self, cluster, name, number):
        self.cluster, self.name = cluster, name
        self.disk = SimDisk(random.Random(number))
        self.index = MemoryIndex()
        self.scope = None
        self.bookie = None

    async def start(self):
        cluster = self.cluster
        env = Env(
            clock=cluster.env.clock,
            rng=random.Random(3),
            net=None,
            disk=self.disk,
            turn=cluster.env.turn,
        )
        store = MemoryStore(cluster.tree)
        manager = LedgerManager(store, env)
        config = BookieConfig(
            bookie_id=self.name,
            instance_id="i",
            journal_directory="/journal",
            ledger_directory="/ledgers",
            journal_size_bytes=16 * KIB,
            journal_alignment_bytes=256,
            journal_group_size_max_bytes=2 * KIB,
            journal_queue_size_max_bytes=8 * KIB,
            write_cache_size_bytes=16 * KIB,
            write_cache_segment_size_bytes=2 * KIB,
            flush_entry_log_bytes=4 * KIB,
            entry_log_size_limit_bytes=16 * KIB,
            entry_size_max_bytes=4 * KIB,
            read_ahead_size_bytes=4 * KIB,
            held_adds_max=16,
            held_adds_size_max_bytes=16 * KIB,
            flush_interval_ms=500,
            disk_reserve_size_bytes=0,
            gc=GcConfig(
                wait_ms=1_000,
                over_replicated_wait_ms=2_000,
                minor_interval_ms=0,
                major_interval_ms=0,
            ),
        )
        known = MetadataLedgers(manager, 0, 1.0, SurplusCopies(store, manager, self.name))
        bookie = Bookie(config, env, index=self.index, known_ledgers=known)
        self.scope = trio.CancelScope()

        async def run(task_status):
            with self.scope:
                try:
                    await bookie.run(task_status=task_status)
                except OSError:
                    if self.bookie is bookie:
                        raise

        await cluster.nursery.start(run)
        self.bookie = cluster.bookies[self.name] = bookie
        await register(store, self.name)

    async def kill(self):
        bookie, self.bookie = self.bookie, None
        del self.cluster.bookies[self.name]
        self.disk.crash()
        self.index.crash()
        bookie.crash()
        self.scope.cancel()
        await self.cluster.store.delete(f"/ledgers/available/{self.name}")

    async def entries(self, ledger_id):
        return list(await self.bookie.entries(ledger_id) or ())


class Cluster:
    def __init__(self, nursery):
        self.nursery = nursery
        self.env = new_env()
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.bookies = {}
        self.nodes = {name: Node(self, name, n) for n, name in enumerate(NAMES)}

    async def start(self):
        self.nursery.start_soon(self.env.turn.serve)
        self.manager = LedgerManager(self.store, self.env)
        await self.manager.ensure_layout()
        for node in self.nodes.values():
            await register(self.store, node.name, folder="cookies")
            await node.start()
        watcher = BookieWatcher(self.store)
        await self.nursery.start(watcher.run)
        placement = RandomPlacement(lambda: sorted(watcher.writable), self.env.rng)
        clients = LocalBookieClient(self.bookies)
        self.client = LedgerClient(self.store, clients, self.env, placement=placement)
        await self.nursery.start(self.client.run)
        self.records = UnderReplication(self.store)
        parts = AutoRecoveryParts(
            config=AutoRecoveryConfig(bookie_check_interval_s=0, ledger_check_interval_s=0),
            env=self.env,
            store=self.store,
            client=self.client,
            bookies=clients,
            watcher=watcher,
            placement=placement,
            locations=dict,
        )
        await self.nursery.start(AutoRecovery(parts, bookie_id="auditor").run)

    async def write(self, count):
        writer = await self.client.create_ledger(
            ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
        )
        told = []
        for number in range(count):
            writer.append_nowait([b"%d" % number, bytes(50)], lambda *each: told.append(each))
        await until(lambda: len(told) == count)
        await writer.close()
        return writer.ledger_id

    async def ensembles(self, ledger_id):
        segments = (await self.manager.read(ledger_id)).metadata.segments
        return {each for _, ensemble in segments for each in ensemble}


async def until(condition):
    with trio.fail_after(120):
        while not condition():
            await trio.sleep(0.1)


async def until_async(condition):
    with trio.fail_after(120):
        while not await condition():
            await trio.sleep(0.1)


@asynccontextmanager
async def new_cluster():
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        await cluster.start()
        yield cluster
        nursery.cancel_scope.cancel()


async def test_a_bookie_that_comes_back_gives_up_what_others_have(autojump_clock):
    """And gets it again, when one of those is lost, over power failures."""
    async with new_cluster() as cluster:
        ledger_id = await cluster.write(20)
        lost = sorted(await cluster.ensembles(ledger_id))[0]
        for _ in range(4):
            node = cluster.nodes[lost]
            await node.kill()

            async def is_repaired(lost=lost):
                return lost not in await cluster.ensembles(ledger_id)

            await until_async(is_repaired)
            await node.start()
            assert len(await node.entries(ledger_id)) == 20, "it comes back with its copies"

            async def is_given_up(node=node):
                return not await node.entries(ledger_id)

            await until_async(is_given_up)
            named = sorted(await cluster.ensembles(ledger_id))
            assert len(named) == 3
            for name in named:
                assert len(await cluster.nodes[name].entries(ledger_id)) == 20
            # The next one's copies can only go to the one that has just given them up.
            lost = named[0]
        reader = await cluster.client.open_ledger(ledger_id, password=b"", recover=False)
        assert reader.last_add_confirmed == 19


async def test_the_last_copies_are_nobodys_to_give_up(autojump_clock):
    """The bookies that the ledger names are away: the old copies stay until they are back."""
    async with new_cluster() as cluster:
        ledger_id = await cluster.write(20)
        node = cluster.nodes[sorted(await cluster.ensembles(ledger_id))[0]]
        await node.kill()

        async def is_repaired():
            return node.name not in await cluster.ensembles(ledger_id)

        await until_async(is_repaired)
        await cluster.records.disable()
        named = sorted(await cluster.ensembles(ledger_id))
        await cluster.nodes[named[0]].kill()
        await node.start()
        await trio.sleep(20)
        assert len(await node.entries(ledger_id)) == 20
        status, _ = await node.bookie.read_entry(ledger_id, 0)
        assert status is Status.EOK
