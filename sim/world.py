"""The world: bookies, brokers, metadata and clients in one trio run, under virtual time.

Everything that could differ between two runs of a seed comes from here: time (sim/clock.py: it
jumps when all tasks wait), the order of tasks (trio's own entropy, seeded by the runner), latency,
faults, and each node's entropy, which has a generator of its own so that leaving out one fault does
not change what another node draws.

A run: start everything; make the topic; the clients begin; the plan's faults come; everything is
healed; within a virtual deadline every client must have made progress; then the clients stop, all
partitions are read to their ends, and the history is judged.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from typing import TYPE_CHECKING

import trio

from broker.cluster.topic import PARTITIONS_PATH, TOPICS_PATH, decode_topic
from metadata.memory import MemoryTree
from runtime.sim_clock import START_MS
from runtime.sim_network import SimNetwork
from runtime.turn import Turn
from sim import preset
from sim.bank import BANK_TOPIC, Teller, bank_configs, judge_bank
from sim.bank_history import BankHistory
from sim.chains import chain_at, chain_paths
from sim.client import KafkaClient
from sim.clock import VirtualTimers
from sim.faults import Fault, Faults
from sim.followers import LaggingFollowers
from sim.freeze import Freezer
from sim.group_members.classic import ClassicMember
from sim.group_members.consumer import ConsumerMember
from sim.group_members.migrating import MigratingMember, owners_by_group
from sim.group_members.share import GROUP as SHARE_GROUP
from sim.group_members.share import ShareMember
from sim.group_members.share_history import ShareHistory
from sim.group_members.streams import StreamsMember
from sim.history import History, Violation
from sim.keyed import KEYED_PARTITION, KEYED_TOPIC, KeyedReader, KeyedWriter
from sim.keyed_history import KeyedHistory
from sim.looker import Looker
from sim.nodes import BROKER_PORT, BookieNode, BrokerNode, Node, RecoveryNode
from sim.pipeliner import NotAckedError, Pipeliner
from sim.storage import Storage
from sim.trace import OWNER
from sim.transactions.history import TxnHistory
from sim.transactions.judge import judge_transactions
from sim.transactions.owners import look_at_owners
from sim.transactions.producer import TXN_TOPIC, TxnProducer
from sim.transactions.reader import TxnReader
from sim.witness import Witness
from sim.workload import EARLIEST, LATEST, Admin, Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.bookie import Bookie
    from broker.log.compact.cleaner import LogCleaner
    from ledger.autorecovery.service import AutoRecovery
    from ledger.client import LedgerClient
    from ledger.network.client import NetworkBookieClient
    from metadata.faulty import StoreFaults
    from sim.history import Partition
    from sim.nodes import Life
    from sim.shape import Shape
    from sim.trace import Trace

    Client = (
        Producer
        | Pipeliner
        | Consumer
        | ClassicMember
        | ConsumerMember
        | ShareMember
        | StreamsMember
        | MigratingMember
        | Looker
        | Admin
        | KeyedReader
        | TxnProducer
        | TxnReader
        | Teller
    )

TOPIC = "log"
#: A topic of which old records go by themselves.
SHORT_TOPIC = "short"
TXN_PARTITIONS = 2
#: Virtual seconds after the heal within which everybody must have made progress.
LIVENESS_SECONDS = 60.0
#: A node that is down is looked for this often, and started.
SUPERVISE_SECONDS = 0.5
#: One look at all ledgers in so many at the chains.
LEDGER_LOOK_TURNS = 10


class LivenessError(Exception):
    """Something does not go on although nothing is in its way; names it."""


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
        self._busy: dict[str, None] = {}
        self._progress: Counter[str] = Counter()
        self._down_until: dict[str, float] = {}
        self._nursery: trio.Nursery | None = None
        self._faults = Faults(self)

    # -- what parts ask ------------------------------------------------------------------------

    @property
    def nursery(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

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
        self._progress[name] += 1

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
        return self.is_draining and all(name.startswith("member") for name in self._busy)

    @property
    def has_rivals(self) -> bool:
        """Two brokers are up that both believe they own everything."""
        return any(broker.is_spare and broker.is_up for broker in self.brokers)

    def start_later(self, node: Node, seconds: float) -> None:
        """The supervisor leaves it alone until then."""
        self._down_until[node.name] = trio.current_time() + seconds

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

    # -- the run -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Violation, LivenessError, CrashError; and what else broke."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await self._run(nursery)
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

    async def _run(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.timers.run)
        for node in self.nodes:
            if not node.is_spare:
                node.start()
        nursery.start_soon(self._supervise)
        admin = Admin(self, "admin-0")
        with self._deadline("making the topic"):
            await admin.create(TOPIC, self.shape.partitions, preset.topic_configs(self.shape))
            if self.shape.share_members:
                await admin.set_group(SHARE_GROUP, preset.SHARE_GROUP_CONFIGS)
            if self.shape.retention:
                await admin.create(SHORT_TOPIC, 1, preset.retention_configs(self.seed))
            if self.shape.keyed:
                await admin.create(KEYED_TOPIC, 1, preset.keyed_configs(self.seed))
            if self.shape.transactional:
                configs = preset.txn_configs(self.seed, self.shape)
                await admin.create(TXN_TOPIC, TXN_PARTITIONS, configs)
            if self.shape.tellers:
                await admin.create(BANK_TOPIC, 1, bank_configs(self.seed))
        self._start_clients(nursery)
        nursery.start_soon(self._watch_chains)
        await self._follow_plan()
        await self._heal()
        await self._drain()
        for node in self.nodes:
            self._gather(node)
            self.trace.counts["read errors"] += node.disk.read_error_count
        self.trace.counts["stale metadata reads"] += self.store_faults.stale_read_count

    def _gather(self, node: Node) -> None:
        if isinstance(node, BookieNode) and node.bookie is not None:
            self.gather(node.bookie)
        if isinstance(node, BrokerNode):
            self.gather_client(node.ledgers, node.bookies)
            self.gather_cleaner(node.cleaner)
        if isinstance(node, RecoveryNode):
            self.gather_recovery(node.service)

    def _start_clients(self, nursery: trio.Nursery) -> None:
        shape = self.shape
        clients: list[Client] = []
        for n in range(shape.idempotent_producers):
            clients.append(Producer(self, f"idem-{n + 1}", is_idempotent=True))
        for n in range(shape.plain_producers):
            clients.append(Producer(self, f"plain-{n + 1}", is_idempotent=False))
        clients += [Pipeliner(self, f"pipe-{n + 1}") for n in range(shape.pipeliners)]
        clients += [Consumer(self, f"reader-{n + 1}") for n in range(shape.consumers)]
        clients += [ClassicMember(self, f"member-{n + 1}") for n in range(shape.members)]
        clients += [
            ConsumerMember(self, f"member-848-{n + 1}") for n in range(shape.consumer_members)
        ]
        clients += [ShareMember(self, f"member-share-{n + 1}") for n in range(shape.share_members)]
        clients += [
            StreamsMember(self, f"member-streams-{n + 1}") for n in range(shape.streams_members)
        ]
        count = shape.migrating_members
        clients += [MigratingMember(self, n, count) for n in range(count)]
        clients += [Looker(self, f"looker-{n + 1}") for n in range(shape.lookers)]
        clients += [Admin(self, f"admin-{n + 1}") for n in range(shape.admins)]
        clients += [Teller(self, f"teller-{n + 1}") for n in range(shape.tellers)]
        if shape.keyed:
            clients += [KeyedWriter(self, "keyed-1"), KeyedWriter(self, "keyed-2")]
            clients.append(KeyedReader(self, "keyed-reader"))
        clients += self._transactional_clients()
        for client in clients:
            self._busy[client.name] = None
            nursery.start_soon(self._run_client, client)

    def _transactional_clients(self) -> list[Client]:
        """Of each second one the client knows transactions of version 1 only."""
        shape = self.shape
        if not shape.transactional:
            return []
        clients: list[Client] = [
            TxnProducer(self, f"txn-{n + 1}", f"id-{n + 1}", version=2 - n % 2, is_twin=False)
            for n in range(shape.transactional)
        ]
        if shape.twins:
            clients.append(TxnProducer(self, "txn-twin", "id-1", version=2, is_twin=True))
        clients.append(TxnReader(self, "txn-reader", is_committed=True))
        clients.append(TxnReader(self, "txn-reader-all", is_committed=False))
        return clients

    async def _run_client(self, client: Client) -> None:
        try:
            await client.run()
        except NotAckedError as error:
            raise LivenessError(str(error)) from error
        del self._busy[client.name]

    async def _supervise(self) -> None:
        """Starts what is down, as an operator's service manager would."""
        while True:
            await trio.sleep(SUPERVISE_SECONDS)
            now = trio.current_time()
            for node in self.nodes:
                is_wanted = now >= self._down_until.get(node.name, 0.0)
                if is_wanted and not (node.is_up or node.is_spare):
                    node.start()

    async def _watch_chains(self) -> None:
        """Judges each state of each partition's document in metadata, and what owners have in
        memory."""
        nothing: dict[str, int] = {}
        turn = 0
        while not self.is_draining:
            await trio.sleep(0.02)
            self.look_at_chains(nothing)
            look_at_owners(self)
            turn += 1
            if turn % LEDGER_LOOK_TURNS == 0:
                self.storage.look()

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

    async def _follow_plan(self) -> None:
        for fault in self.plan:
            await trio.sleep_until(fault.at_seconds)
            self._faults.begin(fault)
        await trio.sleep(1.0)

    async def _heal(self) -> None:
        self.trace.event("world", "heal")
        self.is_healed, self.healed_at = True, trio.current_time()
        self._down_until.clear()
        self._faults.heal()
        before = Counter(self._progress)
        clients = list(self._busy)
        waiting = clients
        try:
            with self._deadline("the clients"):
                while waiting:
                    await trio.sleep(0.1)
                    waiting = [n for n in clients if self._progress[n] < before[n] + 3]
                    waiting += [n.name for n in self.nodes if not (n.is_serving or n.is_spare)]
        except LivenessError:
            raise LivenessError(f"no progress after the heal: {', '.join(waiting)}") from None

    def _deadline(self, what: str) -> _Deadline:
        return _Deadline(what)

    async def _drain(self) -> None:
        """Stops the clients, and reads everything once more, with a client of its own."""
        self.is_draining = True
        with self._deadline("the last requests"):
            while self._busy:  # noqa: ASYNC110  # an event would say nothing earlier
                await trio.sleep(0.1)
        final = {}
        reader = Consumer(self, "judge")
        for partition in self.partitions:
            with self._deadline(f"reading {partition}"):
                final[partition] = await self._read_all(reader, partition)
        self.history.check(final)
        self.share.check(final)
        if self.shape.transactional:
            with self._deadline("judging transactions"):
                await judge_transactions(self)
        if self.shape.keyed:
            await self._judge_keyed()
        if self.shape.tellers:
            with self._deadline("judging the bank"):
                await judge_bank(self)
        entries = await self.storage.judge()
        self.trace.event("world", "copies", f"{entries} entries")
        self.trace.counts["entries judged"] += entries
        await self.storage.judge_repairs()
        total = sum(len(records) for _, records in final.values())
        self.trace.event("world", "judged", f"{total} records, {self.history.ack_count} acked")
        self.trace.counts["records"] += total
        self.trace.counts["acked"] += self.history.ack_count
        if not self.history.ack_count:
            raise LivenessError("nothing was acknowledged in the whole run")

    async def _judge_keyed(self) -> None:
        reader = KeyedReader(self, "keyed-judge")
        with self._deadline("reading what is compacted"):
            while (count := await reader.read_all()) is None:
                pass
            self.trace.counts["keyed records left"] += count
        self.trace.counts["keyed acked"] += self.keyed.ack_count

    @staticmethod
    async def _read_all(
        reader: Consumer, partition: Partition
    ) -> tuple[int, list[tuple[int, bytes]]]:
        start = end = None
        while start is None:
            start = await reader.offset(partition, EARLIEST)
        while end is None:
            end = await reader.offset(partition, LATEST)
        reader.positions[partition] = start
        records: list[tuple[int, bytes]] = []
        while reader.positions[partition] < end:
            records += await reader.poll(partition) or []
        # It may have moved under the reader.
        start = None
        while start is None:
            start = await reader.offset(partition, EARLIEST)
        return start, [record for record in records if record[0] >= start]


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


class _Deadline:
    """LivenessError unless the block ends in time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._scope = trio.CancelScope()

    def __enter__(self) -> None:
        self._scope.deadline = trio.current_time() + LIVENESS_SECONDS
        self._scope.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        handled = self._scope.__exit__(type(error) if error else None, error, None)
        if self._scope.cancelled_caught:
            raise LivenessError(f"not done within {LIVENESS_SECONDS:g} s: {self._what}")
        return bool(handled)
