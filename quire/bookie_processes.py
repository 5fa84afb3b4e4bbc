"""Bookies as processes of their own, for `quire standalone --bookies N`.

    <data directory>/bookie-1 … bookie-N     journal, ledgers and bk_server.conf of each
    <data directory>/metadata.sock           where they reach our metadata (metadata/served.py)
    <data directory>/bookie-n/ledgers/admin.url    where its pages are, while they are served

With pages (--metrics, httpServerEnabled, prometheusStatsHttpPort) each has its own ports: bookie n
the given one plus n - 1; without a given one any that is free, kept as the bookie's port is.

Each is `quire bookie --config <its bk_server.conf>`. That file is written anew at every start; its
port is kept from the last one if it is still free. A bookie that dies is started again, at once the
first time and then after pauses that double; its registration goes as soon as it is seen to be
dead. None outlives this process (runtime/processes.py). A clean stop asks all of them to end, and
kills who has not after STOP_SECONDS_MAX.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bookie.errors import BookieStartError
from quire.role_defaults import GARBAGE
from runtime.config import ConfigError, parse_properties
from runtime.logs import kv
from runtime.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ledger.bookie_watcher import BookieWatcher
    from metadata.served import MetadataServer

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
CONFIG_NAME = "bk_server.conf"
SOCKET_NAME = "metadata.sock"
PORT_MAX = 65535
SESSION_TIMEOUT_MS = 6_000
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
PORT_TRIES = 20
RESTART_SECONDS_MIN = 0.1
RESTART_SECONDS_MAX = 10.0
#: Who ran for so long is started again at once.
STEADY_SECONDS = 30.0
_DIRECTORY = re.compile(r"bookie-([1-9][0-9]*)")


@dataclass(slots=True, frozen=True)
class BookieProcessesConfig:
    data_directory: str
    count: int
    #: By BookKeeper's names, what the user set, for all of them.
    settings: Mapping[str, str]
    log_levels: str = "info"
    #: Each serves its pages on loopback also if the settings do not say so.
    has_pages: bool = False

    @property
    def socket_path(self) -> str:
        return os.path.join(self.data_directory, SOCKET_NAME)

    @property
    def bookie_ids(self) -> list[str]:
        return [f"bookie-{number}" for number in range(1, self.count + 1)]


def check_layout(data_directory: str, count: int, in_process_directory: str) -> None:
    """ConfigError if the data there are of another number of bookies: what the missing ones hold
    would be unreadable. More than there were is fine."""
    names = os.listdir(data_directory) if os.path.isdir(data_directory) else []
    numbers = [int(match[1]) for name in names if (match := _DIRECTORY.fullmatch(name))]
    had = max(numbers, default=0)
    if had > count or (had and count == 1):
        raise ConfigError(
            "--bookies", f"--bookies {count}: the data in {data_directory} are of {had} bookies"
        )
    if count > 1 and in_process_directory in names:
        raise ConfigError(
            "--bookies",
            f"--bookies {count}: the data in {data_directory} are of one bookie in the server's "
            "own process; start with --bookies 1, or in another directory",
        )


class BookieProcesses:
    """Keeps them running while `run` runs."""

    def __init__(
        self,
        config: BookieProcessesConfig,
        server: MetadataServer,
        watcher: BookieWatcher,
    ) -> None:
        self._config = config
        self._server = server
        self._watcher = watcher
        self._changed = trio.Event()
        self._is_stopping = False
        self._is_ready = False
        self._children: dict[str, ChildProcess] = {}
        #: By bookie and setting: they are chosen before anybody listens there.
        self._ports: dict[tuple[str, str], int] = {}
        watcher.subscribe(self._bookies_changed)

    @property
    def pids(self) -> dict[str, int]:
        """By bookie id, of those that run."""
        return {name: child.pid for name, child in self._children.items()}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` when all are registered. BookieStartError if one ends before, or that takes too
        long; ConfigError, OSError."""
        for name in self._config.bookie_ids:
            self._write_config(name)
        try:
            async with trio.open_nursery() as nursery:
                for name in self._config.bookie_ids:
                    nursery.start_soon(self._keep, name)
                with trio.move_on_after(READY_SECONDS_MAX):
                    await self._wait_registered()
                    self._is_ready = True
                if not self._is_ready:
                    raise BookieStartError(
                        f"no registration of {', '.join(sorted(self._missing()))} within "
                        f"{READY_SECONDS_MAX:.0f} s"
                    )
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                await self._stop()

    def _bookies_changed(self) -> None:
        self._changed.set()

    def _missing(self) -> set[str]:
        there = self._watcher.writable | self._watcher.read_only
        return set(self._config.bookie_ids) - there

    async def _wait_registered(self) -> None:
        while self._missing():
            self._changed = trio.Event()
            await self._changed.wait()

    async def _keep(self, name: str) -> None:
        """Starts it, again and again."""
        pause = RESTART_SECONDS_MIN
        while True:
            started_at = trio.current_time()
            child = self._children[name] = ChildProcess(self._command(name))
            logger.info("bookie_started", kv(bookie=name, pid=child.pid))
            code = await child.wait()
            del self._children[name]
            await self._server.end_client(name)
            if not self._is_ready:
                raise BookieStartError(f"{name} ended with code {code} at the start; see its log")
            if trio.current_time() - started_at > STEADY_SECONDS:
                pause = RESTART_SECONDS_MIN
            logger.warning(
                "bookie_died",
                kv(bookie=name, pid=child.pid, code=code, restart_in_ms=int(pause * 1000)),
            )
            await trio.sleep(pause)
            pause = min(2 * pause, RESTART_SECONDS_MAX)
            self._write_config(name)

    async def _stop(self) -> None:
        children = list(self._children.items())
        for _, child in children:
            child.terminate()
        with trio.move_on_after(STOP_SECONDS_MAX):
            for _, child in children:
                await child.wait()
        for name, child in children:
            child.kill()
            logger.info("bookie_stopped", kv(bookie=name, code=await child.wait()))
        self._children.clear()

    # -- how each is started ---------------------------------------------------------------------

    def _command(self, name: str) -> Sequence[str]:
        # -P: a directory of the user's that is called as one of our packages is none of ours.
        program = [sys.executable, "-P", "-m", "quire.cli", "bookie"]
        return [
            *program,
            "--config",
            self._config_path(name),
            "--child-of",
            str(os.getpid()),
            "--log-level",
            self._config.log_levels,
        ]

    def _config_path(self, name: str) -> str:
        return os.path.join(self._config.data_directory, name, CONFIG_NAME)

    def _write_config(self, name: str) -> None:
        path = self._config_path(name)
        directory = os.path.dirname(path)
        os.makedirs(directory, exist_ok=True)
        settings = {
            **GARBAGE,
            **self._config.settings,
            "bookieId": name,
            "bookiePort": str(self._port(name, "bookiePort")),
            **self._pages(name),
            "listeningInterface": "lo",
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "metadataServiceUri": f"quire+unix://{self._config.socket_path}",
            "zkTimeout": str(SESSION_TIMEOUT_MS),
            "journalDirectory": os.path.join(directory, "journal"),
            "ledgerDirectories": os.path.join(directory, "ledgers"),
        }
        settings.pop("journalDirectories", None)  # of all bookies together, and it would win
        lines = [f"{key}={_escaped(text)}\n" for key, text in settings.items()]
        with open(path, "w", encoding="utf-8") as file:
            file.write("# Written by quire standalone at every start.\n")
            file.writelines(lines)

    def _pages(self, name: str) -> dict[str, str]:
        """The ports of one of them: they share a machine."""
        given = self._config.settings
        pages = {}
        if self._config.has_pages and "httpServerEnabled" not in given:
            pages = {"httpServerEnabled": "true", "httpServerHost": HOST}
        is_enabled = given.get("httpServerEnabled", "").strip().lower() == "true"
        if pages or is_enabled:
            pages["httpServerPort"] = str(self._numbered_port(name, "httpServerPort"))
        if given.get("prometheusStatsHttpPort") is not None or "statsProviderClass" in given:
            port = self._numbered_port(name, "prometheusStatsHttpPort")
            pages["prometheusStatsHttpPort"] = str(port)
        return pages

    def _numbered_port(self, name: str, setting: str) -> int:
        """ConfigError if there is no such port."""
        given = int(self._config.settings.get(setting, "0"))
        if not given:
            return self._port(name, setting)
        index = self._config.bookie_ids.index(name)
        if given + index > PORT_MAX:
            raise ConfigError(
                setting, f"{setting}={given}: bookie {index + 1} has no port after it"
            )
        self._ports[name, setting] = given + index
        return given + index

    def _port(self, name: str, setting: str) -> int:
        taken = {port for key, port in self._ports.items() if key != (name, setting)}
        port = free_port(self._config_path(name), setting, taken)
        self._ports[name, setting] = port
        return port


def _escaped(text: str) -> str:
    """As a value of a properties file."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped[:1] in (" ", "\t", "\f") else escaped


def free_port(path: str, name: str, taken: Collection[int]) -> int:
    """The one that `name` has in the file at `path` if it is free, else any; none of `taken`, which
    are others' who do not listen yet. OSError."""
    kept = 0
    try:
        with open(path, encoding="utf-8") as file:
            kept = int(parse_properties(file.read()).get(name, "0"))
    except (OSError, ValueError):
        pass  # the first start, or a file that somebody has edited: it is written anew
    for port in (kept, *[0] * PORT_TRIES):
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except (OSError, OverflowError):
                continue
            found = int(probe.getsockname()[1])
        # The kernel gives the same one again as soon as it is free.
        if found not in taken:
            return found
    raise OSError(f"no free port on {HOST}")
