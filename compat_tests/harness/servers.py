"""Server processes under test: ours, or the control (Apache Kafka), behind one interface.

QUIRE_COMPAT_TARGET chooses (quire, the default, or control). A test that fails on the control says
nothing about us, so every test is written against the control first. Both take the same settings
under Kafka's own names.
"""

import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import loop_turns, paths, raw

HOST = "127.0.0.1"
# What other projects' suites take for granted of a broker.
SUITE_SETTINGS = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
CONTROL_SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# Fixed ports must stay out of the range from which the kernel takes ports for outgoing
# connections, else a client of another test can sit on ours while the server restarts.
PORTS = range(20000, 32000)
# By port, what keeps others on this machine from taking it while nobody listens there: a name for
# other runs of these tests; and a socket that is bound and does not listen, for everything else.
# Who listens with SO_REUSEADDR, as our servers and Java's do, still may; a port that the kernel
# chooses, for whatever range it is set to, is another one.
_RESERVED: dict[int, tuple[socket.socket, socket.socket]] = {}
# Every server of this run that is up, for the log sections of failing tests.
LIVE: list["Server"] = []


def target() -> str:
    """'quire' or 'control'."""
    name = os.environ.get("QUIRE_COMPAT_TARGET", "quire")
    if name not in ("quire", "control"):
        raise ValueError(f"QUIRE_COMPAT_TARGET={name}: expected quire or control")
    return name


def free_port(count: int = 1) -> int:
    """A port below the ephemeral range that nobody listens on, the first of `count` in a row. They
    are this process's until it ends: tests that run beside it get others, also before the server
    starts and while it is down."""
    for _ in range(1000):
        first = random.choice(PORTS)
        if all(_reserve(port) for port in range(first, first + count)):
            return first
    raise RuntimeError("no free port found")


def _reserve(port: int) -> bool:
    reserved = socket.socket(socket.AF_UNIX)
    held = socket.socket()
    try:
        # A name that is no file: it is gone with the process.
        reserved.bind(f"\0quire-test-port-{port}")
        with socket.socket() as probe:
            probe.bind((HOST, port))  # Nobody has it, not even to share.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, port))
    except OSError:
        reserved.close()
        held.close()
        return False
    _RESERVED[port] = reserved, held
    return True


def die_with_parent() -> None:
    # A killed test run must not leave servers behind: PR_SET_PDEATHSIG is 1. The signal comes when
    # the thread ends that has started the process: see `in_lasting_thread`.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


#: Its one thread stays until this process ends; trio ends its own after ten seconds without work.
_STARTER = ThreadPoolExecutor(1, "starts processes")


def in_lasting_thread(start: Callable[[], object]) -> object:
    """start(), which starts processes, for who calls it from a thread of trio's."""
    return _STARTER.submit(start).result()


class Server:
    """One server process with a port and a data directory that outlive its restarts."""

    name = ""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**SUITE_SETTINGS, **(settings or {})}
        self.port = free_port()
        self.data_dir = directory / "data"
        self.log_path = directory / "server.log"
        self.process: subprocess.Popen | None = None
        self.started_count = 0

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def prepare(self) -> None:
        """What must be there before the first start."""

    def start(self, timeout_s: float = 120) -> "Server":
        """Start the process; return once it serves. Raises RuntimeError with the log's end."""
        assert self.process is None, "already running"
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.started_count == 0:
            self.prepare()
        self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._loop_log = loop_turns.ServerLog(self.log_path, self._log_offset)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                preexec_fn=die_with_parent,
            )
        self.started_count += 1
        LIVE.append(self)
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            if self.process.poll() is not None:
                code = self.process.returncode
                self._reap()
                raise RuntimeError(f"{self.name} ended with {code} at start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} not ready in {timeout_s} s:\n{self.log_tail()}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """SIGKILL, as a crash; the data directory and the port stay for the next start."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._reap()

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing is answered from now on."""
        self.process.send_signal(signal.SIGSTOP)
        # A thread that runs on another core goes on for a moment.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM and wait; the exit code. Kills, and raises, when it does not end in time."""
        assert self.process is not None
        self.process.terminate()
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.name} did not stop in {timeout_s} s") from None
        self._reap()
        return code

    def discard(self) -> None:
        """End the process, remove every file of it."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _reap(self) -> None:
        self.process = None
        self.note_loop_turns()
        if self in LIVE:
            LIVE.remove(self)

    def note_loop_turns(self) -> None:
        """Into the run's figures: what it told of its loop since this was called last."""
        loop_turns.TALLY.note(self._loop_log.news())

    def log_since_start(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_offset)
            return log.read().decode(errors="replace")

    def log_tail(self, size_bytes: int = 6000) -> str:
        if not self.log_path.exists():
            return "(no log)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - size_bytes))
            return log.read().decode(errors="replace")

    def status(self, key: str) -> int:
        """A number of /proc/PID/status in the file's own unit (VmRSS and VmHWM: kB)."""
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{key}:\s+(\d+)", text, re.M).group(1))

    def rss_bytes(self) -> int:
        return self.status("VmRSS") * 1024

    def open_file_count(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class QuireServer(Server):
    """`quire standalone`: broker, bookie and metadata in one process."""

    name = "quire"

    def command(self) -> list[str]:
        command = [str(paths.python_script("quire")), "standalone"]
        command += ["--listen", self.bootstrap, "--data-dir", str(self.data_dir)]
        # As the control has it: suites look at where a broker's setting comes from.
        command += ["--set", f"advertised.listeners=PLAINTEXT://{self.bootstrap}"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def is_ready(self) -> bool:
        return re.search(r"^ready listen=", self.log_since_start(), re.M) is not None


class ControlServer(Server):
    """Apache Kafka, one process as broker and controller."""

    name = "control"

    def java(self, heap_mb: int) -> list[str]:
        return ["java", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-cp", f"{paths.jars('kafka')}/*"]

    def prepare(self) -> None:
        controller_port = free_port()
        properties = {
            "node.id": "0",
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.data_dir),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
            # ANONYMOUS is no super user, on purpose: ACL tests need to be able to lock it out.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            **CONTROL_SETTINGS,
            **self.settings,
        }
        if "listeners" in self.settings:
            properties["listeners"] += f",CONTROLLER://{HOST}:{controller_port}"
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = [*self.java(256), "kafka.tools.StorageTool", "format", "--standalone"]
        command += ["-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"control: format failed:\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        return [*self.java(1024), "kafka.Kafka", str(self.directory / "server.properties")]

    def is_ready(self) -> bool:
        return raw.answers(HOST, self.port)


def make_server(directory: Path, settings: dict[str, str] | None = None) -> Server:
    """A server of the chosen target, not started."""
    kind = QuireServer if target() == "quire" else ControlServer
    return kind(directory, settings)
