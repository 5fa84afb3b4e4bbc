"""A broker's part in a cluster of brokers: composed, joined, left."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING

import trio

from broker.cluster.assigned import AssignedOwnership
from broker.cluster.balance import BrokerState
from broker.cluster.cluster_view import Brokers, BrokersView
from broker.cluster.config_forms import parse_protocol_map
from broker.cluster.controller import Controller
from broker.cluster.features import (
    GROUP_VERSION,
    MOST,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
)
from broker.cluster.membership import Membership, Registration
from broker.cluster.ownership import Incarnation
from broker.cluster.placing import Placing
from broker.cluster.reach import BookieReach
from broker.cluster.spreading import spread_if_others
from broker.log.life.chain import NEWEST_FORMAT
from broker.log.manager import LOOKS_PER_TURN
from broker.log.partition import State
from metadata.store import MetadataError
from runtime.logs import kv
from runtime.running import running
from runtime.slices import Slices
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from contextlib import AsyncExitStack

    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.durability import Bookies
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import Facts
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: How long a stop waits for others to take this broker's partitions.
LEAVE_SECONDS = 20.0
#: How long it waits for the metadata to be told that it wants to.
TELL_SECONDS = 3.0
LOOK_SECONDS = 0.02


@dataclass(slots=True)
class ClusterMember:
    """Started, and following the others; `join` makes it one of them."""

    registry: ConfigRegistry
    catalog: TopicCatalog
    membership: Membership
    ownership: AssignedOwnership
    controller: Controller
    is_leaving: bool = False

    @classmethod
    async def start(
        cls,
        env: Env,
        store: MetadataStore,
        registry: ConfigRegistry,
        catalog: TopicCatalog,
        stack: AsyncExitStack,
        *,
        may_be_controller: bool = True,
    ) -> ClusterMember:
        incarnation = Incarnation(registry.broker.node_id, env.new_uuid().hex)
        membership = Membership(store, incarnation)
        ownership = AssignedOwnership(store, membership)
        placing = Placing(membership, ownership)
        catalog.placing = placing
        catalog.subscribe(placing.on_topic)

        def rebalance_seconds() -> float | None:
            broker = registry.broker
            if not broker.auto_leader_rebalance_enable:
                return None
            return broker.leader_imbalance_check_interval_seconds

        controller = Controller(
            *(store, membership, ownership, catalog, placing, rebalance_seconds),
            may_be_elected=may_be_controller,
        )
        await stack.enter_async_context(running(membership.run))
        await stack.enter_async_context(running(ownership.run))
        await stack.enter_async_context(running(controller.run))
        member = cls(registry, catalog, membership, ownership, controller)
        registry.subscribe(member._follow_cordon)
        return member

    def view(
        self, cluster_id: str, catalog: TopicCatalog, bookies: Bookies, facts: Facts
    ) -> BrokersView:
        return BrokersView(
            cluster_id,
            self.registry.broker,
            Brokers(self.membership, self.ownership, lambda: self.controller.elected),
            catalog,
            bookies,
            facts,
        )

    def reach(self, logs: LogManager, ledgers: LedgerClient, bookies: Bookies) -> BookieReach:
        """What tells the others if this broker is cut off from the bookies; to be run."""

        async def needed() -> int:
            return await largest_ack_quorum(logs.all())

        async def is_doubtful() -> bool:
            health = ledgers.health
            return (
                bool(health.quarantined or health.resting)
                # Whoever may be given the partitions of another is to know whether it is better.
                or any(not one.can_write for one in self.membership.live.values())
                or await logs.any(lambda log: log.state is not State.ONLINE or log.is_suspended)
            )

        return BookieReach(
            lambda: bookies.writable,
            ledgers.reachable,
            needed,
            is_doubtful,
            self.membership.set_can_write,
        )

    async def join(self, view: BrokersView, place: str) -> None:
        """Once the listeners are open, at `place`. ConfigError if another broker has the id."""
        broker = self.registry.broker
        protocols = parse_protocol_map(broker.listener_security_protocol_map)
        await self.membership.register(
            Registration(
                self.membership.incarnation,
                {
                    name: (endpoint.host, endpoint.port, protocols[name])
                    for name, endpoint in view.endpoints.items()
                },
                broker.broker_rack,
                self._state(),
                _version(),
                place,
                chain_format=NEWEST_FORMAT,
                transaction_version=MOST[TRANSACTION_VERSION],
                group_version=MOST[GROUP_VERSION],
                share_version=MOST[SHARE_VERSION],
                streams_version=MOST[STREAMS_VERSION],
            )
        )

    async def settle(self, store: MetadataStore, node_ids: Collection[int]) -> None:
        """Once all brokers that start together are there, `node_ids`: each leads what it is to. If
        metadata cannot be reached the controller moves leaders later, and the next start spreads
        what is to be spread."""
        parts = (self.catalog, self.membership, self.ownership)
        try:
            if not await spread_if_others(store, *parts, node_ids):
                await self.controller.elect_preferred()
        except MetadataError as error:
            logger.warning("leaders_not_balanced", kv(error=error))

    def _state(self) -> BrokerState:
        if self.is_leaving:
            return BrokerState.DRAINING
        cordoned = self.registry.broker.cordoned_log_dirs
        return BrokerState.CORDONED if cordoned else BrokerState.RUNNING

    def _follow_cordon(self) -> None:
        self.membership.set_state(self._state())

    async def leave(self, logs: LogManager) -> None:
        """Before anything is stopped: others take this broker's partitions, one hand-over each.
        Returns when all are gone, or nobody takes them, or after LEAVE_SECONDS."""
        if not self.registry.broker.controlled_shutdown_enable or not self._others():
            return
        self.is_leaving = True
        self.membership.set_state(self._state())
        started = trio.current_time()
        led_count = self.ownership.led_count
        with trio.move_on_after(LEAVE_SECONDS):
            while self.ownership.led_count or await logs.any(
                lambda log: log.state is not State.OFFLINE
            ):
                if not self._others():
                    break
                untold_seconds = trio.current_time() - started
                if not self.membership.is_told and untold_seconds > TELL_SECONDS:
                    break
                await trio.sleep(LOOK_SECONDS)
        logger.info(
            "left",
            kv(
                partitions=led_count,
                kept=self.ownership.led_count,
                ms=round(1000 * (trio.current_time() - started)),
            ),
        )

    def _others(self) -> bool:
        own = self.membership.incarnation.node_id
        return any(
            one.node_id != own and one.state is not BrokerState.DRAINING and one.can_write
            for one in self.membership.candidates()
        )


async def largest_ack_quorum(logs: Iterable[PartitionLog]) -> int:
    """At least 1; asked in slices."""
    slices, most = Slices(LOOKS_PER_TURN), 1
    for log in logs:
        if slices.due():
            await slices.turn()
        most = max(most, log.copies.ack_quorum)
    return most


def _version() -> str:
    """What an operator sees in the middle of an upgrade."""
    try:
        return importlib.metadata.version("quire")
    except importlib.metadata.PackageNotFoundError:
        return ""  # run from a folder that nobody installed
