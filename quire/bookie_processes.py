"""Bookies as processes of their own, for `quire standalone --bookies N`.

    <data directory>/bookie-1 … bookie-N     journal, ledgers and bk_server.conf of each
    <data directory>/metadata.sock           where they reach our metadata (metadata/served.py)
    <data directory>/bookie-n/ledgers/admin.url    where its pages are, while they are served

With pages (--metrics, httpServerEnabled, prometheusStatsHttpPort) each has its own ports: bookie n
the given one plus n - 1; without a given one any that is free, kept as the bookie's port is.

Each is `quire bookie --config <its bk_server.conf>`. That file is written anew at every start; its
port is kept from the last one if it is still free. How they are kept running is in
quire/kept_processes.py.
"""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

from bookie.config_definitions import BOOKIE_CONFIGS
from bookie.errors import BookieStartError
from quire.kept_processes import (
    SESSION_TIMEOUT_MS,
    SOCKET_NAME,
    KeptProcesses,
    properties_lines,
    role_command,
)
from quire.role_defaults import GARBAGE
from runtime.config import ConfigError, parse_properties
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ledger.bookie_watcher import BookieWatcher
    from metadata.served import MetadataServer

HOST = "127.0.0.1"
CONFIG_NAME = "bk_server.conf"
PORT_MAX = 65535
PORT_TRIES = 20
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


def settings_of(config: BookieProcessesConfig, name: str) -> dict[str, str]:
    """Of one of them; its ports are chosen when it starts."""
    directory = os.path.join(config.data_directory, name)
    settings = {
        **GARBAGE,
        **config.settings,
        "bookieId": name,
        "listeningInterface": "lo",
        "advertisedAddress": HOST,
        "allowLoopback": "true",
        "metadataServiceUri": f"quire+unix://{config.socket_path}",
        "zkTimeout": str(SESSION_TIMEOUT_MS),
        "journalDirectory": os.path.join(directory, "journal"),
        "ledgerDirectories": os.path.join(directory, "ledgers"),
    }
    settings.pop("journalDirectories", None)  # of all bookies together, and it would win
    return settings


def check_settings(config: BookieProcessesConfig) -> None:
    """ConfigError for what each of them would refuse: its log would tell, and not this process."""
    from quire.bookie_node import checked_config  # of use only where there are several bookies

    settings = settings_of(config, config.bookie_ids[0]) | {"bookiePort": str(PORT_MAX)}
    checked_config(BOOKIE_CONFIGS.parse(settings), lambda interface: HOST)


class BookieProcesses(KeptProcesses):
    kind = "bookie"
    start_error = BookieStartError

    def __init__(
        self,
        config: BookieProcessesConfig,
        server: MetadataServer,
        watcher: BookieWatcher,
    ) -> None:
        super().__init__(config.bookie_ids, server)
        self._config = config
        self._watcher = watcher
        #: By bookie and setting: they are chosen before anybody listens there.
        self._ports: dict[tuple[str, str], int] = {}
        watcher.subscribe(self.look_again)

    def missing(self) -> set[str]:
        there = self._watcher.writable | self._watcher.read_only
        return set(self._config.bookie_ids) - there

    # -- how each is started ---------------------------------------------------------------------

    def command(self, name: str) -> Sequence[str]:
        return role_command("bookie", self._config_path(name), self._config.log_levels)

    def _config_path(self, name: str) -> str:
        return os.path.join(self._config.data_directory, name, CONFIG_NAME)

    def prepare(self, name: str) -> None:
        path = self._config_path(name)
        directory = os.path.dirname(path)
        os.makedirs(directory, exist_ok=True)
        settings = {
            **settings_of(self._config, name),
            "bookiePort": str(self._port(name, "bookiePort")),
            **self._pages(name),
        }
        with open(path, "w", encoding="utf-8") as file:
            file.write("# Written by quire standalone at every start.\n")
            file.writelines(properties_lines(settings))

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
