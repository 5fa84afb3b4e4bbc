"""Archives of the classes of Java's programs (JEP 350): a JVM maps one, instead of looking through
some hundred jars, and reading and checking each class. A third of the time of a tool that lives
for a second or two.

An archive is made once for the jars and the JVM that are there, by a program that runs for that,
and kept with the jars. A JVM that cannot use it (other jars, another class path) reads its classes
from the jars as ever.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import paths
from harness.servers import HOST, die_with_parent, free_port

#: Programs that live for seconds, beside a server and each other.
SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
#: Of an archive that does not fit a JVM warns on standard output, where tests read.
QUIET = "-Xlog:disable"
START_SECONDS = 60
#: So that a tool that finds no server gives up soon.
IMPATIENT = "default.api.timeout.ms=300\nrequest.timeout.ms=200\n"


def kafka() -> tuple[str, ...]:
    """Options of a JVM whose class path begins with Kafka's jars. What makes the archive is a tool
    that finds no broker."""

    def train(jvm: list[str], home: Path) -> None:
        (home / "impatient").write_text(IMPATIENT)
        words = ["--bootstrap-server", f"{HOST}:1", "--list"]
        words += ["--command-config", str(home / "impatient")]
        subprocess.run(
            [*jvm, "org.apache.kafka.tools.TopicCommand", *words],
            capture_output=True,
            check=False,
        )

    return _options("kafka", train)


def zookeeper() -> tuple[str, ...]:
    """As `kafka`, of ZooKeeper's; made by a server."""

    def train(jvm: list[str], home: Path) -> None:
        with _zookeeper(jvm, home):
            pass

    return _options("zookeeper", train)


def bookkeeper() -> tuple[str, ...]:
    """As `kafka`, of BookKeeper's; made by a bookie."""

    def train(jvm: list[str], home: Path) -> None:
        java = ["java", *SMALL_JVM, QUIET, "-cp"]
        port, bookie_port = free_port(), free_port()
        config = home / "bk_server.conf"
        lines = {
            "metadataServiceUri": f"zk+hierarchical://{HOST}:{port}/ledgers",
            "allowLoopback": "true",
            "advertisedAddress": HOST,
            "bookiePort": bookie_port,
            "journalDirectory": home / "journal",
            "ledgerDirectories": home / "ledgers",
            "httpServerEnabled": "false",
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        with _zookeeper([*java, _jars("zookeeper")], home, port):
            shell = ["org.apache.bookkeeper.bookie.BookieShell", "-conf", str(config)]
            shell = [*java, _jars("bookkeeper"), *shell, "initnewcluster"]
            subprocess.run(shell, capture_output=True, check=True)
            main = ["org.apache.bookkeeper.server.Main", "--conf", str(config)]
            with _running([*jvm, *main], bookie_port):
                pass

    return _options("bookkeeper", train)


@contextlib.contextmanager
def _zookeeper(jvm: list[str], home: Path, port: int = 0) -> Iterator[None]:
    port = port or free_port()
    config = home / "zoo.cfg"
    config.write_text(
        f"dataDir={home / 'zookeeper'}\nclientPort={port}\nclientPortAddress={HOST}\n"
        "admin.enableServer=false\n4lw.commands.whitelist=*\n"
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with _running([*jvm, main, str(config)], port):
        yield


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    """While it runs it listens there; it ends by SIGTERM."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"does not start: {' '.join(command)}")
            time.sleep(0.05)
        yield
        process.terminate()
        process.wait(START_SECONDS)
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 5).close()
    except OSError:
        return False
    return True


def _options(profile: str, train: Callable[[list[str], Path], object]) -> tuple[str, ...]:
    """`train` runs a JVM, whose command begins so, to its end in order; it has a folder."""
    archive = _place(profile)
    if not archive.exists():
        with archive.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as home:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                made = archive.with_suffix(f".{os.getpid()}")
                jvm = ["java", *SMALL_JVM, QUIET, f"-XX:ArchiveClassesAtExit={made}"]
                train([*jvm, "-cp", _jars(profile)], Path(home))
                made.rename(archive)
    return (QUIET, f"-XX:SharedArchiveFile={archive}")


def _jars(profile: str) -> str:
    return f"{paths.jars(profile)}/*"


def _place(profile: str) -> Path:
    """Another one for other jars, and for another JVM."""
    java = Path(shutil.which("java") or "java").resolve()
    files = (java, *sorted(paths.jars(profile).glob("*.jar")))
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    return paths.cache_dir() / "jars" / f"{profile}-{digest}.jsa"
