"""Brokers as processes of their own, for `quire standalone --processes N`: more than one core.

    <data directory>/broker-<node id>/server.properties    of each but the main process's own
    <data directory>/metadata.sock, bookie.sock            where they reach our metadata and bookie

Process i (the main one is 0) is `quire broker --config <its server.properties>`: the node id, the
port of each listener, also as advertised, and that of --metrics are the main process's plus i; port
0 stays 0. Everything else, what makes listeners safe too, is word for word what the main process
was given. The file is written anew at every start, and may hold passwords: only its owner reads it.
How they are kept running is in quire/kept_processes.py, how they share partitions in
broker/cluster/.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from broker.cluster.durability import BOOKIE_NODE_ID_MIN
from quire.kept_processes import (
    SESSION_TIMEOUT_MS,
    SOCKET_NAME,
    KeptProcesses,
    properties_lines,
    role_command,
)
from runtime.config import ConfigError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_forms import Listener
    from broker.cluster.membership import Membership
    from metadata.served import MetadataServer

CONFIG_NAME = "server.properties"
BOOKIE_SOCKET_NAME = "bookie.sock"
PORT_MAX = 65535


@dataclass(slots=True, frozen=True)
class BrokerProcessesConfig:
    data_directory: str
    #: With the main one.
    count: int
    #: The main process's, as it was read, and all that it was given, by the settings' names.
    broker: BrokerConfig
    settings: Mapping[str, str]
    log_levels: str = "info"
    metrics: tuple[str, int] | None = None

    @property
    def indexes(self) -> dict[str, int]:
        """By name: which process it is."""
        return {f"broker-{self.broker.node_id + i}": i for i in range(1, self.count)}


def check_node_ids(node_id: int, count: int) -> None:
    """ConfigError: the last one's is none of a broker's. The main process's has `node_id`."""
    if count > 1 and node_id + count > BOOKIE_NODE_ID_MIN:
        raise ConfigError(
            "--processes",
            f"--processes {count}: node.id={node_id} is too large, as the last process's would be "
            f"{node_id + count - 1}; the largest is {BOOKIE_NODE_ID_MIN - 1}",
        )


def check_ports(config: BrokerProcessesConfig) -> None:
    """ConfigError: two would have the same one, or there is none; OSError: one is in use."""
    taken: dict[int, str] = {}
    for index in range(config.count):
        wanted = [(one.host, one.port) for one in config.broker.parsed_listeners()]
        wanted += [config.metrics] if config.metrics is not None else []
        for host, first in wanted:
            port = shifted_port(first, index)
            if port in taken:
                raise ConfigError(
                    "--processes",
                    f"--processes {config.count}: process {index + 1} would listen on {port}, "
                    f"which {taken[port]} has: leave {config.count - 1} port"
                    f"{'s' if config.count > 2 else ''} free after each",
                )
            if port:
                taken[port] = f"process {index + 1}"
                _probe(host or "0.0.0.0", port, index)


def _probe(host: str, port: int, index: int) -> None:
    """OSError: somebody listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                error.errno, f"{host}:{port}, for process {index + 1}: {error.strerror}"
            ) from error


def shifted_port(port: int, index: int) -> int:
    """Of process `index`. ConfigError if there is no such port."""
    if port and port + index > PORT_MAX:
        raise ConfigError("--processes", f"--processes: there is no port {port + index}")
    return port + index if port else 0


class BrokerProcesses(KeptProcesses):
    kind = "broker"
    start_error = OSError

    def __init__(
        self, config: BrokerProcessesConfig, server: MetadataServer, membership: Membership
    ) -> None:
        """`membership`: the main process's."""
        super().__init__(list(config.indexes), server)
        self._config = config
        self._membership = membership
        membership.subscribe(lambda _: self.look_again())

    def missing(self) -> list[str]:
        first = self._config.broker.node_id
        indexes = self._config.indexes.items()
        return [name for name, index in indexes if first + index not in self._membership.live]

    def command(self, name: str) -> Sequence[str]:
        config = self._config
        options = ["--data-dir", config.data_directory]
        if config.metrics is not None:
            host, port = config.metrics
            shown = f"[{host}]" if ":" in host else host
            options += ["--metrics", f"{shown}:{shifted_port(port, config.indexes[name])}"]
        return [*role_command("broker", self._config_path(name), config.log_levels), *options]

    def _config_path(self, name: str) -> str:
        return os.path.join(self._config.data_directory, name, CONFIG_NAME)

    def prepare(self, name: str) -> None:
        path = self._config_path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        unfinished = f"{path}.tmp"
        if os.path.lexists(unfinished):
            os.unlink(unfinished)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("# Written by quire standalone at every start.\n")
            file.writelines(properties_lines(self._settings(self._config.indexes[name])))
        os.replace(unfinished, path)

    def _settings(self, index: int) -> dict[str, str]:
        config, broker = self._config, self._config.broker
        settings = {
            **config.settings,
            "node.id": str(broker.node_id + index),
            "listeners": _shifted(broker.parsed_listeners(), index),
            "metadataServiceUri": f"quire+unix://{config.data_directory}/{SOCKET_NAME}",
            "zkTimeout": str(SESSION_TIMEOUT_MS),
        }
        if broker.advertised_listeners is not None:
            advertised = broker.parsed_advertised_listeners()
            settings["advertised.listeners"] = _shifted(advertised, index)
        return settings


def _shifted(listeners: Iterable[Listener], index: int) -> str:
    """As a setting has them, with the ports of process `index`."""
    texts = []
    for one in listeners:
        host = f"[{one.host}]" if ":" in one.host else one.host
        texts.append(f"{one.name}://{host}:{shifted_port(one.port, index)}")
    return ",".join(texts)
