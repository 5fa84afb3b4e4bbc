"""A cluster of `quire broker` processes on one ZooKeeper and our bookies."""

import re
import time
from pathlib import Path

from harness import paths
from harness.bookkeeper import Cluster, QuireBookie
from harness.servers import HOST, Server
from harness.zookeeper import ZooKeeper

#: Of the session that a broker has with ZooKeeper: how long a dead one counts as alive.
SESSION_MS = 3000

BROKER_SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.leader.rebalance.enable": "false",
    "zkTimeout": str(SESSION_MS),
}


def session_state(log: str) -> str:
    """As the process told last: CONNECTED, SUSPENDED or LOST."""
    told = re.findall(r" event=zookeeper state=(\w+)", log)
    return told[-1] if told else ""


class Broker(Server):
    """One `quire broker`; `start` returns once it is registered and serves."""

    name = "broker"

    def __init__(
        self, directory: Path, node_id: int, uri: str, settings: dict[str, str] | None = None
    ) -> None:
        super().__init__(directory, settings)
        self.node_id = node_id
        self.settings = {
            **BROKER_SETTINGS,
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "metadataServiceUri": uri,
            **(settings or {}),
        }

    def command(self) -> list[str]:
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return [str(paths.python_script("quire")), "broker", "--config", str(config)]

    def is_ready(self) -> bool:
        return f"ready listen={HOST}:{self.port}\n" in self.log_since_start()

    def states(self) -> str:
        """Of all brokers, as this one was told last: «1:running 2:cordoned». None if that was
        before its session ended, or broke: it has to look again."""
        log = self.log_since_start()
        told = list(re.finditer(r' event=brokers .*states="?([^"\n]*)', log))
        if not told:
            return ""
        since = log[told[-1].end() :]
        is_old = "state=LOST" in since or " event=registered " in since
        return "" if is_old or session_state(log) != "CONNECTED" else told[-1][1]

    def writable_bookies(self) -> int:
        """How many there are, as this broker was told last."""
        told = re.findall(r" event=bookies writable=(\d+)", self.log_since_start())
        return int(told[-1]) if told else 0


class BrokerCluster:
    """`start` brings up ZooKeeper, bookies and brokers 1, 2, 3 and so on."""

    def __init__(self, directory: Path, zookeeper: ZooKeeper | None = None) -> None:
        """`zookeeper`: another than the usual."""
        self.directory = directory
        self.storage = Cluster(directory, zookeeper=zookeeper)
        self.brokers: list[Broker] = []

    @property
    def zookeeper(self):
        return self.storage.zookeeper

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self, brokers: int = 3, bookies: int = 3, **settings: str) -> "BrokerCluster":
        """`settings` are the brokers'; the bookies' sessions last as long as theirs."""
        session = {key: value for key, value in settings.items() if key == "zkTimeout"}
        # Our bookies make the tree themselves.
        self.storage.make_tree = lambda: None
        self.storage.start(QuireBookie, **session)
        if bookies > 1:
            self.storage.start(*[QuireBookie] * (bookies - 1), **session)
        for _ in range(brokers):
            self.add_broker(**settings)
        return self

    def add_broker(self, **settings: str) -> Broker:
        node_id = len(self.brokers) + 1
        named = {name.replace("_", "."): value for name, value in settings.items()}
        directory = self.directory / f"broker-{node_id}"
        broker = Broker(directory, node_id, self.storage.uri, named)
        self.brokers.append(broker)
        broker.start()
        return broker

    def broker(self, node_id: int) -> Broker:
        return self.brokers[node_id - 1]

    def wait_until_told(self, states: str) -> None:
        """All that run were told this of each other, as one that makes a topic has to be: a broker
        is up a little before the others hear of it, and gone a little before, too."""
        running = [broker for broker in self.brokers if broker.process is not None]
        bookies = sum(bookie.process is not None for bookie in self.storage.bookies)
        for broker in running:
            wait_for(
                lambda broker=broker: (
                    broker.states() == states and broker.writable_bookies() == bookies
                ),
                60,
                f"broker {broker.node_id} is not told: {states}",
            )

    def session_states(self) -> set[str]:
        """Of brokers and bookies that run."""
        every = [each for each in (*self.brokers, *self.storage.bookies) if each.process]
        return {session_state(each.log_since_start()) for each in every}

    def wait_until_all_run(self) -> None:
        self.wait_until_told(" ".join(f"{each.node_id}:running" for each in self.brokers))

    def discard(self) -> None:
        for broker in self.brokers:
            broker.kill()
        self.storage.discard()


def wait_for(condition, timeout_s: float, what: object) -> float:
    """Seconds that it took. AssertionError with `what`, as it is then."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + timeout_s, str(what)
        time.sleep(0.01)
    return time.monotonic() - started
