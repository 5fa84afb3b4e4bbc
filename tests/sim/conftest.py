"""A world of bookies and ledger clients alone, in which a test decides what happens to each
message: named scenarios of the ledger protocol.

The bookies, ledger clients, network and metadata are those of the simulation; between a client and
the network stands `Fates`, and ensembles are chosen in the order of the bookies' numbers.
"""

import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.network.client import NetworkBookieClient
from ledger.placement.policy import TooFewBookiesError
from metadata.faulty import FaultyStore, StoreFaults
from runtime.env import Env
from runtime.running import running
from runtime.sim_disk import DiskFaults, SimDisk
from runtime.turn import Turn
from sim import preset
from sim.course import Course
from sim.history import Violation
from sim.nodes import BOOKIE_PORT
from sim.nodes import ROOT as LEDGERS
from sim.runner import Outcome, run_world
from sim.shape import Shape
from sim.trace import Trace
from sim.world import World
from wire.bookkeeper.status import Status

SCRIPT_SECONDS = 120


def bookie_id(number):
    return f"bookie-{number}:{BOOKIE_PORT}"


class Fates:
    """A BookieClient: the real one, but for the adds and reads whose fate was fixed.

    `lost`: does not arrive, no answer. `failed`: `release` refuses it, as a bookie does whose disk
    is full. `late`: arrives, and its answer waits for `release`. Each by the bookie's number and
    the entry's id."""

    def __init__(self, bookies):
        self._bookies = bookies
        self.lost = set()
        self.failed = set()
        self.late = set()
        #: Bookie's number -> by how many seconds its answers to reads are late.
        self.slow_reads = {}
        self._held = {}
        self._released = set()

    def __getattr__(self, name):
        return getattr(self._bookies, name)

    def add_entry(self, bookie, ledger_id, entry_id, master_key, entry, flags, done):
        number = int(bookie.partition(":")[0].rpartition("-")[2])
        key = (number, entry_id)
        if key in self.lost:
            return
        if key in self.failed:
            self._hold(key, partial(done, Status.EREADONLY))
            return
        if key in self.late:
            done = partial(self._late, key, done)
        self._bookies.add_entry(bookie, ledger_id, entry_id, master_key, entry, flags, done)

    def _late(self, key, done, status):
        self._hold(key, partial(done, status))

    def _hold(self, key, tell):
        if key in self._released:
            tell()
        else:
            self._held[key] = tell

    def release(self, number, entry_id):
        self._released.add((number, entry_id))
        tell = self._held.pop((number, entry_id), None)
        if tell is not None:
            tell()

    def is_held(self, number, entry_id):
        return (number, entry_id) in self._held

    async def read_entry(self, bookie, ledger_id, entry_id, **options):
        answer = await self._bookies.read_entry(bookie, ledger_id, entry_id, **options)
        number = int(bookie.partition(":")[0].rpartition("-")[2])
        await trio.sleep(self.slow_reads.get(number, 0))
        return answer


class InOrder:
    """Placement: the first bookies that are free, by number."""

    def __init__(self, bookies):
        self._bookies = bookies

    def _choose(self, count, excluded):
        chosen = [bookie for bookie in self._bookies() if bookie not in excluded][:count]
        if len(chosen) < count:
            raise TooFewBookiesError(f"{count} are needed, there are {chosen}")
        return chosen

    async def new_ensemble(self, ensemble_size, _write_size, _ack_size, excluded=()):
        return tuple(self._choose(ensemble_size, excluded))

    async def replace(self, ensemble, failed_indexes, _write_size, _ack_size, excluded):
        chosen = iter(self._choose(len(failed_indexes), {*ensemble, *excluded}))
        return tuple(
            next(chosen) if index in failed_indexes else bookie
            for index, bookie in enumerate(ensemble)
        )


class Client:
    """A ledger client on a host of its own."""

    def __init__(self, world, name):
        self.turn = Turn()
        self.store = FaultyStore(
            world.tree,
            world.rng_for(f"{name}/store"),
            world.store_faults,
            session_timeout_seconds=preset.SESSION_TIMEOUT_SECONDS,
        )
        net = world.network.host(name, self.turn)
        disk = SimDisk(world.rng_for(f"{name}/disk"), DiskFaults())
        clock = world.bookies[0].clock
        self.env = Env(clock=clock, rng=world.rng_for(name), net=net, disk=disk, turn=self.turn)
        self._watcher = BookieWatcher(self.store, LEDGERS)
        self.network = NetworkBookieClient.following(
            self.env, self._watcher, preset.network_config()
        )
        self.fates = Fates(self.network)
        self.ledgers = LedgerClient(
            self.store,
            self.fates,
            self.env,
            preset.ledger_config(LEDGERS),
            placement=InOrder(lambda: sorted(self._watcher.writable)),
        )
        #: Entry id -> payload, of what was acknowledged to this client.
        self.acked = {}
        self.errors = {}

    @property
    def writable(self):
        return self._watcher.writable

    async def start(self, stack):
        await stack.enter_async_context(running(self.turn.serve, needs_start=False))
        for service in (self.env.net, self.store, self._watcher, self.network, self.ledgers):
            await stack.enter_async_context(running(service.run))
        await self.ledgers.manager.ensure_layout()

    def append(self, writer, count=1):
        for _ in range(count):
            payload = b"entry %d" % (writer.last_add_pushed + 1)

            def done(entry_id, error, payload=payload):
                if error is None:
                    self.acked[entry_id] = payload
                else:
                    self.errors[entry_id] = error

            writer.append_nowait((payload,), done)


class ScriptedCourse(Course):
    async def _run(self, _nursery):
        await self._world.play()


class LedgerWorld(World):
    """Bookies only; the script does the rest, and starts the nodes of auto-recovery."""

    def __init__(self, script, bookies, witness, recoverers):
        shape = Shape(
            bookies=bookies, brokers=0, spare_brokers=0, witness=witness, recoverers=recoverers
        )
        super().__init__(1, [], shape, Trace(), StoreFaults())
        self._script = script

    async def play(self):
        for bookie in self.bookies:
            bookie.start()
        await self.until(lambda: all(bookie.is_serving for bookie in self.bookies))
        with trio.fail_after(SCRIPT_SECONDS):
            async with AsyncExitStack() as self._stack:
                await self._script(self)

    async def ledger_client(self, name):
        client = Client(self, name)
        await client.start(self._stack)
        return client

    @staticmethod
    async def until(condition):
        while not condition():  # virtual time costs nothing
            await trio.sleep(0.01)

    async def start_again(self, *numbers):
        for number in numbers:
            self.bookies[number - 1].start()
        await self.until(lambda: all(bookie.is_serving for bookie in self.bookies))

    async def judge(self, client, ledger_id, acked):
        """Closes the ledger, by recovery if need be. Violation unless each of `acked` is in it, and
        on as many bookies of its ensemble as its ack quorum."""
        reader = await client.ledgers.open_ledger(ledger_id, recover=True)
        metadata = reader.metadata
        for entry_id, payload in acked.items():
            if entry_id > metadata.last_entry_id:
                raise Violation(
                    "lost", f"entry {entry_id} was acked, the end is {metadata.last_entry_id}"
                )
            copies = [
                bookie
                for bookie in metadata.ensemble_at(entry_id)
                if (await client.fates.read_entry(bookie, ledger_id, entry_id))[0] is Status.EOK
            ]
            if len(copies) < metadata.ack_quorum_size:
                raise Violation("thin", f"entry {entry_id} is on {copies} of {metadata.segments}")
            (found,) = await reader.read(entry_id, count_max=1, size_max=1000)
            if found != payload:
                raise Violation("diverging", f"entry {entry_id} is {bytes(found)!r}")


@pytest.fixture
def run_script():
    """`run_script(script, bookies=5, witness=0, recoverers=0)`: raises what `await script(world)`
    raised."""

    def run(script, bookies=5, witness=0, recoverers=0):
        result = run_world(LedgerWorld(script, bookies, witness, recoverers), course=ScriptedCourse)
        if result.outcome is not Outcome.FINE:
            raise result.error

    return run
