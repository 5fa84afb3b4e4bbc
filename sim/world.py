"""The world: bookies, brokers, metadata and a network in one trio run, under virtual time.

Everything that could differ between two runs of a seed comes from here: time (sim/clock.py: it
jumps when all tasks wait), the order of tasks (trio's own entropy, seeded by the runner), latency,
faults, and each node's entropy, which has a generator of its own so that leaving out one fault does
not change what another node draws.

What happens in it, and who its clients are, sim/course.py says.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from broker.cluster.topic import PARTITIONS_PATH, TOPICS_PATH, decode_topic
from metadata.memory import MemoryTree
from runtime.sim_clock import START_MS
from runtime.sim_network import SimNetwork
from runtime.turn import Turn
from sim.bank_history import BankHistory
from sim.chains import chain_at, chain_paths
from sim.client import KafkaClient
from sim.clock import VirtualTimers
from sim.followers import LaggingFollowers
from sim.freeze import Freezer
from sim.group_members.owners import owners_by_group
from sim.group_members.share_history import ShareHistory
from sim.history import History, Violation
from sim.keyed_history import KeyedHistory
from sim.names import KEYED_PARTITION, SHORT_TOPIC, TOPIC, TXN_PARTITIONS, TXN_TOPIC
from sim.nodes import BROKER_PORT, BookieNode, BrokerNode, Node, RecoveryNode
from sim.storage import Storage
from sim.trace import OWNER
from sim.transactions.history import TxnHistory
from sim.witness import Witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bookie.bookie import Bookie
    from broker.log.compact.cleaner import LogCleaner
    from ledger.autorecovery.service import AutoRecovery
    from ledger.client import LedgerClient
    from ledger.network.client import NetworkBookieClient
    from metadata.faulty import StoreFaults
    from sim.history import Partition
    from sim.nodes import Life
    from sim.plan import Fault
    from sim.shape import Shape
    from sim.trace import Trace


class CrashError(Exception):
    """A node ended by an error that is none of its errors."""


class World:
    def __init__(
        self,
        seed: int,
        plan: list[Fault],
        shape: Shape,
        trace: Trace,
        store_faults: StoreFaults,
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.shape = shape
        self.trace = trace
        self.store_faults = store_faults
        self.tree = MemoryTree()
        self.timers = VirtualTimers()
        self.history = History()
        self.owners = owners_by_group()
        self.share = ShareHistory()
        self.keyed = KeyedHistory(KEYED_PARTITION)
        self.txns = TxnHistory()
        self.bank = BankHistory()
        #: Names of rights that were given, and not taken (sim/rights.py).
        self.rights: dict[str, None] = {}
        #: All that is written in transactions; and those of them that are not compacted.
        self.plain_txn_partitions: list[Partition] = [
            (TXN_TOPIC, n) for n in range(TXN_PARTITIONS if shape.transactional else 0)
        ]
        keyed = [KEYED_PARTITION] if shape.transactional and shape.keyed else []
        self.txn_partitions: list[Partition] = [*self.plain_txn_partitions, *keyed]
        self.freezer = Freezer()
        self.followers = LaggingFollowers(self)
        self.storage = Storage(self)
        self.witness = Witness(self) if shape.witness else None
        self._violation: Violation | None = None
        #: The bookie with bits that changed by themselves.
        self.rotten: str | None = None
        self.network = SimNetwork(
            random.Random(f"{seed}/network"),
            self.timers,
            observe=self._on_network,
            enter=self._enter,
        )
        self._make_nodes()
        #: All that is written and read; more may come.
        self.partitions: list[Partition] = [(TOPIC, n) for n in range(shape.partitions)]
        if shape.retention:
            self.partitions.append((SHORT_TOPIC, 0))
        #: Nodes that crash before their n-th effect.
        self.armed: dict[str, tuple[int, Callable[[], None]]] = {}
        #: Also those that were cut off and are not quite gone.
        self.lives: dict[Life, None] = {}
        self.is_draining = False
        self.is_healed = False
        #: In virtual seconds, once it is.
        self.healed_at = 0.0
        #: Clients that have not ended.
        self.busy: dict[str, None] = {}
        #: What each client has got done.
        self.progress: Counter[str] = Counter()
        #: Until when a node is not to be started, in virtual seconds.
        self.down_until: dict[str, float] = {}
        self._nursery: trio.Nursery | None = None

    def _make_nodes(self) -> None:
        shape = self.shape
        self.bookies = [BookieNode(self, f"bookie-{n + 1}") for n in range(shape.bookies)]
        self.brokers = [
            BrokerNode(self, f"broker-{n + 1}", n + 1)
            for n in range(shape.brokers + shape.spare_brokers)
        ]
        for broker in self.brokers[shape.brokers :]:
            broker.is_spare = True
        self.recoverers = [RecoveryNode(self, f"repair-{n + 1}") for n in range(shape.recoverers)]
        self.nodes: list[Node] = [*self.bookies, *self.brokers, *self.recoverers]
        self.by_name = {node.name: node for node in self.nodes}
        self._by_host = {node.host: node for node in self.nodes}
        self.host_names = [node.name for node in self.nodes]

    # -- what parts ask ------------------------------------------------------------------------

    @property
    def nursery(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """With its timers; at the end nothing of it is left."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await nursery.start(self.timers.run)
                yield nursery
            finally:
                self.trace.is_over = True
                # Lives are shielded from a cancellation, which would reach all parts at once.
                for node in self.nodes:
                    life = node.life
                    node.crash(is_silent=True)
                    if life is not None:
                        node.abandon(life)
                for life in self.lives:
                    life.scope.cancel()
                self.freezer.close()
            nursery.cancel_scope.cancel()

    def rng_for(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def time_ms(self) -> int:
        return START_MS + int(trio.current_time() * 1000)

    def client(self, name: str) -> KafkaClient:
        turn = Turn()
        self.nursery.start_soon(turn.serve)
        net = self.network.host(name, turn)
        self.host_names.append(name)
        return KafkaClient(net, [(broker.name, BROKER_PORT) for broker in self.brokers])

    def made_progress(self, name: str) -> None:
        self.progress[name] += 1

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """The end of a fault; the heal comes before all that are later than it."""

        def run() -> None:
            if not self.is_healed:
                function()

        self.timers.after(seconds, run)

    def partition_count(self) -> int:
        return sum(topic == TOPIC for topic, _ in self.partitions)

    @property
    def is_quiet(self) -> bool:
        """Nobody writes any more."""
        return self.is_draining and all(name.startswith("member") for name in self.busy)

    @property
    def has_rivals(self) -> bool:
        """Two brokers are up that both believe they own everything."""
        return any(broker.is_spare and broker.is_up for broker in self.brokers)

    def start_later(self, node: Node, seconds: float) -> None:
        """The supervisor leaves it alone until then."""
        self.down_until[node.name] = trio.current_time() + seconds

    # -- what happens ----------------------------------------------------------------------------

    def effect(self, node: Node, event: str, detail: str) -> None:
        """A node is about to change something that outlives it."""
        self.trace.event(node.name, event, detail)
        armed = self.armed.get(node.name)
        if armed is None or not node.is_up:
            return
        count, crash = armed
        if count > 1:
            self.armed[node.name] = (count - 1, crash)
        else:
            del self.armed[node.name]
            self.trace.count("crashes at an effect")
            crash()

    def _on_network(self, host: str, event: str, detail: str) -> None:
        node = self._by_host.get(host)
        if node is None:
            self.trace.event(host, event, detail)
        else:
            self.effect(node, event, detail)

    def _enter(self, host: str) -> None:
        node = self._by_host.get(host)
        name = host if node is None else node.name
        self.trace.node = name
        OWNER.set(name)  # of the tasks that a burst starts, too

    def exchange_hosts(self, one: Node, other: Node) -> None:
        """Two that are down: each is started where the other one was, under its own name."""
        assert one.life is other.life is None
        one.host, other.host = other.host, one.host
        self._by_host[one.host], self._by_host[other.host] = one, other

    def crashed(self, node: Node, error: Exception) -> None:
        story = "; ".join(origin(leaf) for leaf in leaves(error))
        self.trace.event(node.name, "FAILS", story)
        raise CrashError(f"{node.name} ended by {story}") from error

    def fail(self, violation: Violation) -> None:
        """Ends the run with it; from wherever it was seen."""
        if self._violation is None and not self.trace.is_over:
            self._violation = violation
            self.trace.event("world", "violation", str(violation))
            self.nursery.start_soon(self._raise, violation)

    @staticmethod
    async def _raise(violation: Violation) -> None:
        raise violation

    def gather(self, bookie: Bookie) -> None:
        """What a life of a bookie reached, for the coverage."""
        counts, statistics, gc = self.trace.counts, bookie.statistics(), bookie.gc.statistics
        counts["flushes"] += statistics.flushes
        counts["journals that became entry logs"] += statistics.adopted_journals
        counts["damaged records"] += statistics.damaged_records
        counts["refused read-only"] += statistics.refused_read_only
        counts["compactions"] += gc.compacted_logs
        counts["ledgers collected"] += gc.deleted_ledgers
        counts["surplus copies collected"] += gc.emptied_ledgers

    def gather_client(
        self, client: LedgerClient | None, bookies: NetworkBookieClient | None
    ) -> None:
        if client is None:
            return
        if bookies is not None:
            self.trace.counts["wrong bookies refused"] += bookies.wrong_bookie_count
        counts, statistics = self.trace.counts, client.statistics
        counts["ensemble changes"] += statistics.ensemble_changes
        counts["recoveries"] += statistics.recover.latency.count
        counts["ledgers made"] += statistics.create.latency.count
        counts["entries"] += statistics.adds
        counts["speculative reads"] += statistics.speculative_reads
        counts["digest mismatches"] += statistics.digest_mismatches

    def gather_cleaner(self, cleaner: LogCleaner | None) -> None:
        if cleaner is None:
            return
        counts, statistics = self.trace.counts, cleaner.statistics
        counts["passes"] += statistics.passes
        counts["passes ended early"] += statistics.passes_ended
        counts["passes failed"] += statistics.passes_failed
        counts["records compacted away"] += statistics.records_dropped

    def gather_recovery(self, service: AutoRecovery | None) -> None:
        if service is None:
            return
        self.trace.counts["entries repaired"] += service.work_statistics.entries_written
        self.trace.counts["ledgers repaired"] += service.work_statistics.ledgers_repaired

    def gather_node(self, node: Node) -> None:
        if isinstance(node, BookieNode) and node.bookie is not None:
            self.gather(node.bookie)
        if isinstance(node, BrokerNode):
            self.gather_client(node.ledgers, node.bookies)
            self.gather_cleaner(node.cleaner)
        if isinstance(node, RecoveryNode):
            self.gather_recovery(node.service)

    # -- what metadata has ---------------------------------------------------------------------

    def leader_epoch(self, partition: Partition) -> int:
        """As metadata has it now: no broker of an older one leads; -1: there is no such topic."""
        topic, number = partition
        table = self.tree.table
        row = table.find(f"{TOPICS_PATH}/{topic}")
        if row is None:
            return -1
        topic_id = decode_topic(topic, row.data, row.version).id
        chain = chain_at(table, f"{PARTITIONS_PATH}/{topic_id}/{number}")
        return -1 if chain is None else chain.leader_epoch

    def look_at_chains(self, versions: dict[str, int]) -> None:
        table = self.tree.table
        for path in chain_paths(table):
            row = table.find(path)
            if row is not None and versions.get(path) != row.version:
                versions[path] = row.version
                chain = chain_at(table, path)
                assert chain is not None
                self.history.chain(path, chain)


def leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group's groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


def origin(error: BaseException) -> str:
    """The error, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    way = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{error!r} in {way}"
