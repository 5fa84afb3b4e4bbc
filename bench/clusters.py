"""Two clusters behind one interface: three brokers of ours on three bookies, and three of Kafka's.

Ours: `quire broker` three times, `quire bookie` three times (E3 Qw3 Qa2, fsync) and a ZooKeeper;
the controller is one of the brokers. Kafka: three brokers and a controller in a process of its own
(KRaft), replication factor 3. Both: min.insync.replicas=2, no automatic rebalance of leaders, four
partitions of __consumer_offsets, and the same session time-out.

`Members` is what the benchmarks see. Brokers are 1, 2 and 3, and can be killed, stopped and
started one by one; figures of memory and CPU are of all processes, ZooKeeper and controller too.
"""

import argparse
import datetime
import re
import shutil
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames, load, rounds
from bench.clients import KEPT, QUIET, TIMEOUT_SECONDS
from bench.peers import BrokerCluster, free_port
from bench.servers import HOST, Kafka, Server, cpu_seconds_of, memory_mb_of

Address = tuple[str, int]
NODES = (1, 2, 3)
COPIES = 3
IN_SYNC = 2
#: Times are UTC, as `session_end` expects them.
LOG4J = """<Configuration status="WARN"><Appenders><Console name="out" target="SYSTEM_OUT">
  <PatternLayout pattern="time=%d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %-5level %msg%n"/>
</Console></Appenders><Loggers>
  <Root level="WARN"><AppenderRef ref="out"/></Root>
  <Logger name="org.apache.kafka.controller" level="INFO"/>
</Loggers></Configuration>
"""


@dataclass(frozen=True)
class Operations:
    """Counters of the metadata service. `writes`: ZooKeeper's transactions, or records of KRaft's
    log (two a second of which mean nothing); `requests`: what ZooKeeper received, pings included,
    and nothing for KRaft, whose brokers follow the log."""

    writes: int
    requests: int | None

    def since(self, before: "Operations") -> "Operations":
        requests = None
        if self.requests is not None and before.requests is not None:
            requests = self.requests - before.requests
        return Operations(self.writes - before.writes, requests)


class Members:
    """A cluster; `session_ms` is how long a dead broker counts as alive."""

    name = ""

    def __init__(self, directory: Path, session_ms: int) -> None:
        self.directory = directory
        self.session_ms = session_ms

    def start(self) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        raise NotImplementedError

    def address(self, node: int) -> Address:
        raise NotImplementedError

    def broker_pid(self, node: int) -> int | None:
        """None if it does not run."""
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Of all processes."""
        raise NotImplementedError

    def kill(self, node: int) -> None:
        """SIGKILL."""
        raise NotImplementedError

    def stop(self, node: int) -> None:
        """SIGTERM, and its end."""
        raise NotImplementedError

    def restart(self, node: int) -> None:
        """Starts a broker that ended; `wait_until_whole` waits until it is one of three again."""
        raise NotImplementedError

    def session_ends(self) -> list[float]:
        """When brokers were found dead, by the cluster's own logs; seconds since 1970."""
        raise NotImplementedError

    def operations(self) -> Operations:
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self.address(node)[1]}" for node in NODES)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self.pids()))

    def memory_mb(self) -> float:
        return sum(map(memory_mb_of, self.pids()))

    def broker_memory_mb(self) -> float:
        pids = [self.broker_pid(node) for node in NODES]
        return sum(memory_mb_of(pid) for pid in pids if pid is not None)

    def create_topic(self, topic: str, partitions: int, first: tuple[int, ...] = NODES) -> None:
        """Led by `first` in turn. Returns when each partition has a leader that all know."""
        assignment = []
        for number in range(partitions):
            leader = first[number % len(first)]
            assignment.append([leader, *(node for node in NODES if node != leader)])
        config = {**KEPT, "min.insync.replicas": str(IN_SYNC)}
        new = NewTopic(topic, partitions, replica_assignment=assignment, config=config)
        admin = self.admin()
        admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)
        wait_until(lambda: len(self.leaders(topic, admin)) == partitions, f"leaders of {topic}")

    def delete_topic(self, topic: str) -> None:
        admin = self.admin()  # its requests end when it does
        admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)

    def leaders(self, topic: str, admin: AdminClient | None = None) -> dict[int, int]:
        """Partition -> broker, of those that have a leader."""
        admin = admin or self.admin()
        found = admin.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
        return {each.id: each.leader for each in found.partitions.values() if each.leader > 0}

    def led(self, topic: str) -> dict[Address, list[int]]:
        """Broker's address -> the partitions that it leads."""
        found: dict[Address, list[int]] = {}
        for partition, node in sorted(self.leaders(topic).items()):
            found.setdefault(self.address(node), []).append(partition)
        return found

    def wait_until_whole(self) -> None:
        """Three brokers, and each partition has its three copies in sync."""
        admin = self.admin()

        def is_whole() -> bool:
            found = admin.list_topics(timeout=TIMEOUT_SECONDS)
            parts = [each for topic in found.topics.values() for each in topic.partitions.values()]
            return len(found.brokers) == len(NODES) and all(
                len(each.isrs) == len(each.replicas) and each.leader > 0 for each in parts
            )

        wait_until(is_whole, f"{self.name} with all brokers and copies")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not after {TIMEOUT_SECONDS} s: {what}")
        time.sleep(0.05)


def seconds_of(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


class QuireCluster(Members):
    name = "quire"

    def __init__(self, directory: Path, session_ms: int) -> None:
        super().__init__(directory, session_ms)
        self.cluster: BrokerCluster | None = None

    def start(self) -> None:
        self.directory.mkdir(parents=True)
        self.cluster = BrokerCluster(self.directory)
        self.cluster.start(len(NODES), COPIES, zkTimeout=str(self.session_ms))
        self.wait_until_whole()

    def discard(self) -> None:
        if self.cluster is not None:
            self.cluster.discard()
            self.cluster = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def address(self, node: int) -> Address:
        return HOST, self.cluster.broker(node).port

    def broker_pid(self, node: int) -> int | None:
        process = self.cluster.broker(node).process
        return None if process is None else process.pid

    def pids(self) -> list[int]:
        servers = [*self.cluster.brokers, *self.cluster.storage.bookies, self.cluster.zookeeper]
        return [server.process.pid for server in servers if server.process is not None]

    def kill(self, node: int) -> None:
        self.cluster.broker(node).kill()

    def stop(self, node: int) -> None:
        self.cluster.broker(node).stop(TIMEOUT_SECONDS)

    def restart(self, node: int) -> None:
        self.cluster.broker(node).start(TIMEOUT_SECONDS)

    def session_ends(self) -> list[float]:
        log = "".join(
            each.log_since_start() for each in self.cluster.brokers if each.process is not None
        )
        stamps = re.findall(r"time=(\S+) .*event=brokers live=2", log)
        return sorted(map(seconds_of, stamps))

    def operations(self) -> Operations:
        transactions = re.search(r"Zxid: 0x(\w+)", self.cluster.zookeeper.say("srvr"))
        packets = re.search(r"zk_packets_received\s+(\d+)", self.cluster.zookeeper.say("mntr"))
        assert transactions is not None, "ZooKeeper does not answer"
        assert packets is not None, "ZooKeeper does not answer"
        # The upper half counts ZooKeeper's leaders.
        return Operations(int(transactions[1], 16) & 0xFFFFFFFF, int(packets[1]))


class KafkaNode(Kafka):
    """A process of a cluster: brokers are 1 to 3, the controller is 100."""

    copies = COPIES

    def __init__(
        self, cluster: "KafkaCluster", node_id: int, controller_port: int, roles: tuple[str, ...]
    ) -> None:
        super().__init__(cluster.directory / f"node-{node_id}")
        self.name = f"{cluster.name}, node {node_id}"
        self.node_id, self.roles = node_id, roles
        self.controller_port = controller_port
        if roles == ("controller",):
            self.port = controller_port
        self.settings = (
            f"min.insync.replicas={IN_SYNC}",
            "offsets.topic.num.partitions=4",
            "auto.leader.rebalance.enable=false",
            f"broker.session.timeout.ms={cluster.session_ms}",
            # As many beats in a session as by default: 2 s of 9 s.
            f"broker.heartbeat.interval.ms={cluster.session_ms * 2 // 9}",
            *cluster.settings,
        )

    def prepare(self) -> None:
        super().prepare()
        (self.directory / "log4j2.xml").write_text(LOG4J)

    def java(self, *arguments: str) -> list[str]:
        command = super().java(*arguments)
        return [command[0], f"-Dlog4j2.configurationFile={self.directory}/log4j2.xml", *command[1:]]


class KafkaCluster(Members):
    name = "Kafka"
    settings: tuple[str, ...] = ()

    def __init__(self, directory: Path, session_ms: int) -> None:
        super().__init__(directory, session_ms)
        port = free_port()
        self.controller = KafkaNode(self, 100, port, ("controller",))
        self.brokers = [KafkaNode(self, node, port, ("broker",)) for node in NODES]

    @property
    def servers(self) -> list[Server]:
        return [self.controller, *self.brokers]

    def start(self) -> None:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_ready()
        self.wait_until_whole()

    def discard(self) -> None:
        for server in reversed(self.servers):
            server.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def address(self, node: int) -> Address:
        return self.brokers[node - 1].address

    def broker_pid(self, node: int) -> int | None:
        server = self.brokers[node - 1]
        return None if server.process is None else server.pid

    def pids(self) -> list[int]:
        return [server.pid for server in self.servers if server.process is not None]

    def kill(self, node: int) -> None:
        self.brokers[node - 1].kill()

    def stop(self, node: int) -> None:
        self.brokers[node - 1].stop()

    def restart(self, node: int) -> None:
        self.brokers[node - 1].start()

    def session_ends(self) -> list[float]:
        log = self.controller.log_path.read_text(errors="replace")
        return sorted(map(seconds_of, re.findall(r"time=(\S+) .*Fencing broker \d+ at", log)))

    def operations(self) -> Operations:
        alive = next(server for server in self.brokers if server.process is not None)
        return Operations(metadata_log_end(alive.address), None)


class KafkaFlushingCluster(KafkaCluster):
    name = "Kafka flush=1"
    settings = ("log.flush.interval.messages=1",)


CLUSTERS: dict[str, type[Members]] = {
    "kafka": KafkaCluster,
    "kafka-flush": KafkaFlushingCluster,
    "quire": QuireCluster,
}


def metadata_log_end(address: Address) -> int:
    """The high watermark of KRaft's log, by DescribeQuorum v0 (KIP-595)."""
    topic = frames.compact(b"__cluster_metadata") + b"\x02" + struct.pack(">i", 0) + b"\0\0"
    with load.connect(address) as sock:
        sock.sendall(frames.request(55, 0, b"\x02" + topic + b"\0"))
        (length,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        data = memoryview(sock.recv(length, socket.MSG_WAITALL))
    at = frames.skip_tags(data, 4)
    (error,) = struct.unpack_from(">h", data, at)
    if error:
        raise RuntimeError(f"DescribeQuorum failed: {error}")
    size, at = frames.read_uvarint(data, at + 3)  # after the number of topics
    _, error, _, _, end = struct.unpack_from(">ihiiq", data, at + size)
    if error:
        raise RuntimeError(f"DescribeQuorum failed: {error}")
    return end


def options_of(
    doc: str,
    *,
    session_ms: int,
    servers: str = "kafka,quire",
    count: int = 3,
    seconds: float | None = None,
) -> argparse.ArgumentParser:
    """`rounds.options_of` with --session-ms, for clusters."""
    parser = rounds.options_of(doc, servers.split(","), count, seconds)
    parser.add_argument(
        "--session-ms",
        type=int,
        default=session_ms,
        help="zkTimeout, broker.session.timeout.ms (defaults: 10 s, 9 s)",
    )
    return parser


def chosen(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> list[Callable[[Path], Members]]:
    """The kinds of clusters that the options name, as functions of a directory."""
    kinds = rounds.choose(parser, options, CLUSTERS)
    return [lambda directory, kind=kind: kind(directory, options.session_ms) for kind in kinds]
