"""The servers that are compared: each a process in a directory of its own, on a free port.

What is read of a process comes from /proc: CPU seconds (user and system, all threads), resident
memory now and at its peak.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from bench.peers import free_port

HOST = "127.0.0.1"
START_TIMEOUT_SECONDS = 120
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: What Kafka's own start script gives its JVM.
KAFKA_JVM = [
    *("-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
]


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("QUIRE_CACHE") or Path(base) / "quire")


def kafka_jars() -> Path:
    jars = cache_directory() / "jars" / "kafka"
    if not any(jars.glob("kafka_2.13-*.jar")):
        raise SystemExit(f"no Kafka in {jars}: run `make peers`")
    return jars


def _die_with_parent() -> None:
    # A benchmark that was killed must not leave servers behind: PR_SET_PDEATHSIG is 1.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Server:
    """`start`, measure, `stop`; the directory stays until `discard`."""

    name = ""
    #: Of each record, on this server's own processes.
    copies = 1

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.process: subprocess.Popen | None = None

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """What comes before the first start."""

    def start(self) -> None:
        """Returns when the port accepts connections; RuntimeError with the log's end if not."""
        self.launch()
        self.wait_until_ready()

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    def launch(self) -> None:
        """Starts the process without waiting: several can start at once."""
        if not self.directory.exists():
            self.directory.mkdir(parents=True)
            self.prepare()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                preexec_fn=_die_with_parent,
            )

    def wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(self.address, timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(
                        f"{self.name} did not start:\n{self.log_path.read_text()[-3000:]}"
                    ) from None
                time.sleep(0.005)

    def stop(self) -> None:
        """A clean stop if it ends in time, else a kill."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def discard(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def pids(self) -> list[int]:
        """The server's process and all below it."""
        found = [self.pid]
        for pid in found:
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, path.read_text().split())
        return found

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self.pids()))

    def memory_mb(self, key: str = "VmRSS") -> float:
        """VmRSS now, RssAnon without mapped files, VmHWM at the peak since `reset_peak`; summed
        over the processes, so that pages which they share count for each."""
        return sum(memory_mb_of(pid, key) for pid in self.pids())

    def reset_peak(self) -> None:
        for pid in self.pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds_of(pid: int) -> float:
    # The command's name may hold spaces and brackets: fields count from the last bracket.
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS_PER_SECOND


def memory_mb_of(pid: int, key: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(key)


class Kafka(Server):
    """Apache Kafka in KRaft mode, one node, as its quick start configures it."""

    name = "Kafka"
    settings: tuple[str, ...] = ()
    node_id = 1
    roles: tuple[str, ...] = ("broker", "controller")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.jars = kafka_jars()
        self.controller_port = free_port()

    def command(self) -> list[str]:
        return self.java("kafka.Kafka", "server.properties")

    def java(self, *arguments: str) -> list[str]:
        return ["java", *KAFKA_JVM, "-cp", f"{self.jars}/*", *arguments]

    def prepare(self) -> None:
        listeners = {
            "broker": f"PLAINTEXT://{self.bootstrap}",
            "controller": f"CONTROLLER://{HOST}:{self.controller_port}",
        }
        lines = [
            f"node.id={self.node_id}",
            f"process.roles={','.join(self.roles)}",
            f"listeners={','.join(listeners[role] for role in self.roles)}",
            f"advertised.listeners={listeners[self.roles[0]]}",
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.bootstrap.servers={HOST}:{self.controller_port}",
            f"log.dirs={self.directory}/data",
            f"offsets.topic.replication.factor={self.copies}",
            f"transaction.state.log.replication.factor={self.copies}",
            "transaction.state.log.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            *self.settings,
        ]
        (self.directory / "server.properties").write_text("\n".join(lines) + "\n")
        arguments = ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAA"]
        arguments += ["--standalone"] if "controller" in self.roles else []
        subprocess.run(
            self.java("kafka.tools.StorageTool", *arguments, "-c", "server.properties"),
            cwd=self.directory,
            check=True,
            capture_output=True,
        )


class KafkaFlushing(Kafka):
    """Kafka with what quire always does: no acknowledgement before the disk has it."""

    name = "Kafka flush=1"
    settings = ("log.flush.interval.messages=1",)


class KafkaFollower(Kafka):
    """A broker without a controller, of `leader`'s cluster."""

    roles = ("broker",)

    def __init__(self, leader: "KafkaReplicated", node_id: int) -> None:
        super().__init__(leader.directory / f"broker-{node_id}")
        self.name = f"{leader.name}, broker {node_id}"
        self.node_id, self.copies, self.settings = node_id, leader.copies, leader.settings
        self.controller_port = leader.controller_port


class KafkaReplicated(Kafka):
    """Three brokers, one of which is the controller as well; `address` is that one's."""

    name = "Kafka RF=3"
    copies = 3

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.followers = [KafkaFollower(self, number) for number in range(2, self.copies + 1)]

    def start(self) -> None:
        super().start()
        for follower in self.followers:
            follower.start()

    def stop(self) -> None:
        for follower in self.followers:
            follower.stop()
        super().stop()

    def kill(self) -> None:
        for follower in self.followers:
            follower.kill()
        super().kill()

    def pids(self) -> list[int]:
        return [*super().pids(), *(pid for each in self.followers for pid in each.pids())]


class KafkaReplicatedFlushing(KafkaReplicated):
    name = "Kafka RF=3 flush=1"
    settings = ("log.flush.interval.messages=1",)


class Quire(Server):
    """`quire standalone` of this checkout, with its defaults."""

    name = "quire"
    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        binary = Path(__file__).parent.parent / ".venv" / "bin" / "quire"
        options = ["--listen", self.bootstrap, "--data-dir", str(self.directory / "data")]
        return [str(binary), "standalone", *options, *self.options, "--log-level", "warning"]


class QuireReplicated(Quire):
    """The same on three bookies, each a process of its own: a topic's three copies."""

    options = ("--bookies", "3")
    copies = 3


SERVERS: dict[str, type[Server]] = {
    "kafka": Kafka,
    "kafka-flush": KafkaFlushing,
    "quire": Quire,
}
#: The same with three copies of everything.
REPLICATED_SERVERS: dict[str, type[Server]] = {
    "kafka": KafkaReplicated,
    "kafka-flush": KafkaReplicatedFlushing,
    "quire": QuireReplicated,
}
