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

HOST = "127.0.0.1"
START_TIMEOUT_SECONDS = 60
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _die_with_parent() -> None:
    # A benchmark that was killed must not leave servers behind: PR_SET_PDEATHSIG is 1.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Server:
    """`start`, measure, `stop`; the directory stays until `discard`."""

    name = ""

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
        if not self.directory.exists():
            self.directory.mkdir(parents=True)
            self.prepare()
        log_path = self.directory / "server.log"
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(self.address, timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(
                        f"{self.name} did not start:\n{log_path.read_text()[-3000:]}"
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

    def cpu_seconds(self) -> float:
        # The command's name may hold spaces and brackets: fields count from the last bracket.
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS_PER_SECOND

    def memory_mb(self, key: str = "VmRSS") -> float:
        """VmRSS now, RssAnon without mapped files, VmHWM at the peak since `reset_peak`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024 / 1e6
        raise ValueError(key)

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


class Kafka(Server):
    """Apache Kafka in KRaft mode, one node, as its quick start configures it."""

    name = "Kafka"
    settings: tuple[str, ...] = ()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.jars = kafka_jars()
        self.controller_port = free_port()

    def command(self) -> list[str]:
        return self.java("kafka.Kafka", "server.properties")

    def java(self, *arguments: str) -> list[str]:
        return ["java", *KAFKA_JVM, "-cp", f"{self.jars}/*", *arguments]

    def prepare(self) -> None:
        lines = [
            "node.id=1",
            "process.roles=broker,controller",
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{self.controller_port}",
            f"advertised.listeners=PLAINTEXT://{self.bootstrap}",
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.bootstrap.servers={HOST}:{self.controller_port}",
            f"log.dirs={self.directory}/data",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            *self.settings,
        ]
        (self.directory / "server.properties").write_text("\n".join(lines) + "\n")
        arguments = ("format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "--standalone")
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


class Quire(Server):
    """`quire standalone` of this checkout, with its defaults."""

    name = "quire"

    def command(self) -> list[str]:
        binary = Path(__file__).parent.parent / ".venv" / "bin" / "quire"
        options = ["--listen", self.bootstrap, "--data-dir", str(self.directory / "data")]
        return [str(binary), "standalone", *options, "--log-level", "warning"]


SERVERS: dict[str, type[Server]] = {
    "kafka": Kafka,
    "kafka-flush": KafkaFlushing,
    "quire": Quire,
}
