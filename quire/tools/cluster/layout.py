"""What `quire cluster up` keeps in its directory, and how each of its processes is started.

    <directory>/cluster.json               how many there are, and their ports
    <directory>/lock                       held while it runs
    <directory>/zookeeper/                 zoo.cfg, logback.xml, data
    <directory>/bookie-1 …                 bk_server.conf, journal, ledgers
    <directory>/broker-1 …                 server.properties
    <directory>/autorecovery-1             bk_server.conf
    <directory>/<any of them>/log, pid     what it says; its process, while it runs
    <directory>/<any of them>/start        asked for by `quire cluster start`

Settings files are written anew at every start; data and ports stay.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any

import click

from quire.role_defaults import copies
from quire.tools.admin.token_note import TOKEN_NAME
from quire.tools.cluster import java_child
from runtime.secret_files import new_token, write_secret
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST = "127.0.0.1"
FORMAT = 1
PORT_MIN, PORTS_COUNT = 20_000, 12_000
ZOOKEEPER = "zookeeper"
AUTORECOVERY = "autorecovery-1"
SESSION_TIMEOUT_MS = 6_000
#: As `quire standalone --bookies`: a small cluster gives space back soon.
BOOKIE_DEFAULTS = {
    "gcWaitTime": "10000",
    "minorCompactionInterval": "60",
    "majorCompactionInterval": "3600",
    "isThrottleByBytes": "true",
    "compactionRateByBytes": str(32 << 20),
}
LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{path}</file>
    <encoder><pattern>%d %-5level %logger{{20}} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


@dataclass(slots=True, frozen=True)
class UpOptions:
    directory: Path
    brokers: int
    bookies: int
    #: The first broker's port, the next ones follow; None: as last time, else free ones.
    listen_from: int | None = None
    autorecovery: bool = False
    #: Of all brokers and all bookies, by Kafka's and BookKeeper's names.
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    bookie_settings: Mapping[str, str] = field(default_factory=dict)


class Layout:
    """Of one directory. The constructor reads and writes: ClickException, OSError."""

    def __init__(self, options: UpOptions) -> None:
        self.options = options
        self.directory = options.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        known = read_cluster_file(self.directory)
        had = known.get("bookies", 0)
        if had > options.bookies:
            raise click.UsageError(
                f"--bookies {options.bookies}: the data in {self.directory} are of {had} bookies; "
                "decommission those that are to go first"
            )
        self.ports = self._ports(known.get("ports", {}))
        document = {
            "format": FORMAT,
            "brokers": options.brokers,
            "bookies": options.bookies,
            "ports": self.ports,
        }
        (self.directory / "cluster.json").write_text(json.dumps(document, indent=2) + "\n")
        if not self.token_path.exists():
            write_secret(str(self.token_path), new_token())

    # -- names and addresses ---------------------------------------------------------------------

    @property
    def bookies(self) -> list[str]:
        return [f"bookie-{n}" for n in range(1, self.options.bookies + 1)]

    @property
    def brokers(self) -> list[str]:
        return [f"broker-{n}" for n in range(1, self.options.brokers + 1)]

    @property
    def service_uri(self) -> str:
        return f"zk+hierarchical://{HOST}:{self.ports[ZOOKEEPER]}/ledgers"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self.ports[name]}" for name in self.brokers)

    @property
    def token_path(self) -> Path:
        """Of what the brokers' pages ask for; their user's only."""
        return self.directory / TOKEN_NAME

    def log_path(self, name: str) -> Path:
        return self.directory / name / "log"

    def _ports(self, known: Mapping[str, int]) -> dict[str, int]:
        """Those of last time that are still free, so that clients find it where it was."""
        ports: dict[str, int] = {}
        wanted = dict(known)
        if self.options.listen_from is not None:
            for number, name in enumerate(self.brokers):
                ports[name] = self.options.listen_from + number
                error = _why_not_free(ports[name])
                if error is not None:
                    raise click.UsageError(f"--listen-from: {HOST}:{ports[name]}: {error}")
        taken = {*ports.values()}
        pages = map(_pages, self.brokers)
        # AutoRecovery listens nowhere, but goes by a bookie's settings.
        for name in (ZOOKEEPER, AUTORECOVERY, *self.bookies, *self.brokers, *pages):
            if name in ports:
                continue
            port = wanted.get(name, 0)
            if not port or port in taken or _why_not_free(port) is not None:
                port = _free_port(taken)
            ports[name] = port
            taken.add(port)
        return ports

    # -- processes -------------------------------------------------------------------------------

    def prepare(self, name: str) -> None:
        """Writes its settings."""
        home = self.directory / name
        home.mkdir(exist_ok=True)
        if name == ZOOKEEPER:
            (home / "data").mkdir(exist_ok=True)
            (home / "logback.xml").write_text(LOGBACK.format(path=self.log_path(name)))
            _write(home / "zoo.cfg", self._zookeeper(home))
        elif name in self.brokers:
            _write(home / "server.properties", self._broker(name))
        else:
            _write(home / "bk_server.conf", self._bookie(name, home))

    def command(self, name: str, java: str, jars: Path) -> list[str]:
        # -P: a directory of the user's that is called as one of our packages is none of ours.
        python = [sys.executable, "-P", "-m"]
        home, parent = self.directory / name, str(os.getpid())
        if name == ZOOKEEPER:
            program = [java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{home}:{jars}/*"]
            program += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg")]
            return [*python, java_child.__name__, parent, *program]
        role = name.partition("-")[0]
        command = [*python, "quire.cli", role, "--child-of", parent]
        if name in self.brokers:
            pages = f"{HOST}:{self.ports[_pages(name)]}"
            return [*command, "--config", str(home / "server.properties"), "--metrics", pages]
        return [*command, "--config", str(home / "bk_server.conf")]

    def _zookeeper(self, home: Path) -> dict[str, str]:
        return {
            "dataDir": str(home / "data"),
            "clientPort": str(self.ports[ZOOKEEPER]),
            "clientPortAddress": HOST,
            "tickTime": "1000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr",
            "autopurge.purgeInterval": "24",
        }

    def _bookie(self, name: str, home: Path) -> dict[str, str]:
        settings = dict(self.options.bookie_settings)
        settings.pop("journalDirectories", None)  # of all bookies together, and it would win
        return {
            **(BOOKIE_DEFAULTS if name in self.bookies else {}),
            **settings,
            "bookieId": name,
            "bookiePort": str(self.ports[name]),
            "listeningInterface": "lo",
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "metadataServiceUri": self.service_uri,
            "zkTimeout": str(SESSION_TIMEOUT_MS),
            "journalDirectory": str(home / "journal"),
            "ledgerDirectories": str(home / "ledgers"),
        }

    def _broker(self, name: str) -> dict[str, str]:
        return {
            **copies(self.options.bookies),
            "quire.admin.token.file": str(self.token_path),
            **self.options.broker_settings,
            "node.id": name.rpartition("-")[2],
            "listeners": f"PLAINTEXT://{HOST}:{self.ports[name]}",
            "metadataServiceUri": self.service_uri,
            "zkTimeout": str(SESSION_TIMEOUT_MS),
        }


def read_cluster_file(directory: Path) -> dict[str, Any]:
    """What the last run wrote; empty if there was none. ClickException if it is not ours."""
    path = directory / "cluster.json"
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise click.ClickException(f"{path}: format {document['format']}, not {FORMAT}")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path} is no file of `quire cluster up`: {error}") from error
    assert isinstance(document, dict)
    return document


def _pages(broker: str) -> str:
    """The port of a broker's metrics and administration."""
    return f"{broker}-pages"


def _write(path: Path, settings: Mapping[str, str]) -> None:
    lines = [f"{key}={_escaped(text)}\n" for key, text in settings.items()]
    path.write_text("# Written by quire cluster up at every start.\n" + "".join(lines))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _why_not_free(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            return str(error)
    return None


def _free_port(taken: set[int]) -> int:
    """One below those that the kernel gives to outgoing connections: it must be free again
    whenever its process starts. Two clusters that start at once look from different ones on."""
    first = os.getpid() * 17
    for step in range(PORTS_COUNT):
        port = PORT_MIN + (first + step) % PORTS_COUNT
        if port not in taken and _why_not_free(port) is None:
            return port
    raise OSError(f"no free port on {HOST} in {PORT_MIN}-{PORT_MIN + PORTS_COUNT - 1}")
