"""One partition on bookies in memory and in virtual time, whose owner can be stopped or crash; what
must be read, by a list that remembers everything; and Java's consumer.
"""

import contextlib
import random
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from broker.cluster.ownership import Incarnation
from broker.log.append.queue import Append
from broker.log.life.chain import Chain
from broker.log.life.keeper import Keeper, KeeperParts
from broker.log.life.takeover import ChainStores, Claim
from broker.log.partition import PartitionLog, SharedParts, State
from broker.log.settings import LogSettings
from broker.log.transactions.gate import CoordinatorAppend
from broker.log.transactions.origin import Origin
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore, MemoryTree
from metadata.shared_writes import SharedWrites
from runtime.env import Env
from runtime.turn import Turn
from tests.broker.log.test_partition import PATH, Config
from wire.bookkeeper.status import Status
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import build_batch, scan_batches
from wire.kafka.records.control import EndTransactionMarker
from wire.kafka.records.record import Record


class Verifier:
    """A coordinator's word: at once `answer`, or, if that is None, when `tell` is called."""

    def __init__(self):
        self.answer = ErrorCode.NONE
        self.asked = []
        self._waiting = []

    def ask(self, transactional_id, producer_id, producer_epoch, partitions, *, adds, done):
        self.asked.append((transactional_id, producer_id, producer_epoch, tuple(partitions), adds))
        if self.answer is None:
            self._waiting.append(done)
        else:
            done(self.answer)

    def tell(self, error=ErrorCode.NONE):
        """Answers the oldest question."""
        self._waiting.pop(0)(error)


class ClientAppend(Append):
    """A batch of a request with a transactional id."""

    __slots__ = ("finished_count", "origin")

    def __init__(self, records, origin):
        super().__init__(records)
        self.origin = origin
        self.finished_count = 0

    def finished(self):
        self.finished_count += 1


def make_batch(count, *, pid=-1, epoch=-1, sequence=-1, transactional=False, size=1):
    return memoryview(
        bytearray(
            build_batch(
                [Record(n, n, None, b"v" * size, []) for n in range(count)],
                base_timestamp=1000,
                producer_id=pid,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=transactional,
            )
        )
    )


@dataclass
class World:
    sim: SimpleNamespace
    nursery: trio.Nursery
    settings: LogSettings = field(default_factory=LogSettings)
    config: Config = field(default_factory=Config)
    verifier: Verifier | None = None
    is_hot: bool = True
    lives: int = 0

    async def start(self):
        self.rng = random.Random(1)
        self.tree = MemoryTree()
        self.bookies = self.sim.MemoryBookies("ab")
        self.counts = defaultdict(int)
        await MemoryStore(self.tree).create(PATH, Chain().to_bytes(), make_parents=True)
        await self.open()

    async def open(self):
        self.lives += 1
        self.env = Env(
            clock=self.sim.VirtualClock(), rng=self.rng, net=None, disk=None, turn=Turn()
        )
        self.wire = self.sim.Wire(self.rng)
        bookies = self.sim.BookieWire(self.bookies, self.wire, self.counts)
        if self.is_hot:
            bookies.read_entries_nowait = self._read_nowait
        store = MemoryStore(self.tree)
        ledgers = LedgerClient(
            store,
            bookies,
            self.env,
            LedgerClientConfig(),
            placement=RandomPlacement(lambda: list("ab"), self.rng),
        )
        self.scope = trio.CancelScope()
        topic = SimpleNamespace(
            name="t", id=UUID(int=1), internal=False, configs={}, replication_factor=None
        )
        self.shared = SharedParts.of(self.env, self.settings)
        self.shared.verifier = self.verifier
        self.log = PartitionLog(topic, 0, self.config, self.env, self.settings, self.shared)
        self.keeper = Keeper(
            self.log,
            Claim(PATH, Incarnation(1, f"{self.lives:032x}")),
            KeeperParts(ChainStores(store, ledgers, self.settings, SharedWrites(store)), self.env),
        )
        await self.nursery.start(self._live, bookies, ledgers)
        with trio.fail_after(60):
            await self.log.wait_loaded()
        assert self.log.state is State.ONLINE, self.log.last_failure

    def _read_nowait(self, bookie, ledger_id, first_entry_id, *, count_max, size_max):
        entries, size = [], 0
        for entry_id in range(first_entry_id, first_entry_id + count_max):
            status, entry = self.bookies.read(bookie, ledger_id, entry_id, 0)
            size += len(entry)
            if status is not Status.EOK or (entries and size > size_max):
                break
            entries.append(entry)
        return (Status.EOK, entries) if entries else None

    async def _live(self, bookies, ledgers, *, task_status):
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.env.turn.serve)
                nursery.start_soon(bookies.run)
                await nursery.start(ledgers.run)
                nursery.start_soon(self.keeper.run)
                task_status.started()

    async def restart(self):
        """A clean stop, then a new owner: the last ledger is sealed."""
        with trio.fail_after(60):
            await self.keeper.close()
        self.scope.cancel()
        await self.open()

    async def crash(self):
        """The owner vanishes: the last ledger is recovered."""
        self.wire.dead = True
        self.log.go_offline("crash")
        self.scope.cancel()
        await self.open()

    async def roll(self):
        """The open ledger is sealed and closed; the next batch opens another."""
        await self.settle()
        if self.log.writer is not None and self.log.segments[-1].size_bytes:
            before, self.config.segment_bytes = self.config.segment_bytes, 1
            self.log.call_keeper()
            with trio.fail_after(60):
                while self.log.writer is not None:
                    await trio.sleep(0.01)
            self.config.segment_bytes = before

    async def settle(self):
        """All that was queued is acknowledged, or waits for something else."""
        await trio.sleep(1)

    # -- appends -------------------------------------------------------------------------------

    def put(self, count=1, *, pid=-1, epoch=0, sequence=-1, transactional=True):
        """As a coordinator of ours would: nobody is asked. Gives the append."""
        if pid < 0:
            epoch, transactional = -1, False
        append = CoordinatorAppend(
            make_batch(count, pid=pid, epoch=epoch, sequence=sequence, transactional=transactional),
            lambda _: None,
        )
        self.log.submit(append, internal=True)
        return append

    def send(
        self, sequence, count=1, *, pid=7, epoch=0, version=12, transactional=True, size=1,
        is_named=True, name="id",
    ):  # fmt: skip
        """As a producer does. Gives the append."""
        records = make_batch(
            count, pid=pid, epoch=epoch, sequence=sequence, transactional=transactional, size=size
        )
        origin = Origin(name, version) if transactional and is_named else None
        append = ClientAppend(records, origin)
        self.log.submit(append)
        return append

    def end(self, pid=7, *, commit, epoch=0, version=0, coordinator_epoch=0):
        """A marker. Gives a list that its append will be in."""
        done = []
        marker = EndTransactionMarker(committed=commit, coordinator_epoch=coordinator_epoch)
        self.log.append_marker(pid, epoch, marker, version, done.append)
        return done

    # -- reads ---------------------------------------------------------------------------------

    async def fetch(self, offset, size_max=1 << 20, *, hot=False):
        """(headers of the batches, aborted rows, next offset) of a read_committed fetch."""
        log = self.log
        if hot:
            got = log.reader.read_nowait(offset, size_max, committed=True)
            assert got is not None
        else:
            got = await log.read(offset, size_max, committed=True)
        aborted = await log.reader.read_aborted(offset, got.next_offset)
        assert log.transactions.aborted.find_nowait(offset, got.next_offset) in (aborted, None)
        data = b"".join(got.parts)
        return list(scan_batches(data)), aborted, got.next_offset

    async def consume(self, offset=None, size_max=1 << 20):
        """Offsets that Java's consumer passes on, from `offset` up to the last stable offset."""
        position = self.log.log_start_offset if offset is None else offset
        found = []
        while position < self.log.last_stable_offset:
            headers, aborted, next_offset = await self.fetch(position, size_max)
            assert next_offset > position
            found += [each for each in passed_on(headers, aborted) if each >= position]
            position = next_offset
        return found


def passed_on(headers, aborted):
    """What Java's consumer makes of one answer: CompletedFetch.nextFetchedRecord. It knows of abort
    markers that they are none of a commit by their records, here by the rows' last offsets."""
    assert [each.first_offset for each in aborted] == sorted(each.first_offset for each in aborted)
    waiting = list(aborted)
    abort_markers = {each.last_offset for each in aborted}
    dropped = set()
    for header in headers:
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        if header.is_control:
            if header.base_offset in abort_markers:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            yield from range(header.base_offset, header.last_offset + 1)


class Everything:
    """The naive oracle: what is in the log, batch by batch, and what must be seen of it."""

    def __init__(self):
        self.end = 0
        self.records = {}  # offset -> number of its transaction, None: of none
        self.open = {}  # pid -> number of its transaction
        self.outcomes = {}  # number -> (pid, first, marker, committed)
        self.firsts = {}

    def put(self, count, pid=-1):
        number = None
        if pid >= 0:
            if pid not in self.open:
                self.open[pid] = len(self.firsts)
                self.firsts[self.open[pid]] = self.end
            number = self.open[pid]
        for offset in range(self.end, self.end + count):
            self.records[offset] = number
        self.end += count

    def mark(self, pid, committed):
        number = self.open.pop(pid, None)
        if number is not None:
            self.outcomes[number] = pid, self.firsts[number], self.end, committed
        self.end += 1

    def stable(self):
        """Where all is acknowledged."""
        return min([self.firsts[number] for number in self.open.values()], default=self.end)

    def committed(self, offset, stable):
        return [
            each
            for each, number in sorted(self.records.items())
            if offset <= each < stable and (number is None or self.outcomes[number][3])
        ]

    def aborted(self, offset, end):
        """(pid, first) of all that a fetch has to tell, by their first offsets."""
        found = [
            (first, pid)
            for pid, first, marker, committed in self.outcomes.values()
            if not committed and marker >= offset and first < end
        ]
        return [(pid, first) for first, pid in sorted(found)]


@contextlib.asynccontextmanager
async def open_world(sim, **options):
    async with trio.open_nursery() as nursery:
        world = World(sim, nursery, **options)
        await world.start()
        yield world
        nursery.cancel_scope.cancel()


@pytest.fixture
def txn(sim):
    """What these tests share."""
    return SimpleNamespace(
        open_world=lambda **options: open_world(sim, **options),
        Verifier=Verifier, Everything=Everything, LogSettings=LogSettings, Config=Config,
    )  # fmt: skip


@pytest.fixture
async def world(txn, autojump_clock):
    async with txn.open_world(verifier=Verifier()) as world:
        yield world
