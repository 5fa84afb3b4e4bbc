"""BrokersView: the ClusterView of a cluster of several brokers.

Made of who is registered (membership), who is to lead what (assignments) and what the bookies hold
(broker/cluster/durability.py says what is shown as replicas). A leader that is not registered is no
leader: clients ask again until there is one. Its own partitions' ensembles a broker knows; of those
that others lead it says what the number of bookies that take writes says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.assignment import NO_LEADER
from broker.cluster.durability import copies_of
from broker.cluster.view import BrokerEndpoint, OwnEndpoints, PartitionState
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from broker.cluster.assigned import AssignedOwnership
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.config import BrokerConfig
    from broker.cluster.durability import Bookies
    from broker.cluster.membership import Membership
    from broker.cluster.ownership import Incarnation
    from broker.cluster.view import Facts


@dataclass(slots=True, frozen=True)
class Brokers:
    """Where a broker learns of the others: who is registered, and who leads what. `elected()`: the
    controller."""

    membership: Membership
    ownership: AssignedOwnership
    elected: Callable[[], Incarnation | None]


class BrokersView:
    """Implements `broker.cluster.view.ClusterView`."""

    def __init__(
        self,
        cluster_id: str,
        config: BrokerConfig,
        brokers: Brokers,
        catalog: TopicCatalog,
        bookies: Bookies,
        facts: Facts,
    ) -> None:
        """ConfigError if clients could not be told where to connect."""
        self.cluster_id = cluster_id
        self.node_id = config.node_id
        self.endpoints = OwnEndpoints(config)
        self._membership = brokers.membership
        self._ownership = brokers.ownership
        self._catalog = catalog
        self._bookies = bookies
        self._facts = facts
        self._elected = brokers.elected

    @property
    def controller_id(self) -> int:
        """The elected one if it lives; else any that does, as admin clients would spin."""
        elected = self._elected()
        if elected is not None and self._membership.is_alive(elected):
            return elected.node_id
        return min(self._membership.live, default=self.node_id)

    def broker_ids(self) -> Sequence[int]:
        return sorted(self._membership.live)

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        found = (self._endpoint(node_id, listener) for node_id in self.broker_ids())
        endpoints = [endpoint for endpoint in found if endpoint is not None]
        # All registrations end together if ZooKeeper stands still for longer than sessions last.
        # librdkafka (2.16) forgets all brokers by an answer without any, and never asks again.
        own = None if endpoints else self.endpoints.get(listener)
        return endpoints if own is None else [own]

    def _endpoint(self, node_id: int, listener: str) -> BrokerEndpoint | None:
        registration = self._membership.live.get(node_id)
        where = None if registration is None else registration.listeners.get(listener)
        if registration is None or where is None:
            return None
        return BrokerEndpoint(node_id, where[0], where[1], registration.rack)

    @property
    def copies_max(self) -> int:
        return self._bookies.count

    def replica_ids(self) -> Collection[int]:
        return {*self.broker_ids(), *self._bookies.node_ids()}

    def partition(self, topic: str, partition: int) -> PartitionState:
        found = self._catalog.get(topic)
        assigned = None if found is None else self._ownership.partition(found.id, partition)
        if found is None or assigned is None:
            return PartitionState(NO_LEADER, (), ())
        facts = self._facts(topic, partition)
        if facts is None:
            facts = copies_of(found, self._catalog.config(found)), ()
        replicas, in_sync = self._bookies.replicas_of_brokers(
            assigned.leader, assigned.replicas, *facts
        )
        live = self._membership.live
        return PartitionState(
            assigned.leader if assigned.leader in live else NO_LEADER,
            replicas,
            in_sync,
            assigned.epoch,
            tuple(n for n in assigned.replicas if n in replicas and n not in live),
        )

    def leader(self, topic: str, partition: int, listener: str) -> BrokerEndpoint | None:
        found = self._catalog.get(topic)
        assigned = None if found is None else self._ownership.partition(found.id, partition)
        return None if assigned is None else self._endpoint(assigned.leader, listener)
