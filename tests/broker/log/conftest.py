"""Brokers of one cluster in one process and in virtual time: log managers with their catalogs on
one metadata tree and on bookies in memory. Each can be killed (nothing of it is heard any more),
frozen (all that it sends arrives later), and can see assignments late.
"""

import random
import uuid
from collections import Counter
from types import SimpleNamespace

import pytest
import trio

from broker.cluster.catalog import TopicCatalog
from broker.cluster.ownership import Incarnation
from broker.cluster.registry import ConfigRegistry
from broker.log.life.chain import Chain, new_document
from broker.log.manager import LogManager
from broker.log.settings import LogSettings
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError
from runtime.env import Env
from runtime.turn import Turn
from tests.seeded import VirtualClock, run_seeded
from wire.bookkeeper.entry import parse_header
from wire.bookkeeper.entry_set import EntrySet
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)
from wire.kafka.errors import KafkaError
from wire.kafka.records.batch import build_batch, iter_records, scan_batches
from wire.kafka.records.record import Record

TOPIC = "t"


class Wire:
    """Between one broker and everything else. A frozen one's messages wait; a dead one's are
    lost, and so are the answers."""

    def __init__(self, rng, delay_s=0.0):
        self.rng = rng
        self.delay_s = delay_s
        self.dead = False
        self._thawed = trio.Event()
        self._thawed.set()

    def freeze(self):
        if self._thawed.is_set():
            self._thawed = trio.Event()

    def thaw(self):
        self._thawed.set()

    async def travel(self):
        if self.delay_s:
            await trio.sleep(self.rng.random() * self.delay_s)
        else:
            await trio.lowlevel.checkpoint()
        await self._thawed.wait()
        if self.dead:
            await trio.sleep_forever()


class FaultyStore(MemoryStore):
    """`lost_share` of the changes end with an unknown outcome, done or not; while `away` nothing
    is done at all. `on_chain(path, before, after)` sees every change of a partition's document."""

    def __init__(self, tree, wire, counts, on_chain=None):
        super().__init__(tree)
        self.wire, self.counts, self.on_chain = wire, counts, on_chain
        self.lost_share = 0.0
        self.away = False

    async def _enter(self, *paths):
        await self.wire.travel()
        if self.away:
            self.counts["metadata away"] += 1
            raise MetadataUnavailableError(paths[0] if paths else "/", "away")
        await super()._enter(*paths)

    async def _change(self, path, function):
        is_lost = self.wire.rng.random() < self.lost_share
        if is_lost and self.wire.rng.random() < 0.5:
            await self._enter(path)
            self.counts["lost before"] += 1
            raise MetadataUnknownOutcomeError(path)
        result = await function()
        if is_lost:
            self.counts["lost after"] += 1
            raise MetadataUnknownOutcomeError(path)
        return result

    async def create(self, path, data=b"", **options):
        make = super().create
        return await self._change(path, lambda: make(path, data, **options))

    async def put(self, path, data, version):
        put = super().put

        async def change():
            is_chain = path.startswith("/quire/partitions/")
            await self.wire.travel()
            before = self.tree.table.find(path) if is_chain and self.on_chain else None
            result = await put(path, data, version)
            if before is not None:
                self.on_chain(path, Chain.from_bytes(data))
            return result

        return await self._change(path, change)

    async def delete(self, path, version=-1):
        delete = super().delete
        return await self._change(path, lambda: delete(path, version))


class MemoryBookies:
    """BookKeeper's rules for adds and fences, shared by all brokers; everything is durable."""

    def __init__(self, names):
        self.names = list(names)
        self.down = set()
        self.ledgers = {name: {} for name in names}  # bookie -> ledger id -> entries
        self.fenced = {name: set() for name in names}

    def add(self, bookie, ledger_id, entry_id, entry, flags):
        if bookie in self.down:
            return Status.EIO
        if ledger_id in self.fenced[bookie] and not flags & FLAG_RECOVERY_ADD:
            return Status.EFENCED
        header = parse_header(entry)
        assert (header.ledger_id, header.entry_id) == (ledger_id, entry_id)
        self.ledgers[bookie].setdefault(ledger_id, {})[entry_id] = entry
        return Status.EOK

    def read(self, bookie, ledger_id, entry_id, flags):
        if bookie in self.down:
            return Status.EIO, memoryview(b"")
        if flags & FLAG_DO_FENCING:
            self.fenced[bookie].add(ledger_id)
            self.ledgers[bookie].setdefault(ledger_id, {})
        entries = self.ledgers[bookie].get(ledger_id)
        if entries is None:
            return Status.ENOLEDGER, memoryview(b"")
        if entry_id == LAST_ADD_CONFIRMED_ENTRY:
            entry_id = max(entries, default=-1)
        if entry_id not in entries:
            return Status.ENOENTRY, memoryview(b"")
        return Status.EOK, memoryview(entries[entry_id])

    def list(self, bookie, ledger_id):
        if bookie in self.down:
            return Status.EIO, None
        entries = self.ledgers[bookie].get(ledger_id)
        if entries is None:
            return Status.ENOLEDGER, None
        return Status.EOK, EntrySet.of_entries(sorted(entries))


class BookieWire:
    """One broker's BookieClient: adds arrive in order, later, and are answered later."""

    def __init__(self, bookies, wire, counts):
        self.bookies, self.wire, self.counts = bookies, wire, counts
        self.sending, self._sent = trio.open_memory_channel(float("inf"))

    async def run(self):
        async for act in self._sent:
            await self.wire.travel()
            act()

    def add_entry(self, bookie, ledger_id, entry_id, master_key, entry, flags, done):
        data = b"".join(entry)

        def act():
            status = self.bookies.add(bookie, ledger_id, entry_id, data, flags)
            self.counts["fenced adds"] += status is Status.EFENCED
            self.sending.send_nowait(lambda: done(status))

        self.sending.send_nowait(act)

    async def read_entry(self, bookie, ledger_id, entry_id, *, flags=0, master_key=None):
        await self.wire.travel()
        answer = self.bookies.read(bookie, ledger_id, entry_id, flags)
        await self.wire.travel()
        return answer

    def read_entries_nowait(self, bookie, ledger_id, first_entry_id, *, count_max, size_max):
        return None

    async def read_entries(self, bookie, ledger_id, first_entry_id, *, count_max, size_max):
        await self.wire.travel()
        entries, size = [], 0
        for entry_id in range(first_entry_id, first_entry_id + count_max):
            status, entry = self.bookies.read(bookie, ledger_id, entry_id, 0)
            size += len(entry)
            if status is not Status.EOK or (entries and size > size_max):
                break
            entries.append(entry)
        await self.wire.travel()
        return (Status.EOK, entries) if entries else (status, [])

    async def list_entries(self, bookie, ledger_id):
        await self.wire.travel()
        answer = self.bookies.list(bookie, ledger_id)
        await self.wire.travel()
        return answer


class Assignments:
    """The truth, as a controller would write it: (topic id, partition) -> (broker, epoch)."""

    def __init__(self):
        self.truth = {}
        self.alive = set()
        self.brokers = []

    def assign(self, topic_id, partition, broker, *, rise=1):
        _, epoch = self.truth.get((topic_id, partition), (None, -1))
        self.truth[topic_id, partition] = broker, epoch + rise
        self.tell(topic_id)

    def tell(self, topic_id):
        for broker in self.brokers:
            broker.ownership.hear(topic_id)


class LateOwnership:
    """One broker's picture of the assignments, some time behind the truth."""

    def __init__(self, assignments, broker):
        self.assignments, self.broker = assignments, broker
        self.incarnation = broker.incarnation
        self.seen = dict(assignments.truth)
        self.seen_alive = set(assignments.alive)
        self.listeners = []
        self.lateness_s = 0.0
        self.is_deaf = False

    def hear(self, topic_id):
        if self.is_deaf:
            return
        self.broker.nursery.start_soon(self._hear, topic_id)

    async def _hear(self, topic_id):
        await trio.sleep(self.broker.wire.rng.random() * self.lateness_s)
        await self.broker.wire.travel()
        self.seen = dict(self.assignments.truth)
        self.seen_alive = set(self.assignments.alive)
        for listener in self.listeners:
            listener(topic_id)

    def assigned_epoch(self, topic_id, partition):
        node_id, epoch = self.seen.get((topic_id, partition), (None, -1))
        return epoch if node_id == self.incarnation.node_id else None

    def is_alive(self, incarnation):
        return incarnation in self.seen_alive

    def is_sweeper(self):
        return True

    async def confirm(self, topic_id, partition):
        await self.broker.store._enter("/assignments")
        node_id, _ = self.assignments.truth[topic_id, partition]
        is_ours = node_id == self.incarnation.node_id
        is_ours = is_ours and self.incarnation in self.assignments.alive
        self.broker.counts["confirmed" if is_ours else "not confirmed"] += 1
        return is_ours

    async def publish(self, topic_id, partition, leader_epoch):
        await self.broker.store._enter("/assignments")
        node_id, epoch = self.assignments.truth[topic_id, partition]
        if node_id == self.incarnation.node_id and epoch < leader_epoch:
            self.assignments.truth[topic_id, partition] = node_id, leader_epoch
            self.broker.counts["published"] += 1
            self.assignments.tell(topic_id)

    def subscribe(self, listener):
        self.listeners.append(listener)


class Broker:
    """One life of a broker."""

    def __init__(self, cluster, node_id):
        self.cluster = cluster
        self.counts = cluster.counts
        rng = cluster.rng
        self.incarnation = Incarnation(node_id, f"{rng.getrandbits(128):032x}")
        self.wire = Wire(rng, cluster.delay_s)
        self.store = FaultyStore(cluster.tree, self.wire, self.counts, cluster.on_chain)
        self.env = Env(clock=VirtualClock(), rng=rng, net=None, disk=None, turn=Turn())
        self.ownership = LateOwnership(cluster.assignments, self)
        self.ownership.lateness_s = cluster.lateness_s
        self.bookies = BookieWire(cluster.bookies, self.wire, self.counts)
        self.ledgers = LedgerClient(
            self.store,
            self.bookies,
            self.env,
            LedgerClientConfig(),
            placement=RandomPlacement(
                lambda: [n for n in cluster.bookies.names if n not in cluster.bookies.down],
                self.env.rng,
            ),
        )
        self.registry = ConfigRegistry(self.store, {})
        self.catalog = TopicCatalog(
            self.store, self.env, self.registry, initial_partition_document=new_document
        )
        self.manager = LogManager(
            self.catalog,
            self.store,
            self.ledgers,
            self.env,
            cluster.settings,
            ownership=self.ownership,
            retention_check_interval_ms=500,
        )
        self.stopped = trio.Event()

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        try:
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self.env.turn.serve)
                self.nursery.start_soon(self.bookies.run)
                await self.nursery.start(self.ledgers.run)
                async with trio.open_nursery() as inner:
                    self.inner = inner
                    await inner.start(self.registry.run)
                    await inner.start(self.catalog.run)
                    await inner.start(self.manager.run)
                    self.cluster.assignments.brokers.append(self)
                    self.cluster.assignments.alive.add(self.incarnation)
                    task_status.started()
                self.nursery.cancel_scope.cancel()
        finally:
            self.stopped.set()

    def _gone(self):
        assignments = self.cluster.assignments
        if self in assignments.brokers:
            assignments.brokers.remove(self)
        assignments.alive.discard(self.incarnation)
        for topic_id in {topic_id for topic_id, _ in assignments.truth}:
            assignments.tell(topic_id)

    async def kill(self):
        """It is not heard any more; what it thinks does not matter."""
        self.wire.dead = True
        self._gone()
        self.nursery.cancel_scope.cancel()
        self.inner.cancel_scope.cancel()

    async def stop(self):
        """Cleanly, without having handed over."""
        self.inner.cancel_scope.cancel()
        await self.stopped.wait()
        self._gone()

    def log(self, partition=0, topic=TOPIC):
        try:
            return self.manager.get(topic, partition)
        except KafkaError:
            return None


class Cluster:
    def __init__(self, seed=0, *, delay_s=0.0, lateness_s=0.0, settings=None):
        self.rng = random.Random(seed)
        self.delay_s, self.lateness_s = delay_s, lateness_s
        self.settings = settings or LogSettings()
        self.counts = Counter()
        self.tree = MemoryTree()
        self.bookies = MemoryBookies("abcd")
        self.assignments = Assignments()
        self.chains = {}  # path -> the last chain that was written
        self.owners = {}  # (path, leader epoch) -> incarnation
        self.topic = None

    def on_chain(self, path, chain):
        """What must hold of any two successive documents."""
        before = self.chains.get(path)
        if before is not None:
            assert chain.leader_epoch >= before.leader_epoch, "an epoch fell"
            if chain.leader_epoch > before.leader_epoch and before.owner is None:
                self.counts["taken over released"] += 1
            elif chain.leader_epoch > before.leader_epoch:
                self.counts["taken over from another" if before.owner != chain.owner
                            else "taken over from ourselves"] += 1  # fmt: skip
        if chain.owner is not None:
            owner = self.owners.setdefault((path, chain.leader_epoch), chain.owner)
            assert owner == chain.owner, "two owners in one epoch"
        else:
            self.counts["released"] += 1
        self.chains[path] = chain

    async def start(self, nursery, node_id):
        broker = Broker(self, node_id)
        await nursery.start(broker.run)
        return broker

    async def create_topic(self, broker, partitions, **configs):
        texts = {key.replace("_", "."): str(value) for key, value in configs.items()}
        texts.setdefault("min.insync.replicas", "2")
        self.topic = await broker.catalog.create(TOPIC, partitions, texts, replication_factor=3)
        return self.topic


def batch(*values, **options):
    records = [Record(n, 0, None, value, []) for n, value in enumerate(values)]
    return build_batch(records, base_timestamp=1_700_000_000_000, **options)


def records_of(parts):
    """(offset, value) of every record of a read's parts."""
    for part in parts:
        position = 0
        for header in scan_batches(part):
            body = part[position : position + header.size]
            position += header.size
            for record in iter_records(body, header, size_max=1 << 30):
                yield header.base_offset + record.offset_delta, record.value


async def read_all(log):
    """(offset, value) of every record of a log."""
    found, offset = [], log.log_start_offset
    while offset < log.high_watermark:
        got = await log.read(offset, 1 << 16)
        found += records_of(got.parts)
        assert got.next_offset > offset
        offset = got.next_offset
    return found


@pytest.fixture
def sim():
    """The classes and helpers of a simulated cluster."""
    return SimpleNamespace(
        Cluster=Cluster,
        batch=batch,
        records_of=records_of,
        read_all=read_all,
        new_uuid=uuid.uuid4,
        Wire=Wire,
        BookieWire=BookieWire,
        MemoryBookies=MemoryBookies,
        VirtualClock=VirtualClock,
        run_seeded=run_seeded,
    )
