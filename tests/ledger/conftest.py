"""Naive bookies in memory, to try the ledger client's rules on; tests/integration has real ones."""

import random
from dataclasses import dataclass, field

import pytest
import trio

from ledger.bookie_client import FLAG_DEFERRED_SYNC, DiskSpace, LacAnswer, LacRecord
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from runtime.env import Env
from runtime.turn import Turn
from wire.bookkeeper.entry import parse_header
from wire.bookkeeper.entry_set import EntrySet
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)


@dataclass
class StoredLedger:
    master_key: bytes
    fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)
    unsynced: set[int] = field(default_factory=set)  # deferred adds that were not forced yet
    explicit_lac: bytes | None = None
    has_lost: bool = False

    @property
    def lac(self):
        lacs = [parse_header(entry).last_add_confirmed for entry in self.entries.values()]
        if self.explicit_lac is not None:
            lacs.append(int.from_bytes(self.explicit_lac[8:16], "big", signed=True))
        return max(lacs, default=-1)


class NaiveBookie:
    """BookKeeper's rules for adds, fences and forces, in the fewest lines. All is durable but what
    was added with deferred sync: `lose_power` drops it."""

    def __init__(self):
        self.ledgers: dict[int, StoredLedger] = {}

    def lose_power(self):
        for ledger in self.ledgers.values():
            for entry_id in ledger.unsynced:
                ledger.entries.pop(entry_id, None)
            ledger.has_lost |= bool(ledger.unsynced)
            ledger.unsynced.clear()

    def add(self, ledger_id, entry_id, master_key, entry, flags):
        ledger = self.ledgers.setdefault(ledger_id, StoredLedger(master_key))
        if ledger.master_key != master_key:
            return Status.EUA
        if ledger.fenced and not flags & FLAG_RECOVERY_ADD:
            return Status.EFENCED
        header = parse_header(entry)
        assert (header.ledger_id, header.entry_id) == (ledger_id, entry_id)
        ledger.entries[entry_id] = entry
        if flags & FLAG_DEFERRED_SYNC:
            ledger.unsynced.add(entry_id)
        else:
            ledger.unsynced.discard(entry_id)
        return Status.EOK

    def read(self, ledger_id, entry_id, flags, master_key):
        if flags & FLAG_DO_FENCING:
            ledger = self.ledgers.setdefault(ledger_id, StoredLedger(master_key))
            if ledger.master_key != master_key:
                return Status.EUA, memoryview(b"")
            ledger.fenced = True
            ledger.unsynced.clear()  # the fence is journaled behind them
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return Status.ENOLEDGER, memoryview(b"")
        if entry_id == LAST_ADD_CONFIRMED_ENTRY:
            entry_id = max(ledger.entries, default=-1)
        if entry_id not in ledger.entries:
            return Status.ENOENTRY, memoryview(b"")
        return Status.EOK, memoryview(ledger.entries[entry_id])


class NaiveBookies:
    """A BookieClient on naive bookies. `held` bookies keep a writer's adds back (`release`),
    `dead` ones refuse all, `silent` ones never answer. With `delay_s`, requests take random
    (virtual) time to arrive and answers to return."""

    def __init__(self, names, seed=0):
        self.bookies = {name: NaiveBookie() for name in names}
        self.rng = random.Random(seed)
        self.dead: set[str] = set()
        self.silent: set[str] = set()
        self.held: set[str] = set()
        self.lost_replies: set[str] = set()  # adds are done, but the ordinary ones not answered
        self.answers: dict[tuple[str, int], Status] = {}  # (bookie, entry id) -> forced answer
        self.free_bytes: dict[str, int] = {}
        self.reads: list[tuple[str, int]] = []  # (bookie, first entry id), as asked
        self.refused_entries: set[int] = set()  # of single reads that found their bookie dead
        self.queue = []
        self.delay_s = 0.0
        self.nursery = None
        self.add_count = 0

    def add_entry(self, bookie, ledger_id, entry_id, master_key, entry, flags, done):
        self.add_count += 1
        data = b"".join(entry)

        def act():
            if bookie in self.silent:
                return
            status = self.answers.get((bookie, entry_id))
            if status is None and bookie in self.dead:
                status = Status.EIO
            if status is None:
                status = self.bookies[bookie].add(ledger_id, entry_id, master_key, data, flags)
            if bookie not in self.lost_replies or flags & FLAG_RECOVERY_ADD:
                self._answer(done, status)

        if bookie in self.held and not flags & FLAG_RECOVERY_ADD:
            self.queue.append((bookie, entry_id, act))
        elif self.delay_s:
            self.nursery.start_soon(self._later, act)
        else:
            act()

    def _answer(self, done, status):
        if self.delay_s:
            self.nursery.start_soon(self._later, lambda: done(status))
        else:
            done(status)

    async def _later(self, function):
        await trio.sleep(self.rng.random() * self.delay_s)
        function()

    def release(self, *, bookie=None, entry_id=None):
        """Lets held adds through, oldest first."""
        kept, freed = [], []
        for item in self.queue:
            matches = bookie in (None, item[0]) and entry_id in (None, item[1])
            (freed if matches else kept).append(item)
        self.queue = kept
        for _, _, act in freed:
            act()
        return len(freed)

    async def read_entry(self, bookie, ledger_id, entry_id, *, flags=0, master_key=None):
        await self._travel(bookie)
        if bookie in self.dead:
            self.refused_entries.add(entry_id)
            return Status.EIO, memoryview(b"")
        answer = self.bookies[bookie].read(ledger_id, entry_id, flags, master_key)
        await self._travel(bookie)
        return answer

    async def _travel(self, bookie):
        if bookie in self.silent:
            await trio.sleep_forever()
        if self.delay_s:
            await trio.sleep(self.rng.random() * self.delay_s)
        else:
            await trio.lowlevel.checkpoint()

    def read_entries_nowait(self, bookie, ledger_id, first_entry_id, *, count_max, size_max):
        if bookie in self.dead:
            return Status.EIO, []
        if bookie in self.silent:
            return None
        entries, size = [], 0
        for entry_id in range(first_entry_id, first_entry_id + count_max):
            status, entry = self.bookies[bookie].read(ledger_id, entry_id, 0, None)
            size += len(entry)
            if status is not Status.EOK or (entries and size > size_max):
                break
            entries.append(entry)
        return (Status.EOK, entries) if entries else (status, [])

    async def read_entries(self, bookie, ledger_id, first_entry_id, *, count_max, size_max):
        self.reads.append((bookie, first_entry_id))
        await self._travel(bookie)
        return self.read_entries_nowait(
            bookie, ledger_id, first_entry_id, count_max=count_max, size_max=size_max
        )

    # -- what v3 has more ------------------------------------------------------------------------

    async def _known(self, bookie, ledger_id):
        """(status, ledger) once the request has travelled there."""
        await self._travel(bookie)
        if bookie in self.dead:
            return Status.EIO, None
        ledger = self.bookies[bookie].ledgers.get(ledger_id)
        return (Status.ENOLEDGER if ledger is None else Status.EOK), ledger

    async def wait_lac(self, bookie, ledger_id, previous_lac, *, timeout_ms, with_entry=False):
        status, ledger = await self._known(bookie, ledger_id)
        if ledger is None:
            return LacAnswer(status)
        with trio.move_on_after(timeout_ms / 1000):
            while ledger.lac <= previous_lac and not ledger.fenced and bookie not in self.dead:
                await trio.sleep(0.001)
        if bookie in self.dead:
            return LacAnswer(Status.EIO)
        return LacAnswer(Status.EOK, ledger.lac)

    async def read_lac(self, bookie, ledger_id):
        status, ledger = await self._known(bookie, ledger_id)
        if ledger is None:
            return LacRecord(status)
        last = max(ledger.entries, default=None)
        return LacRecord(status, ledger.explicit_lac, ledger.entries.get(last))

    async def write_lac(self, bookie, ledger_id, last_add_confirmed, master_key, packet):
        status, ledger = await self._known(bookie, ledger_id)
        if ledger is not None:
            ledger.explicit_lac = packet
        return status

    async def force_ledger(self, bookie, ledger_id):
        status, ledger = await self._known(bookie, ledger_id)
        if ledger is not None:
            ledger.unsynced.clear()
            if ledger.has_lost:
                # A real client knows it from the connection that broke since the ack.
                status = Status.EIO
        await self._travel(bookie)
        return status

    async def bookie_info(self, bookie):
        await self._travel(bookie)
        if bookie in self.dead:
            return DiskSpace(Status.EIO)
        return DiskSpace(Status.EOK, 1000, self.free_bytes.get(bookie, 500))

    async def list_entries(self, bookie, ledger_id):
        status, ledger = await self._known(bookie, ledger_id)
        return status, None if ledger is None else EntrySet.of_entries(sorted(ledger.entries))

    def corrupt(self, bookie, ledger_id, entry_id):
        entries = self.bookies[bookie].ledgers[ledger_id].entries
        damaged = bytearray(entries[entry_id])
        damaged[-1] ^= 0x40
        entries[entry_id] = bytes(damaged)

    def holders(self, ledger_id, entry_id):
        return {
            name
            for name, bookie in self.bookies.items()
            if ledger_id in bookie.ledgers and entry_id in bookie.ledgers[ledger_id].entries
        }


class VirtualClock:
    """trio's, so that a MockClock moves it."""

    def time_ms(self):
        return int(trio.current_time() * 1000)

    def monotonic(self):
        return trio.current_time()


class World:
    """Bookies a, b, c ..., a metadata store, a turn that is served, and a client."""

    def __init__(self, names="abcdef", seed=0, **config):
        self.bookies = NaiveBookies(names, seed)
        self.names = list(names)
        rng = random.Random(seed)
        self.env = Env(clock=VirtualClock(), rng=rng, net=None, disk=None, turn=Turn())
        self.store = MemoryStore()
        self.config = LedgerClientConfig(**config)
        self.client = self.new_client(self.store)

    def new_client(self, store=None):
        return LedgerClient(
            store or MemoryStore(self.store.tree),
            self.bookies,
            self.env,
            self.config,
            placement=RandomPlacement(lambda: self.names, self.env.rng),
        )

    async def start(self, nursery):
        self.bookies.nursery = nursery
        nursery.start_soon(self.env.turn.serve)
        await nursery.start(self.client.run)

    async def create(self, *sizes, **keywords):
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        return await self.client.create_ledger(**dict(zip(names, sizes, strict=True)), **keywords)

    async def metadata(self, ledger_id):
        return (await self.client.manager.read(ledger_id)).metadata


class Acks:
    """Collects what `done` was told."""

    def __init__(self):
        self.told: list[tuple[int, object]] = []

    def __call__(self, entry_id, error):
        self.told.append((entry_id, error))

    @property
    def ids(self):
        return [entry_id for entry_id, error in self.told if error is None]

    @property
    def errors(self):
        return [error for _, error in self.told if error is not None]


@pytest.fixture
async def world(nursery):
    world = World()
    await world.start(nursery)
    return world


@pytest.fixture
def new_world():
    """The class, for tests that need a seed, other bookies, or a nursery of their own."""
    return World


@pytest.fixture
def acks():
    return Acks()


@pytest.fixture
def new_acks():
    return Acks
