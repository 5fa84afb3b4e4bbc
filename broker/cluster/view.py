"""ClusterView: who is in the cluster and who leads what, as clients are told.

The one protocol that Metadata, DescribeCluster, FindCoordinator and the topic handlers ask.
`StandaloneView` is the cluster of one broker: it leads all. That of several brokers is in
broker/cluster/cluster_view.py. What both say of replicas is in broker/cluster/durability.py.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Protocol

from metadata.store import NodeExistsError, NoNodeError
from runtime.config import ConfigError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from broker.cluster.config import BrokerConfig
    from broker.cluster.durability import Bookies, Copies
    from metadata.store import MetadataStore
    from runtime.env import Env

    #: (topic, partition) -> its copies, and the bookies that are written to; None: not held here.
    Facts = Callable[[str, int], tuple[Copies, Sequence[str]] | None]

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
    """Who serves a partition; leader -1: nobody at the moment. `leader_epoch` is the least that
    the leader has, -1 if only the leader's log knows; `offline`: replicas that are brokers which
    are not there."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int = -1
    offline: tuple[int, ...] = ()


class ClusterView(Protocol):
    """Plain reads of memory; names of listeners are those of `listeners`."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int:
        """This broker's."""

    @property
    def controller_id(self) -> int:
        """A live broker's id: clients spin if there is no such node."""

    def broker_ids(self) -> Sequence[int]:
        """Ids of the live brokers, ascending."""

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        """The live brokers that have such a listener, by id; this one if there are none."""

    @property
    def copies_max(self) -> int:
        """The highest replication factor that a topic may have now."""

    def replica_ids(self) -> Collection[int]:
        """Node ids that a partition may be assigned to."""

    def partition(self, topic: str, partition: int) -> PartitionState:
        """Of a partition that exists."""

    def leader(self, topic: str, partition: int, listener: str) -> BrokerEndpoint | None:
        """None: there is none now, or it has no such listener."""


class OwnEndpoints:
    """Where clients reach this broker, by listener. ConfigError if they could not be told."""

    __slots__ = ("_endpoints",)

    def __init__(self, config: BrokerConfig) -> None:
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

    def get(self, listener: str) -> BrokerEndpoint | None:
        return self._endpoints.get(listener)

    def items(self) -> Iterable[tuple[str, BrokerEndpoint]]:
        return self._endpoints.items()

    def set_port(self, listener: str, port: int) -> None:
        """After a listener with port 0 was bound: what clients are told."""
        endpoint = self._endpoints[listener]
        if endpoint.port == 0:
            self._endpoints[listener] = BrokerEndpoint(
                endpoint.node_id, endpoint.host, port, endpoint.rack
            )


class StandaloneView:
    """One broker that is the whole cluster."""

    __slots__ = ("_bookies", "_facts", "_ids", "_state", "cluster_id", "endpoints", "node_id")

    def __init__(
        self,
        cluster_id: str,
        config: BrokerConfig,
        bookies: Bookies | None = None,
        facts: Facts = lambda *_: None,
    ) -> None:
        """ConfigError if clients could not be told where to connect."""
        self._bookies = bookies
        self._facts = facts
        self.cluster_id = cluster_id
        self.node_id = config.node_id
        self._ids = (config.node_id,)
        self._state = PartitionState(config.node_id, self._ids, self._ids)
        self.endpoints = OwnEndpoints(config)

    @property
    def controller_id(self) -> int:
        return self.node_id

    def broker_ids(self) -> Sequence[int]:
        return self._ids

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        endpoint = self.endpoints.get(listener)
        return () if endpoint is None else (endpoint,)

    @property
    def copies_max(self) -> int:
        return 1 if self._bookies is None else self._bookies.count

    def replica_ids(self) -> Collection[int]:
        if self._bookies is None:
            return self._ids
        return (*self._ids, *self._bookies.node_ids())

    def partition(self, topic: str, partition: int) -> PartitionState:
        found = None if self._bookies is None else self._facts(topic, partition)
        if found is None or self._bookies is None:
            return self._state
        replicas, in_sync = self._bookies.replicas(self.node_id, *found)
        return PartitionState(self.node_id, replicas, in_sync)

    def leader(self, topic: str, partition: int, listener: str) -> BrokerEndpoint | None:
        return self.endpoints.get(listener)


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
