"""Share groups' parts in their broker, composed and started: the share coordinator, what asks it,
and what the coordinator of groups needs to serve share groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.internal_topics import making_of
from broker.cluster.topic import SHARE_STATE_TOPIC
from broker.node.share_groups import KnownShareGroups, serve_share_groups
from broker.share.persister import CoordinatorPersister
from broker.share.state.config import ShareStateConfig
from broker.share.state.coordinator import ShareStateCoordinator
from runtime.running import running
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from broker.cluster.registry import ConfigRegistry
    from broker.groups.coordinator import GroupCoordinator
    from broker.groups.share.requests import ShareRequests
    from broker.log.manager import LogManager
    from broker.transactions.ports import AllTopics, OtherBrokers
    from runtime.env import Env


@dataclass(frozen=True, slots=True)
class ShareParts:
    """What keeps share partitions' state, what asks for it, and the groups that do."""

    coordinator: ShareStateCoordinator
    persister: CoordinatorPersister
    requests: ShareRequests
    known: KnownShareGroups
    #: group.share.max.share.sessions
    sessions_max: int


async def start_share_groups(
    env: Env,
    registry: ConfigRegistry,
    topics: AllTopics,
    logs: LogManager,
    brokers: OtherBrokers,
    groups: GroupCoordinator,
    stack: AsyncExitStack,
) -> ShareParts:
    """`logs` and `groups` run already."""
    making = making_of(SHARE_STATE_TOPIC, registry.broker)
    assert making is not None, "it is an internal topic"
    coordinator = ShareStateCoordinator(
        env, ShareStateConfig.of(registry.broker), making.configs, topics, logs
    )
    await stack.enter_async_context(running(coordinator.run))
    persister = CoordinatorPersister(env.turn, coordinator, brokers)
    requests = serve_share_groups(groups, registry, logs, brokers, persister)
    known = KnownShareGroups(registry, requests)
    sessions_max = registry.broker.group_share_max_share_sessions
    return ShareParts(coordinator, persister, requests, known, sessions_max)
