"""The coordinator of transactions in its broker: composed, started, and told what changes.

A partition asks its transaction's coordinator through the verifier, which is there before the
partitions are; whom it asks is told it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.features import (
    GROUP_VERSION,
    MOST,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
    FinalizedFeatures,
)
from broker.cluster.internal_topics import making_of
from broker.cluster.peers import BrokerPeers
from broker.cluster.topic import TRANSACTION_TOPIC
from broker.node.foundation import Transactions
from broker.transactions.config import TransactionConfig
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.ports import Neighbours, OtherBrokers
from runtime.running import running

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from broker.cluster.features import Levels
    from broker.cluster.membership import Membership
    from broker.cluster.ownership import Incarnation
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import ClusterView
    from broker.node.foundation import Foundation
    from broker.node.member import ClusterMember
    from broker.node.security import Security
    from broker.transactions.verifier import CoordinatorVerifier


async def start_transactions(
    foundation: Foundation,
    registry: ConfigRegistry,
    neighbours: Neighbours,
    view: ClusterView,
    verifier: CoordinatorVerifier,
    member: ClusterMember | None,
    security: Security,
    stack: AsyncExitStack,
) -> Transactions:
    """`neighbours.logs` run already, and ask `verifier`. MetadataError."""
    env, broker = foundation.env, registry.broker
    met_at = security.listeners.get(broker.listener_for_brokers)
    secure = None if met_at is None or met_at.tls is None else met_at.tls.client_layer
    peers = BrokerPeers(env, f"broker-{broker.node_id}", secure, security.login)
    await stack.enter_async_context(running(peers.run))
    features = _features(foundation, member, broker.node_id)
    await stack.enter_async_context(running(features.run))
    brokers = OtherBrokers(view, broker.listener_for_brokers, broker.node_id, peers)
    making = making_of(TRANSACTION_TOPIC, broker)
    assert making is not None, "it is an internal topic"
    coordinator = TransactionCoordinator(
        env,
        TransactionConfig.of(broker),
        making.configs,
        neighbours,
        brokers,
        lambda: features.transaction_version,
    )
    await stack.enter_async_context(running(coordinator.run))
    if member is not None:
        # Before the markers wake: they are to find a connection that is given up, not one that is
        # silent.
        follow_brokers(peers, member.membership, broker.listener_for_brokers)
        # Where a marker goes to may be another broker now, or reached elsewhere.
        member.ownership.subscribe(lambda _: coordinator.markers.wake())
        member.membership.subscribe(lambda _: coordinator.markers.wake())
    verifier.serve(coordinator, brokers)
    return Transactions(coordinator, features, verifier, brokers)


def follow_brokers(peers: BrokerPeers, membership: Membership, listener: str) -> None:
    """Nobody waits for an answer of a broker that is gone, or was started anew, or is reached
    elsewhere by `listener` now."""

    def address_of(node_id: int) -> tuple[str, int] | None:
        registration = membership.live.get(node_id)
        where = None if registration is None else registration.listeners.get(listener)
        return None if where is None else where[:2]

    def changed(ended: frozenset[Incarnation]) -> None:
        # In an order that is the same in each process: a set of strings has another in each.
        peers.ended(sorted(each.node_id for each in ended))
        peers.moved(address_of)

    membership.subscribe(changed)


def _features(
    foundation: Foundation, member: ClusterMember | None, node_id: int
) -> FinalizedFeatures:
    if member is None:
        owner = foundation.env.new_uuid().hex
        return FinalizedFeatures(foundation.store, owner, lambda: {node_id: MOST}, lambda: True)

    def supported() -> dict[int, Levels]:
        return {
            each: {
                TRANSACTION_VERSION: registration.transaction_version,
                GROUP_VERSION: registration.group_version,
                SHARE_VERSION: registration.share_version,
                STREAMS_VERSION: registration.streams_version,
            }
            for each, registration in member.membership.live.items()
        }

    features = FinalizedFeatures(
        foundation.store,
        member.membership.incarnation.token,
        supported,
        # Without anybody registered nothing is known.
        lambda: member.controller.is_controller and bool(member.membership.live),
    )
    member.membership.subscribe(lambda _: features.look_again())
    member.controller.subscribe(features.look_again)
    return features
