"""ClusterView: who is in the cluster and who leads what, as clients are told.

The one protocol that Metadata, DescribeCluster, FindCoordinator and the topic handlers ask.
`StandaloneView` is the cluster of one broker: it leads all, and is every replica.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from metadata.store import NodeExistsError, NoNodeError
from runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.config import BrokerConfig
    from metadata.store import MetadataStore
    from runtime.env import Env

CLUSTER_ID_PATH = "/quire/cluster-id"


@dataclass(slots=True, frozen=True)
class BrokerEndpoint:
    """A broker, as reached by one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True, frozen=True)
class PartitionState:
    """Who serves a partition; leader -1: nobody at the moment."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ClusterView(Protocol):
    """Plain reads of memory; names of listeners are those of `listeners`."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int:
        """This broker's."""

    @property
    def controller_id(self) -> int:
        """A live broker's id (kafka.md trap 12)."""

    def broker_ids(self) -> Sequence[int]:
        """Ids of the live brokers, ascending."""

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        """The live brokers that have such a listener, by id."""

    def partition(self, topic: str, partition: int) -> PartitionState:
        """Of a partition that exists."""

    def leader(self, topic: str, partition: int, listener: str) -> BrokerEndpoint | None:
        """None: there is none now, or it has no such listener."""


class StandaloneView:
    """One broker that is the whole cluster."""

    __slots__ = ("_endpoints", "_ids", "_state", "cluster_id", "node_id")

    def __init__(self, cluster_id: str, config: BrokerConfig) -> None:
        """ConfigError if clients could not be told where to connect."""
        self.cluster_id = cluster_id
        self.node_id = config.node_id
        self._ids = (config.node_id,)
        self._state = PartitionState(config.node_id, self._ids, self._ids)
        self._endpoints = {
            listener.name: BrokerEndpoint(
                config.node_id, _connectable(listener.host), listener.port, config.broker_rack
            )
            for listener in config.parsed_advertised_listeners()
        }
        missing = {listener.name for listener in config.parsed_listeners()} - set(self._endpoints)
        if missing:
            raise ConfigError(
                "advertised.listeners", f"advertised.listeners has no {', '.join(sorted(missing))}"
            )

    def set_port(self, listener: str, port: int) -> None:
        """After a listener with port 0 was bound: what clients are told."""
        endpoint = self._endpoints[listener]
        if endpoint.port == 0:
            self._endpoints[listener] = BrokerEndpoint(
                endpoint.node_id, endpoint.host, port, endpoint.rack
            )

    @property
    def controller_id(self) -> int:
        return self.node_id

    def broker_ids(self) -> Sequence[int]:
        return self._ids

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        endpoint = self._endpoints.get(listener)
        return () if endpoint is None else (endpoint,)

    def partition(self, topic: str, partition: int) -> PartitionState:
        return self._state

    def leader(self, topic: str, partition: int, listener: str) -> BrokerEndpoint | None:
        return self._endpoints.get(listener)


def _connectable(host: str) -> str:
    """«Every interface» is no address for a client. Without advertised.listeners we only know
    that this machine reaches itself; not by «localhost», which some clients take for ::1."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


async def ensure_cluster_id(store: MetadataStore, env: Env) -> str:
    """The cluster's id (22 characters: 16 random bytes in URL-safe base64), made on first use."""
    while True:
        try:
            return (await store.get(CLUSTER_ID_PATH)).data.decode()
        except NoNodeError:
            pass
        made = base64.urlsafe_b64encode(env.new_uuid().bytes).rstrip(b"=")
        try:
            await store.create(CLUSTER_ID_PATH, made, make_parents=True)
        except NodeExistsError:
            continue  # another broker was quicker: its id counts
        return made.decode()
