"""Faults: what a plan (sim/plan.py) says is done to the world, and undone when it heals."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from broker.cluster.topic import TRANSACTION_TOPIC
from metadata.faulty import StoreFaults
from runtime.sim_network import NetFaults
from sim import preset
from sim.append_crash import AppendCrash
from sim.asker import ask_for
from sim.damage import Damage
from sim.marker_cut import MarkerCut
from sim.names import TXN_TOPIC
from sim.nodes import BookieNode

if TYPE_CHECKING:
    from sim.nodes import Node
    from sim.plan import Fault
    from sim.world import World

ENTRY_LOG_HEADER_BYTES = 1024
#: How far apart nodes hear that the metadata are back.
AWAY_SPREAD_SECONDS = 0.6
#: How long brokers are asked who is there, from the last one's hearing of it on.
ASKED_SECONDS = 0.2
#: Until a bookie's session is over, it counts as lost, and its ledgers were repaired.
ABSENCE_SECONDS_MIN = preset.SESSION_TIMEOUT_SECONDS + 6.0
#: What a call of the metadata takes when nothing is wrong.
METADATA_SECONDS = StoreFaults().latency_seconds


class Faults:
    """Does to the world what a plan says, and undoes all of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._damage = Damage(world)

    def begin(self, fault: Fault) -> None:
        world = self._world
        world.trace.event("world", "fault", str(fault))
        world.trace.count(fault.kind)
        getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

    def heal(self) -> None:
        """Everything works from now on, and every node runs."""
        world = self._world
        world.network.faults = NetFaults()
        world.network.heal()
        faults = world.store_faults
        faults.unavailable_share = faults.lost_reply_share = faults.conflict_share = 0.0
        faults.watch_seconds = (0.0, 0.0)
        faults.latency_seconds = METADATA_SECONDS
        world.armed.clear()
        if world.witness is not None:
            world.witness.on_fence = world.witness.on_told = world.witness.on_append = None
        for node in world.nodes:
            world.freezer.thaw(node)
            node.clock.offset_ms = 0
            faults_now = node.disk.faults
            faults_now.capacity_bytes = 1 << 40
            faults_now.failing_sync_number = None
            faults_now.read_error_share = 0.0
            faults_now.sync_seconds = node.disk_faults().sync_seconds
            world.followers.end(node)
            if node.life is not None:
                node.life.store.heal()

    # Choosing.

    def _node(self, share: float) -> Node:
        nodes = self._world.nodes
        return nodes[int(share * len(nodes))]

    def _bookie(self, share: float) -> Node:
        bookies = self._world.bookies
        return bookies[int(share * len(bookies))]

    def _broker(self, share: float) -> Node:
        brokers = self._world.brokers
        return brokers[int(share * len(brokers))]

    # Nodes.

    def _crash(self, node: Node, fault: Fault) -> None:
        node.crash(is_silent=fault.b < 0.5)
        self._world.start_later(node, fault.seconds)

    def _crash_bookie(self, fault: Fault) -> None:
        self._crash(self._bookie(fault.a), fault)

    def _absence(self, fault: Fault) -> None:
        """A bookie is away for so long that its ledgers are re-replicated, and comes back with
        copies that nobody counts on."""
        node = self._bookie(fault.a)
        self._world.trace.event(node.name, "is away")
        node.crash(is_silent=fault.b < 0.5)
        self._world.start_later(node, ABSENCE_SECONDS_MIN + fault.seconds)

    def _crash_broker(self, fault: Fault) -> None:
        self._crash(self._broker(fault.a), fault)

    def _crash_at_effect(self, fault: Fault) -> None:
        """Right before the node's n-th change or message from now on."""
        node = self._node(fault.a)
        count = 1 + int((fault.b * 1000 % 1) * 60)

        def crash() -> None:
            self._crash(node, fault)

        self._world.armed[node.name] = (count, crash)

    def _blackout(self, fault: Fault) -> None:
        """The power of all bookies fails at once; and of the brokers, or not."""
        nodes = self._world.nodes if fault.a < 0.5 else self._world.bookies
        for node in nodes:
            node.crash(is_silent=True)
            self._world.start_later(node, fault.seconds * fault.b)

    def _addresses(self, fault: Fault) -> None:
        """Two bookies die, and come back each at the other one's address; one of them soon, while
        the registrations of their last lives are still there. Their ids stay."""
        world = self._world
        bookies = world.bookies
        number = int(fault.a * len(bookies))
        step = 1 + int((fault.a * 1000 % 1) * (len(bookies) - 1))
        one, other = bookies[number], bookies[(number + step) % len(bookies)]
        if one is other:
            return
        for node in (one, other):
            node.crash(is_silent=fault.b < 0.5)
        world.exchange_hosts(one, other)
        world.start_later(one, 0.0)
        world.start_later(other, fault.seconds)

    def _rival(self, fault: Fault) -> None:
        """A second broker is started with the first one's tasks, while that still works, as an
        operator or a supervisor does that took a slow broker for a dead one. In the end the first
        one is killed."""
        world = self._world
        standby = next((each for each in world.brokers if not each.is_up and each.is_spare), None)
        active = [each for each in world.brokers if each.is_up]
        if standby is None or not active:
            return
        old = active[int(fault.a * len(active))]
        standby.is_spare = False
        standby.start()
        old.is_spare = True

        def end() -> None:
            if not old.is_spare:
                return
            old.crash(is_silent=fault.b < 0.5)
            if not world.shape.is_cluster:
                # One that takes itself for the only one reads topics when it starts, and does not
                # look who owns them: what the other one did, it learns by starting anew.
                standby.stop()

        # Not undone by the heal: two owners would fence one another for ever.
        world.timers.after(fault.seconds, end)

    def _stop(self, fault: Fault) -> None:
        node = self._node(fault.a)
        node.stop()
        self._world.start_later(node, fault.seconds)

    def _rolling_restart(self, fault: Fault) -> None:
        """All brokers, or all bookies, one after the other, cleanly."""
        world = self._world
        nodes = world.bookies if fault.a < 0.3 else world.brokers
        for number, node in enumerate(nodes):

            def stop(node: Node = node) -> None:
                if not node.is_spare:
                    node.stop()
                    world.start_later(node, fault.b)

            world.later(number * (1.0 + fault.seconds / 2), stop)

    def _pause(self, fault: Fault) -> None:
        """The process stands still and goes on; its session may have ended meanwhile."""
        world = self._world
        node = self._broker(fault.a * 2) if fault.a < 0.5 else self._node(fault.a * 2 - 1)
        life = node.life
        if life is None:
            return
        world.freezer.freeze(node)
        seconds = fault.seconds * (1 + fault.b)

        def expire() -> None:
            if node.life is life and world.freezer.is_frozen(node):
                world.trace.count("sessions lost")
                life.store.expire()

        world.later(life.store.session_timeout_seconds, expire)
        world.later(seconds, lambda: world.freezer.thaw(node))

    def _clock(self, fault: Fault) -> None:
        self._node(fault.a).clock.offset_ms = int((fault.b - 0.5) * 20_000)

    # Network.

    def _pairs(self, fault: Fault) -> list[tuple[str, str]]:
        """One node, and all others or one of them."""
        one = self._node(fault.a).host
        others = [name for name in self._world.host_names if name != one]
        if fault.b < 0.5:
            return [(one, other) for other in others]
        return [(one, others[int((fault.b - 0.5) * 2 * len(others))])]

    def _partition(self, fault: Fault) -> None:
        self._world.trace.count("partitions")
        for one, other in self._pairs(fault):
            self._world.network.cut(one, other)
            self._world.network.cut(other, one)
        self._world.later(fault.seconds, self._world.network.heal)

    def _one_way(self, fault: Fault) -> None:
        self._world.trace.count("partitions")
        is_outward = int(fault.a * 1000) % 2
        for one, other in self._pairs(fault):
            self._world.network.cut(*((one, other) if is_outward else (other, one)))
        self._world.later(fault.seconds, self._world.network.heal)

    def _clog(self, fault: Fault) -> None:
        for one, other in self._pairs(fault):
            self._world.network.clog(one, other, fault.seconds)

    def _reset(self, fault: Fault) -> None:
        connections = self._world.network.connections
        if connections:
            self._world.network.reset(connections[int(fault.a * len(connections))])

    def _latency(self, fault: Fault) -> None:
        faults = self._world.network.faults
        faults.latency_seconds = (100e-6, 0.05 * fault.a)
        faults.cut_share = fault.b
        faults.buffer_bytes = 2048 if fault.b > 0.5 else 256 << 10

        def end() -> None:
            self._world.network.faults = NetFaults()

        self._world.later(fault.seconds, end)

    # Disks.

    def _slow_disk(self, fault: Fault) -> None:
        """One bookie's, or all of them."""
        nodes = [self._bookie(fault.a)] if fault.b < 0.5 else self._world.bookies
        for node in nodes:
            node.disk.faults.sync_seconds = (0.001, 0.001 + 0.3 * fault.b)

        def end() -> None:
            for node in nodes:
                node.disk.faults.sync_seconds = node.disk_faults().sync_seconds

        self._world.later(fault.seconds, end)

    def _full_disk(self, fault: Fault) -> None:
        disk = self._bookie(fault.a).disk
        disk.faults.capacity_bytes = disk.used_bytes + int(fault.b * 20_000)

        def end() -> None:
            disk.faults.capacity_bytes = 1 << 40

        self._world.later(fault.seconds, end)

    def _failing_sync(self, fault: Fault) -> None:
        node = self._bookie(fault.a)
        assert isinstance(node, BookieNode)
        node.disk.faults.failing_sync_number = node.disk.sync_count + 1 + int(fault.b * 20)
        self._world.start_later(node, fault.seconds)

    def _bit_rot(self, fault: Fault) -> None:
        """In some entry logs of one bookie, in each world the same: what is rotten has a good copy
        elsewhere."""
        world = self._world
        bookie = self._damage.bookie()
        if bookie is None:
            return
        disk = bookie.disk
        directory = f"{preset.LEDGER_DIRECTORY}/current"
        names = disk.list(directory) if disk.exists(directory) else []
        logs = [f"{directory}/{name}" for name in names if name.endswith(".log")]
        for number in range(1 + int(fault.b * 4)):
            if not logs:
                return
            path = logs[int(fault.a * 997 * (number + 1)) % len(logs)]
            size = disk.open(path).size()
            # Behind the log's header.
            if size > ENTRY_LOG_HEADER_BYTES:
                room = size - ENTRY_LOG_HEADER_BYTES
                offset = ENTRY_LOG_HEADER_BYTES + int(fault.b * 7919 * (number + 1)) % room
                world.trace.event(bookie.name, "rots", f"{path} {offset}")
                world.trace.count("bits rotten")
                disk.flip_bit(path, offset, number)

    def _rot_anywhere(self, fault: Fault) -> None:
        self._damage.rot(fault)

    def _latent_errors(self, fault: Fault) -> None:
        self._damage.latent_errors(fault)

    def _read_errors(self, fault: Fault) -> None:
        """Of one bookie: reads fail, and would not if they were tried again."""
        disk = self._bookie(fault.a).disk
        disk.faults.read_error_share = fault.b

        def end() -> None:
            disk.faults.read_error_share = 0.0

        self._world.later(fault.seconds, end)

    # What waits for its moment: the witness tells when that is.

    def _crash_at_fence(self, fault: Fault) -> None:
        """The power of the bookie that answers the next fence fails as the answer arrives."""
        witness = self._world.witness
        if witness is not None:
            witness.on_fence = lambda bookie: self._crash_named([bookie], fault)

    def _crash_at_ack(self, fault: Fault) -> None:
        """Of those that have the entry that is the next to be confirmed, as many as may be lost
        lose power at that moment."""
        witness = self._world.witness
        if witness is None:
            return

        def crash(having: list[str]) -> None:
            self._crash_named(having[: self._world.shape.copies[2] - 1], fault)

        witness.on_told = crash

    def _crash_at_append(self, fault: Fault) -> None:
        """A broker's n-th append from now on to what coordinators of transactions write, or to what
        is written in transactions."""
        topic = TRANSACTION_TOPIC if fault.a < 0.6 else TXN_TOPIC
        crash = AppendCrash(
            self._world,
            topic,
            number=1 + int((fault.a * 1000 % 1) * 12),
            copies=int((fault.b * 1000 % 1) * 3),
            is_silent=fault.b < 0.5,
            seconds=fault.seconds,
        )
        crash.arm()

    def _cut_at_marker(self, fault: Fault) -> None:
        """A broker reaches no bookie any more, from the n-th marker on that is appended from now
        on; then its power fails."""
        MarkerCut(
            self._world,
            number=1 + int((fault.a * 1000 % 1) * 4),
            seconds=fault.seconds,
            down=fault.b,
        ).arm()

    def _crash_named(self, bookies: list[str], fault: Fault) -> None:
        for bookie in bookies:
            node = self._world.by_name[bookie.partition(":")[0]]

            # Not in the middle of the call that brought the news.
            def crash(node: Node = node) -> None:
                node.crash(is_silent=True)
                self._world.start_later(node, fault.seconds)

            self._world.trace.count("crashes at a moment")
            self._world.later(0.0, crash)

    def _slow_changes(self, fault: Fault) -> None:
        """Every call of the metadata takes long, so that acks come while ensembles change."""
        faults = self._world.store_faults
        faults.latency_seconds = (0.0, 0.6 * fault.b)

        def end() -> None:
            faults.latency_seconds = METADATA_SECONDS

        self._world.later(fault.seconds, end)

    # Metadata.

    def _metadata_cut(self, fault: Fault) -> None:
        """Longer than the session lives, sometimes."""
        life = self._node(fault.a).life
        if life is None:
            return
        store = life.store
        store.cut()

        def expire() -> None:
            if not store.is_reachable and not store.is_dead:
                self._world.trace.count("sessions lost")
                store.expire()

        self._world.later(store.session_timeout_seconds, expire)
        self._world.later(fault.seconds, store.heal)

    def _metadata_away(self, fault: Fault) -> None:
        """From all nodes, for longer than sessions live: a single server that stands still. When it
        is back all sessions are over at once; who hears of it first, and registers again, and how
        far behind the last one is, differs."""
        world = self._world
        rng = random.Random(f"{world.seed}/away/{fault.number}")
        stores = [node.life.store for node in world.nodes if node.life is not None]
        for store in stores:
            # A client finds out by what it sent last, or was to be answered.
            world.later(0.5 * rng.random(), store.suspend)
        back = preset.SESSION_TIMEOUT_SECONDS + fault.seconds
        spread = AWAY_SPREAD_SECONDS * fault.b

        def end_sessions() -> None:
            for store in stores:
                if not store.is_dead:
                    world.trace.count("sessions lost")
                    store.end_session()
            ask_for(world, f"asker-{fault.number}", spread + ASKED_SECONDS)

        world.later(back, end_sessions)
        for store in stores:
            world.later(back + 0.01 + spread * rng.random(), store.heal)

    def _metadata_errors(self, fault: Fault) -> None:
        faults = self._world.store_faults
        faults.unavailable_share, faults.lost_reply_share = fault.a * 0.2, fault.b * 0.2

        def end() -> None:
            faults.unavailable_share = faults.lost_reply_share = 0.0

        self._world.later(fault.seconds, end)

    def _metadata_conflicts(self, fault: Fault) -> None:
        faults = self._world.store_faults
        faults.conflict_share = fault.a * 0.3

        def end() -> None:
            faults.conflict_share = 0.0

        self._world.later(fault.seconds, end)

    def _late_watches(self, fault: Fault) -> None:
        faults = self._world.store_faults
        faults.watch_seconds = (0.0, 3.0 * fault.a)

        def end() -> None:
            faults.watch_seconds = (0.0, 0.0)

        self._world.later(fault.seconds, end)

    def _lagging_follower(self, fault: Fault) -> None:
        self._world.followers.begin(self._node(fault.a), fault)

    def _session(self, fault: Fault) -> None:
        self._world.trace.count("sessions lost")
        self._node(fault.a).expire_session()
