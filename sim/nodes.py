"""Nodes: the real parts of a bookie and of a broker, composed on a simulated machine.

The composition follows quire/bookie_node.py and quire/broker_node.py, line by line but for the
edges. A node has a machine that stays (disk, index, clock) and one *life* at a time (net, metadata
session, tasks). A crash cuts the life off from the world at once, in the middle of whatever it is
doing, and then cancels what is left of it; that may run on for a while, and reaches nobody.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import trio

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS
from bookie.cookie import FILE_NAME, Cookie
from bookie.errors import BookieStartError
from bookie.server.registration import MetadataCookie, Registration
from bookie.server.server import BookieServer, BookieServerSettings
from bookie.space.disk_usage import DiskState
from bookie.start import all_directories
from broker.cluster.config_file import load
from broker.cluster.durability import Bookies
from broker.node.foundation import Foundation
from broker.node.parts import start_broker
from joined.damage_marks import DamageMarks
from joined.ledger_gc import MetadataLedgers
from joined.over_replicated import SurplusCopies
from ledger.autorecovery.parts import AutoRecoveryParts
from ledger.autorecovery.service import AutoRecovery
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.metadata import LedgerManager
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from metadata.faulty import FaultyStore
from metadata.store import MetadataError
from runtime.env import Env
from runtime.running import running
from runtime.sim_clock import SimClock
from runtime.sim_disk import READ_ERROR, DiskFaults, SimDisk
from runtime.sim_disk_life import DiskLife
from runtime.turn import Turn
from sim import preset
from sim.damage import REFUSALS_MAX
from sim.node_index import DAMAGED, NodeIndex
from sim.trace import OWNER
from sim.transactions.owners import watch_owner
from sim.witness import WitnessedBookies
from wire.bookkeeper.records import BookieServiceInfo, Endpoint, parse_instance_id

if TYPE_CHECKING:
    from broker.log.compact.cleaner import LogCleaner
    from broker.log.manager import LogManager
    from ledger.bookie_client import BookieClient
    from runtime.sim_net import SimNet
    from sim.world import World

ROOT = "/ledgers"
BOOKIE_PORT = 3181
BROKER_PORT = 9092
#: Starts that a bookie owes its owner to refuse, in a world without damaged disks.
REFUSALS = ("is registered by another process", "no space", "disk is full")
#: What a disk's sync and a worker thread's job take when nothing is wrong.
SYNC_SECONDS = (50e-6, 400e-6)
RUN_SECONDS = (50e-6, 300e-6)


class Life:
    """One life of a node."""

    def __init__(self, env: Env, net: SimNet, store: FaultyStore) -> None:
        self.env = env
        self.net = net
        self.store = store
        self.scope = trio.CancelScope(shield=True)
        self.stop = trio.Event()
        self.started = trio.Event()
        self.ended = trio.Event()
        self.is_crashed = False


def leaf(error: BaseException) -> BaseException:
    """The first error of a group's groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def brief(error: BaseException) -> str:
    return f"{type(leaf(error)).__name__}: {leaf(error)}"


class Node(ABC):
    """`start` gives it a life; `crash` or `stop` ends that."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        #: Where it is in the network: at first a host of its own (World.exchange_hosts).
        self.host = name
        self.clock = SimClock()
        self.rng = random.Random(f"{world.seed}/{name}")
        self.disk = SimDisk(
            random.Random(f"{world.seed}/{name}/disk"), self.disk_faults(), observe=self._on_disk
        )
        self.life: Life | None = None
        self.life_count = 0
        #: It is down on purpose, until something wants it.
        self.is_spare = False
        #: Lives in a row that ended before they served.
        self._refusal_count = 0

    @staticmethod
    def disk_faults() -> DiskFaults:
        return DiskFaults(sync_seconds=SYNC_SECONDS, run_seconds=RUN_SECONDS, cached_share=0.9)

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def is_serving(self) -> bool:
        return self.life is not None and self.life.started.is_set()

    def start(self) -> None:
        assert self.life is None, f"{self.name} lives"
        world = self.world
        turn = Turn()
        self.life_count += 1
        store = FaultyStore(
            world.tree,
            random.Random(f"{world.seed}/{self.name}/store/{self.life_count}"),
            world.store_faults,
            session_timeout_seconds=preset.SESSION_TIMEOUT_SECONDS,
            observe=self._on_metadata,
        )
        world.followers.joined(self, store)
        net = world.network.host(self.host, turn)
        env = Env(
            clock=self.clock,
            rng=random.Random(f"{world.seed}/{self.name}/life/{self.life_count}"),
            net=net,
            disk=DiskLife(self.disk),
            turn=turn,
        )
        self.life = Life(env, net, store)
        world.trace.event(self.name, "start", f"life {self.life_count}")
        world.lives[self.life] = None
        world.nursery.start_soon(self._live, self.life)

    def crash(self, *, is_silent: bool) -> None:
        """Power failure (`is_silent`), or the end of the process: then the disk forgets nothing."""
        life = self.life
        if life is None:
            return
        self.life = None
        life.is_crashed = True
        world = self.world
        world.trace.event(self.name, "crash", "power" if is_silent else "killed")
        world.trace.count("crashes")
        life.store.die()
        self._expire_later(life.store)
        life.net.crash(is_silent=is_silent)
        self.lose_memory(with_power=is_silent)
        world.freezer.thaw(self)
        world.timers.after(0, partial(self.abandon, life))

    def abandon(self, life: Life) -> None:
        """Ends what is left of a life that was cut off."""
        life.scope.cancel()

    def lose_memory(self, *, with_power: bool) -> None:
        if with_power:
            self.disk.crash()
        else:
            self.disk.kill()

    def stop(self) -> None:
        """A clean stop, in order."""
        if self.life is not None:
            self.world.trace.event(self.name, "stop")
            self.world.trace.count("clean stops")
            self.life.stop.set()

    def expire_session(self) -> None:
        if self.life is not None:
            self.world.trace.event(self.name, "session ends")
            self.life.store.expire()

    def _expire_later(self, store: FaultyStore) -> None:
        self.world.timers.after(preset.SESSION_TIMEOUT_SECONDS, store.expire)

    def _on_disk(self, event: str, detail: str) -> None:
        self.world.effect(self, event, detail)

    def _on_metadata(self, event: str, path: str) -> None:
        self.world.effect(self, f"meta {event}", path)

    async def _live(self, life: Life) -> None:
        OWNER.set(self.name)
        try:
            with life.scope:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(running(life.env.turn.serve, needs_start=False))
                    await stack.enter_async_context(running(life.env.net.run))
                    await stack.enter_async_context(running(life.store.run))
                    await self.serve(life, stack)
                    life.started.set()
                    self._refusal_count = 0
                    self.world.trace.event(self.name, "serves")
                    await life.stop.wait()
                await life.store.aclose()
        except Exception as error:  # what it means depends on how this life ended
            if not life.is_crashed:
                self._failed(error, life)
        finally:
            life.ended.set()
            self.world.lives.pop(life, None)
        if self.life is life:
            self._end(life)

    def _failed(self, error: Exception, life: Life) -> None:
        """It ended by itself: as it should with a disk that failed, or by a fault of the code. For
        what cannot be read nobody ends who serves."""
        was_serving = life.started.is_set()
        is_read = any(words in str(leaf(error)) for words in (READ_ERROR, DAMAGED))
        if not self.is_expected(error) or (was_serving and is_read):
            self.world.crashed(self, error)
        self.world.trace.event(self.name, "gives up", brief(error))
        self.world.trace.count("gave up")
        if was_serving or self.world.rotten != self.name:
            return
        self._refusal_count += 1
        if self._refusal_count == REFUSALS_MAX and not self.is_spare:
            self.is_spare = True
            self.world.trace.event(self.name, "is lost")
            self.world.trace.count("bookies lost to damage")

    def _end(self, life: Life) -> None:
        """The process is gone: the kernel closes its sockets; its disk keeps what was written."""
        self.life = None
        life.is_crashed = True
        life.store.die()
        self._expire_later(life.store)
        life.net.crash(is_silent=False)
        self.lose_memory(with_power=False)
        self.world.trace.event(self.name, "ended")

    def is_expected(self, error: BaseException) -> bool:
        """Whether this end is what the node owes its owner when its disk or metadata fail."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.is_expected(each) for each in error.exceptions)
        if isinstance(error, BookieStartError):
            return self.world.rotten == self.name or any(words in str(error) for words in REFUSALS)
        return isinstance(error, (OSError, MetadataError))

    @abstractmethod
    async def serve(self, life: Life, stack: AsyncExitStack) -> None:
        """Starts what the node is in `stack`; returns when it serves."""


class BookieNode(Node):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.index = NodeIndex()
        self.bookie: Bookie | None = None
        self._cut_off: list[Bookie] = []

    def lose_memory(self, *, with_power: bool) -> None:
        super().lose_memory(with_power=with_power)
        self.index = self.index.survivor()
        if self.bookie is not None:
            self.world.gather(self.bookie)
            self._cut_off.append(self.bookie)
            self.bookie = None

    def abandon(self, life: Life) -> None:
        # A clean stop would wait for syncs that never report.
        for bookie in self._cut_off:
            bookie.crash()
        self._cut_off.clear()
        super().abandon(life)

    async def serve(self, life: Life, stack: AsyncExitStack) -> None:
        env, store = life.env, life.store
        manager = LedgerManager(store, env, ROOT)
        await manager.ensure_layout()
        instance_id = parse_instance_id((await store.get(f"{ROOT}/INSTANCEID")).data)
        bookie_id = f"{self.name}:{BOOKIE_PORT}"
        settings = preset.bookie_config(bookie_id, instance_id, self.world.shape)
        cookie = MetadataCookie(
            store,
            ROOT,
            Cookie(bookie_id, settings.journal_directory, settings.ledger_directory, instance_id),
        )
        has_cookie = any(env.disk.exists(f"{p}/{FILE_NAME}") for p in all_directories(settings))
        await cookie.check(has_cookie, is_expansion_allowed=False)
        marks = DamageMarks(manager, bookie_id)
        surplus = SurplusCopies(store, manager, bookie_id)
        rate = settings.gc.metadata_rate
        known = MetadataLedgers(manager, rate, preset.ABSENT_SECONDS_MIN, surplus)
        bookie = Bookie(settings, env, index=self.index, known_ledgers=known)
        self.bookie = bookie
        self.world.trace.count("bookie lives")
        bookie.on_damage(marks.found)
        await stack.enter_async_context(running(marks.run))
        await stack.enter_async_context(running(bookie.run))
        await cookie.keep(bool(bookie.list_ledgers()))
        if self.world.witness is not None:
            self.world.witness.watch_bookie(self, bookie)
        server = BookieServer(
            bookie,
            env,
            BookieServerSettings(self.host, BOOKIE_PORT),
            lambda: env.disk.usage(settings.ledger_directory),
        )
        await stack.enter_async_context(running(server.run))
        endpoint = Endpoint("bookie", self.host, BOOKIE_PORT)
        registration = Registration(store, ROOT, bookie_id, BookieServiceInfo((endpoint,)))
        registration.set_read_only(bookie.is_read_only)
        bookie.disks.on_change(
            lambda state: registration.set_read_only(state is DiskState.READ_ONLY)
        )

        async def register(*, task_status: trio.TaskStatus[None]) -> None:
            await registration.run(
                int(preset.SESSION_TIMEOUT_SECONDS * 1000), task_status=task_status
            )

        await stack.enter_async_context(running(register))


async def start_ledgers(
    node: Node, life: Life, stack: AsyncExitStack
) -> tuple[LedgerClient, BookieWatcher, NetworkBookieClient, BookieClient]:
    """A ledger client over the network, what it knows bookies by, the network, and the network
    before the world's witness."""
    env, store = life.env, life.store
    watcher = BookieWatcher(store, ROOT)
    await stack.enter_async_context(running(watcher.run))
    network = NetworkBookieClient.following(env, watcher, preset.network_config())
    await stack.enter_async_context(running(network.run))
    bookies: BookieClient = network
    if node.world.witness is not None:
        bookies = WitnessedBookies(network, node.world.witness, node)
    ledgers = LedgerClient(
        store,
        bookies,
        env,
        preset.ledger_config(ROOT),
        placement=RandomPlacement(lambda: sorted(watcher.writable), env.rng),
    )
    watcher.on_arrival(ledgers.health.came)
    await ledgers.manager.ensure_layout()
    await stack.enter_async_context(running(ledgers.run))
    return ledgers, watcher, network, bookies


class BrokerNode(Node):
    def __init__(self, world: World, name: str, node_id: int) -> None:
        super().__init__(world, name)
        self.node_id = node_id
        self.ledgers: LedgerClient | None = None
        self.bookies: NetworkBookieClient | None = None
        self.cleaner: LogCleaner | None = None
        self.logs: LogManager | None = None

    @staticmethod
    def disk_faults() -> DiskFaults:
        return DiskFaults()  # a broker keeps nothing

    def lose_memory(self, *, with_power: bool) -> None:
        super().lose_memory(with_power=with_power)
        self.world.gather_client(self.ledgers, self.bookies)
        self.world.gather_cleaner(self.cleaner)
        self.ledgers = self.bookies = self.cleaner = self.logs = None

    async def serve(self, life: Life, stack: AsyncExitStack) -> None:
        env, store = life.env, life.store
        config = load(
            "",
            {
                **preset.broker_properties(self.world.shape),
                "node.id": str(self.node_id),
                "listeners": f"PLAINTEXT://{self.name}:{BROKER_PORT}",
            },
            BOOKIE_CONFIGS,
        )
        ledgers, watcher, self.bookies, _ = await start_ledgers(self, life, stack)
        self.ledgers = ledgers
        self.world.trace.count("broker lives")
        parts = await start_broker(
            Foundation(env, store, ledgers, Bookies(lambda: watcher.writable), "/"),
            config,
            stack,
            in_cluster=self.world.shape.is_cluster,
            log_settings=preset.log_settings(self.world.shape),
        )
        self.cleaner, self.logs = parts.cleaner, parts.logs
        watcher.subscribe(parts.logs.bookies_changed)
        watch_owner(self.world, self.name, parts.logs)
        await parts.serve(stack)


class RecoveryNode(Node):
    """An auditor and a replication worker (quire/autorecovery_node.py)."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.service: AutoRecovery | None = None

    @staticmethod
    def disk_faults() -> DiskFaults:
        return DiskFaults()

    def lose_memory(self, *, with_power: bool) -> None:
        super().lose_memory(with_power=with_power)
        self.world.gather_recovery(self.service)
        self.service = None

    async def serve(self, life: Life, stack: AsyncExitStack) -> None:
        ledgers, watcher, _, bookies = await start_ledgers(self, life, stack)
        parts = AutoRecoveryParts(
            config=preset.autorecovery_config(),
            env=life.env,
            store=life.store,
            client=ledgers,
            bookies=bookies,
            watcher=watcher,
            placement=RandomPlacement(lambda: sorted(watcher.writable), life.env.rng),
            locations=dict,
            root=ROOT,
        )
        self.service = AutoRecovery(parts, bookie_id=self.name)
        await stack.enter_async_context(running(self.service.run))
