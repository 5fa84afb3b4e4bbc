"""The processes of a chaos run: one ZooKeeper, bookies of ours and Java's, brokers if wanted.

With `is_lagging` there are three ZooKeeper servers, one of which follows two seconds late: our
bookies and the first broker are on that one, and everybody else is on the others.

Each of our bookies can have its syncs fail (harness/failsync.py). Number 0 has a small file system
of its own that can be filled, where that can be made. With `is_networked` ZooKeeper, each broker
and each bookie of ours live in a network namespace of their own, and the clients in the one that
this runs in (`network.enter`).
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness import failsync, paths
from harness.bookkeeper import Bookie, Cluster, JavaBookie, QuireAutoRecovery, QuireBookie
from harness.brokers import Broker
from harness.servers import HOST, Server
from harness.zookeeper import LaggingEnsemble, ZooKeeper

from . import network

#: In the last part but one of their addresses.
ZOOKEEPER_NUMBER, FIRST_BROKER_NUMBER = 200, 100

DISK_MB = 400
#: By way of a server that lags, to begin a session takes two seconds; BookKeeper's default is this.
LAGGING_SESSION_MS = 10_000
LAG_MS = 2000
SETTINGS = {
    "journalMaxSizeMB": "32",
    "journalMaxBackups": "1",
    "flushInterval": "2000",
    "gcWaitTime": "10000",
    "logSizeLimit": str(64 << 20),
    "diskCheckInterval": "500",
}
#: Who was killed gets its partitions back soon: else it leads none that the next fault could reach.
BROKER_SETTINGS = {
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "5",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
    "log.cleaner.backoff.ms": "1000",
}
#: Who died is missed soon, and what it had is delivered to others.
GROUP_SETTINGS = {
    **{
        f"group.{kind}.{least}session.timeout.ms": "6000"
        for kind in ("consumer", "share", "streams")
        for least in ("min.", "")
    },
    **{
        f"group.{kind}.{least}heartbeat.interval.ms": "1000"
        for kind in ("consumer", "share", "streams")
        for least in ("min.", "")
    },
    "group.streams.initial.rebalance.delay.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.share.min.record.lock.duration.ms": "5000",
    "group.share.record.lock.duration.ms": "5000",
    "group.share.delivery.count.limit": "10",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.prune.interval.ms": "5000",
}
RECOVERY_SETTINGS = {
    "openLedgerRereplicationGracePeriod": "3000",
    "rwRereplicateBackoffMs": "500",
    # Somebody who comes back soon has what it had.
    "lostBookieRecoveryDelay": "20",
    # It reads all that there is; at the end of a run it is done more often.
    "auditorPeriodicCheckInterval": "300",
    # All of a fragment: its first and last entry may be there, and others miss.
    "auditorLedgerVerificationPercentage": "100",
}
FINAL_CHECK_INTERVAL_S = 15


@dataclass(frozen=True)
class Options:
    """What a run is made of."""

    seed: int
    minutes: float
    #: So many faults at least, however long each takes to heal on a busy machine.
    strikes_min: int = 0
    #: What is written: bookies (ledgers, by our ledger client), cluster (by Kafka's clients),
    #: transactions, or groups (of the newer protocols).
    scenario: str = "bookies"
    bookies: int = 5
    java_bookies: int = 0
    brokers: int = 0
    #: Entries, or librdkafka's records, per second.
    rate: int = 300
    is_networked: bool = False
    #: Where logs are put in the end, for whoever looks for a cause.
    kept: str = ""
    #: Whether an auditor and a replication worker make lost copies again.
    has_recovery: bool = False
    #: These faults, one after another, each once, instead of any at random.
    faults: tuple[str, ...] = ()
    #: One of three ZooKeeper servers lags (`World`). Topics are made and deleted, then, too.
    is_lagging: bool = False
    #: How long a ledger must be missing before it is collected; a minute, as it is, if None.
    absent_s: float | None = None
    #: Bookies believe what ZooKeeper says without asking it to catch up, as none of ours does:
    #: then the run must fail.
    is_believing: bool = False
    ensemble: tuple[int, int, int] = (3, 3, 2)

    @property
    def struck_max(self) -> int:
        """Bookies that are struck at a time, at most: enough are left to write to."""
        return max(1, min(2, self.bookies - self.ensemble[0]))


class ChaosBookie(QuireBookie):
    """Ours, with switches. `flag` holds a part of the paths whose syncs fail."""

    namespace: network.Namespace | None = None
    library: Path | None = None
    #: Words of chaos/hasty_bookie.py in front of the command's.
    haste: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return super().id if self.namespace is None else f"{self.namespace.address}:{self.port}"

    @property
    def flag(self) -> Path:
        return self.directory / "failing"

    def command(self) -> list[str]:
        command = super().command()
        if self.haste:
            script = paths.COMPAT / "chaos" / "hasty_bookie.py"
            command = [sys.executable, str(script), *self.haste, *command[1:]]
        if self.library is not None:
            variables = failsync.environment(self.library, self.flag)
            command = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
        if self.namespace is not None:
            command = self.namespace.command(command)
        return command

    @property
    def data_directories(self) -> list[Path]:
        settings = (self.settings.get(key) for key in ("journalDirectory", "ledgerDirectories"))
        return [
            Path(value or self.directory / name)
            for value, name in zip(settings, ("journal", "ledgers"), strict=True)
        ]


class ChaosBroker(Broker):
    """A broker that may live in a namespace."""

    namespace: network.Namespace | None = None
    _is_launching = False

    @property
    def bootstrap(self) -> str:
        host = HOST if self.namespace is None else self.namespace.address
        return f"{host}:{self.port}"

    @property
    def id(self) -> str:
        return f"broker {self.node_id}"

    def command(self) -> list[str]:
        command = super().command()
        return command if self.namespace is None else self.namespace.command(command)

    def is_serving(self) -> bool:
        return f"ready listen={self.bootstrap}\n" in self.log_since_start()

    def is_ready(self) -> bool:
        return self._is_launching or self.is_serving()

    def launch(self) -> None:
        """Without a wait: it may need what is broken at the moment."""
        self._is_launching = True
        try:
            Server.start(self)
        finally:
            self._is_launching = False


class ChaosZooKeeper(ZooKeeper):
    """In a namespace."""

    def __init__(self, directory: Path, namespace: network.Namespace) -> None:
        super().__init__(directory)
        self.namespace = namespace
        self.host = namespace.address

    def command(self) -> list[str]:
        return self.namespace.command(super().command())


class World:
    """`start` returns once all serve; `discard` ends every process and removes every file."""

    def __init__(self, directory: Path, options: Options) -> None:
        self.directory = directory
        self.options = options
        self.notes: list[str] = []
        self.brokers: list[ChaosBroker] = []
        #: The namespace of the run itself.
        self.clients: network.Namespace | None = None
        self.hub: network.Hub | None = None
        self.recovery: QuireAutoRecovery | None = None
        self.library: Path | None = None
        self.disk: Path | None = None
        #: Of those that lost power: by the end of a file's name, how many were taken back.
        self.sectors_lost: Counter[str] = Counter()
        self._namespaces: list[network.Namespace] = []

    def start(self) -> "World":
        options = self.options
        self.directory.mkdir(parents=True, exist_ok=True)
        if shutil.which("gcc"):
            self.library = failsync.compile_library(self.directory)
        else:
            self.notes.append("no failing syncs: there is no C compiler")
        zookeeper = None
        if options.is_networked:
            self.hub = network.Hub.outside()
            self.clients = network.Namespace(self.hub, network.RUN_NUMBER)
            if options.scenario == "transactions":
                # Up to version 1 they cannot tell a late request from one of theirs.
                self.clients.forget_what_was_closed()
            where = self.directory / "zookeeper"
            zookeeper = ChaosZooKeeper(where, self._attach(ZOOKEEPER_NUMBER))
        elif options.is_lagging:
            # To start all servers takes many changes in a row: it lags from then on.
            zookeeper = LaggingEnsemble(self.directory / "zookeeper", lag_ms=0)
        self.cluster = Cluster(self.directory, zookeeper=zookeeper)
        if not options.java_bookies:
            # Our bookies make the tree themselves.
            self.cluster.make_tree = lambda: None
        self._mount()
        for number in range(options.bookies - options.java_bookies):
            self._start_ours(number)
        if options.java_bookies:
            self.cluster.start(*[JavaBookie] * options.java_bookies)
        if options.has_recovery:
            (self.recovery,) = self.cluster.start(QuireAutoRecovery, **RECOVERY_SETTINGS)
        for number in range(options.brokers):
            self._start_broker(number + 1)
        if options.is_lagging:
            zookeeper.lag_ms = LAG_MS
        return self

    def _attach(self, number: int) -> network.Namespace:
        self._namespaces.append(self.hub.attach(number))
        return self._namespaces[-1]

    def _start_broker(self, node_id: int) -> None:
        kind = ChaosBroker
        if self.options.is_networked:
            namespace = self._attach(FIRST_BROKER_NUMBER + node_id)
            kind = type("NetworkedBroker", (ChaosBroker,), {"namespace": namespace})
        where = self.directory / f"broker-{node_id}"
        settings = {**BROKER_SETTINGS, **(self._lagging if node_id == 1 else {})}
        if self.options.scenario == "groups":
            settings |= GROUP_SETTINGS
        broker = kind(where, node_id, self.cluster.uri, settings)
        self.brokers.append(broker)
        broker.start()

    def _start_ours(self, number: int) -> None:
        settings = SETTINGS | self._lagging
        if number == 0 and self.disk is not None:
            settings["journalDirectory"] = str(self.disk / "journal")
            settings["ledgerDirectories"] = str(self.disk / "ledgers")
        kind = ChaosBookie
        if self.options.is_networked:
            namespace = self._attach(number)
            settings |= namespace.settings
            kind = type("NetworkedBookie", (ChaosBookie,), {"namespace": namespace})
        members = {"library": self.library, "haste": self._haste}
        kind = type(kind.__name__, (kind,), members)
        self.cluster.start(kind, **settings)

    @property
    def _haste(self) -> tuple[str, ...]:
        options = self.options
        if options.absent_s is None and not options.is_believing:
            return ()
        return str(options.absent_s or 0), "stale" if options.is_believing else "fresh"

    @property
    def _lagging(self) -> dict[str, str]:
        """Settings of who is on the server that lags."""
        if not self.options.is_lagging:
            return {}
        hosts = self.cluster.zookeeper.lagging_hosts
        return {
            "metadataServiceUri": f"zk+hierarchical://{hosts}/ledgers",
            "zkTimeout": str(LAGGING_SESSION_MS),
            "gcWaitTime": "1000",
        }

    @property
    def zookeepers(self) -> list[ZooKeeper]:
        """Its servers, which can be struck."""
        return getattr(self.cluster.zookeeper, "servers", [self.cluster.zookeeper])

    def _mount(self) -> None:
        """A small file system, for a disk that fills."""
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            self.notes.append("no full disk: making a file system needs root and e2fsprogs")
            return
        image, disk = self.directory / "image", self.directory / "disk"
        disk.mkdir()
        with image.open("wb") as file:
            file.truncate(DISK_MB << 20)
        for command in (
            ["mkfs.ext4", "-q", "-m0", str(image)],
            ["mount", "-o", "loop", str(image), str(disk)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.notes.append(f"no full disk: {done.stderr.strip()}")
                return
        self.disk = disk

    def check_often(self) -> None:
        """From now on everything is looked at again and again; nobody writes any more."""
        self.recovery.kill()
        self.recovery.settings["auditorPeriodicCheckInterval"] = str(FINAL_CHECK_INTERVAL_S)
        self.recovery.prepare()
        self.recovery.launch()

    @property
    def bookies(self) -> list[Bookie]:
        return [each for each in self.cluster.bookies if each is not self.recovery]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def uri(self) -> str:
        return self.cluster.uri

    def _keep_logs(self) -> None:
        kept = Path(self.options.kept)
        kept.mkdir(parents=True, exist_ok=True)
        for path in (*self.directory.rglob("server.log"), *self.directory.glob("*.log")):
            parent = "" if path.parent == self.directory else f"{path.parent.name}-"
            shutil.copyfile(path, kept / f"{parent}{path.name}")

    def discard(self) -> None:
        if self.options.kept:
            self._keep_logs()
        for broker in self.brokers:
            broker.kill()
        with contextlib.suppress(AttributeError):  # a start that failed early
            self.cluster.discard()
        if self.disk is not None:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)
        if self.hub is not None:
            self.hub.end_delayer()
        for namespace in self._namespaces:
            namespace.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
