"""Share groups' records: what a broker needs to serve ShareFetch and ShareAcknowledge.

The switch is `ShareGroupParts`: a broker that is given none does not announce these APIs. It says
where the state of share partitions is kept, and what is known of the groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.cluster.features import SHARE_VERSION
from broker.handlers.share_acknowledge import ShareAcknowledgeHandler
from broker.handlers.share_answers import Leaders
from broker.handlers.share_fetch import ShareFetchHandler
from broker.share.partition.share_partitions import SharePartitions
from broker.share.sessions.share_session_core import ShareSessions
from runtime.running import running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from broker.connection import KafkaConnection
    from broker.dispatch import Dispatcher
    from broker.node.foundation import Foundation, Services
    from broker.node.share import ShareParts
    from broker.share.ports import Persister, ShareGroups


class ShareGroupParts(NamedTuple):
    persister: Persister
    groups: ShareGroups
    #: group.share.max.share.sessions
    sessions_max: int = 2_000


def parts_of(share: ShareParts) -> ShareGroupParts:
    """What partitions' leaders need of it."""
    return ShareGroupParts(share.persister, share.known, share.sessions_max)


async def start_shares(
    foundation: Foundation,
    services: Services,
    share_groups: ShareGroupParts,
    stack: AsyncExitStack,
) -> Sequence[ShareFetchHandler | ShareAcknowledgeHandler]:
    """The handlers of what it serves."""
    persister, groups, sessions_max = share_groups
    env, timers = foundation.env, services.timers
    partitions = SharePartitions(services.logs, persister, groups, env, timers)
    await stack.enter_async_context(running(partitions.run))
    sessions = ShareSessions(sessions_max, partitions)
    leaders = Leaders(services.catalog, services.view)
    features = services.transactions.features

    def is_on() -> bool:
        return features.levels[SHARE_VERSION] >= 1

    bytes_max = services.registry.broker.fetch_max_bytes
    return (
        ShareFetchHandler(
            sessions,
            partitions,
            leaders,
            timers,
            env.turn,
            services.answers,
            fetch_bytes_max=bytes_max,
            is_on=is_on,
        ),
        ShareAcknowledgeHandler(sessions, partitions, leaders, env.turn, is_on=is_on),
    )


def follow_connections(
    handlers: Sequence[ShareFetchHandler | ShareAcknowledgeHandler], dispatcher: Dispatcher
) -> None:
    """A share session ends with its connection. Whoever was told of that before still is."""
    fetching = [each for each in handlers if isinstance(each, ShareFetchHandler)]
    told = dispatcher.on_closed

    def closed(connection: KafkaConnection) -> None:
        told(connection)
        for handler in fetching:
            handler.connection_closed(connection.info.id)

    if fetching:
        dispatcher.on_closed = closed
