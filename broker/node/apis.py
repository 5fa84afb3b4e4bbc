"""Every handler of the broker with its collaborators: what this server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.cluster.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from broker.cluster.internal_topics import making_of
from broker.fetch_sessions import FetchSessions
from broker.groups.config import GroupConfig
from broker.groups.consumer.settings import ConsumerSettings
from broker.groups.consumer.types import GroupTimes
from broker.groups.share.settings import ShareSettings
from broker.groups.streams.settings import StreamsSettings
from broker.groups.streams.types import StreamsTimes
from broker.handlers.acls import AclsHandler
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.client_quotas import ClientQuotasHandler
from broker.handlers.cluster import ClusterHandler
from broker.handlers.configs import ConfigsHandler
from broker.handlers.consumer_groups import ConsumerGroupsHandler
from broker.handlers.delegation_tokens import DelegationTokensHandler
from broker.handlers.delete_records import DeleteRecordsHandler
from broker.handlers.features import FeaturesHandler
from broker.handlers.fetch import FetchHandler
from broker.handlers.find_coordinator import (
    KEY_TYPE_GROUP,
    KEY_TYPE_SHARE,
    KEY_TYPE_TRANSACTION,
    FindCoordinatorHandler,
    KeyType,
)
from broker.handlers.groups import GroupsHandler
from broker.handlers.init_producer_id import InitProducerIdHandler
from broker.handlers.leaders import LeadersHandler
from broker.handlers.list_offsets import ListOffsetsHandler
from broker.handlers.metadata import MetadataHandler
from broker.handlers.offsets import OffsetsHandler
from broker.handlers.produce import ProduceHandler
from broker.handlers.quorum import QuorumHandler
from broker.handlers.sasl import SaslHandler
from broker.handlers.scram_users import ScramUsersHandler
from broker.handlers.share_groups import ShareGroupsHandler
from broker.handlers.share_state import ShareStateHandler
from broker.handlers.streams_groups import StreamsGroupsHandler
from broker.handlers.telemetry import TelemetryHandler
from broker.handlers.topics import TopicsHandler
from broker.handlers.transactions import TransactionsHandler
from broker.handlers.txn_offsets import TxnOffsetsHandler
from broker.share.state.keys import canonical_key
from wire.kafka.records.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import Api
    from broker.cluster.catalog import Topic
    from broker.cluster.config import BrokerConfig
    from broker.cluster.registry import ConfigRegistry
    from broker.groups.streams.types import InternalTopic
    from broker.node.foundation import Foundation, Services
    from runtime.turn import Turn


class Handler(Protocol):
    """What every class in broker/handlers offers."""

    def apis(self) -> list[Api]: ...


def make_handlers(
    foundation: Foundation, services: Services, more: Iterable[Handler] = ()
) -> list[Api]:
    """The API table, ApiVersions included; with what `more` handlers answer."""
    env, registry, catalog = foundation.env, services.registry, services.catalog
    logs, view, coordinator = services.logs, services.view, services.coordinator
    transactions = services.transactions.coordinator
    broker = registry.broker

    async def auto_create(name: str) -> Topic:
        making = making_of(name, registry.broker)
        if making is None:
            return await catalog.create(name, registry.broker.num_partitions, {})
        return await catalog.create(name, making.partition_count, making.configs)

    features = services.transactions.features
    protocols = broker.group_coordinator_rebalance_protocols

    def serves_consumer_groups() -> bool:
        return features.levels[GROUP_VERSION] >= 1 and "consumer" in protocols

    topics = TopicsHandler(catalog, registry, view)
    versions = ApiVersionsHandler(features)
    handlers: list[Handler] = [
        versions,
        MetadataHandler(
            catalog, view, logs, auto_create, lambda: registry.broker.auto_create_topics_enable
        ),
        ProduceHandler(logs, foundation.bookies),
        _fetches(foundation, services),
        ListOffsetsHandler(logs),
        DeleteRecordsHandler(logs),
        InitProducerIdHandler(services.producer_ids, transactions),
        FindCoordinatorHandler(_key_types(services), view),
        GroupsHandler(coordinator),
        ConsumerGroupsHandler(coordinator, catalog, serves_consumer_groups),
        _streams_groups(services, topics, env.turn),
        OffsetsHandler(coordinator, catalog),
        TxnOffsetsHandler(coordinator, catalog),
        TransactionsHandler(transactions, catalog, coordinator.topic),
        services.markers,
        topics,
        ConfigsHandler(catalog, registry, view),
        ClientQuotasHandler(registry),
        FeaturesHandler(services.transactions.features, view),
        QuorumHandler(view),
        SaslHandler(),
        AclsHandler(None if services.security.acls is None else services.security.acls.store),
        TelemetryHandler(services.telemetry, env.disk, broker.telemetry_max_bytes),
        ClusterHandler(
            catalog,
            registry,
            view,
            logs,
            data_directory=foundation.data_directory,
            disk_usage=lambda: env.disk.usage(foundation.data_directory),
        ),
    ]
    if (member := services.member) is not None:
        handlers.append(LeadersHandler(catalog, member.membership, member.ownership, view))
    handlers += _identity_handlers(services)
    handlers += _share_handlers(services)
    handlers += more
    apis = [api for handler in handlers for api in handler.apis()]
    versions.serve(apis)
    return apis


def _key_types(services: Services) -> dict[int, KeyType]:
    """What FindCoordinator finds coordinators of."""
    coordinator, transactions = services.coordinator, services.transactions.coordinator
    states = services.share.coordinator
    return {
        KEY_TYPE_GROUP: KeyType(coordinator.topic, coordinator.ensure_ready),
        KEY_TYPE_TRANSACTION: KeyType(transactions.topic, transactions.ensure_ready),
        KEY_TYPE_SHARE: KeyType(states.topic, states.ensure_ready, canonical_key, version_min=6),
    }


def _identity_handlers(services: Services) -> list[Handler]:
    identities = services.security.identities
    return [
        ScramUsersHandler(identities.users),
        DelegationTokensHandler(identities.tokens, identities.protocols),
    ]


def _share_handlers(services: Services) -> list[Handler]:
    share, features = services.share, services.transactions.features

    def are_served() -> bool:
        return features.levels[SHARE_VERSION] >= 1

    return [
        ShareStateHandler(share.coordinator),
        ShareGroupsHandler(share.requests, services.catalog, are_served),
    ]


def _fetches(foundation: Foundation, services: Services) -> FetchHandler:
    env, broker = foundation.env, services.registry.broker
    return FetchHandler(
        services.logs,
        FetchSessions(broker.max_incremental_fetch_session_cache_slots, env.rng, env.clock),
        services.timers,
        env.turn,
        services.answers,
        fetch_bytes_max=broker.fetch_max_bytes,
    )


def _streams_groups(services: Services, topics: TopicsHandler, turn: Turn) -> StreamsGroupsHandler:
    catalog, coordinator = services.catalog, services.coordinator
    features = services.transactions.features
    protocols = services.registry.broker.group_coordinator_rebalance_protocols

    async def create(topic: InternalTopic) -> None:
        """As CreateTopics would."""
        factor = topics.replication_factor(topic.name, topic.replication_factor or -1)
        await catalog.create(topic.name, topic.partitions, dict(topic.configs), factor)

    def is_on() -> bool:
        return features.levels[STREAMS_VERSION] >= 1 and "streams" in protocols

    coordinator.streams.create_topic = create
    return StreamsGroupsHandler(coordinator, catalog, turn, is_on)


def group_config(broker: BrokerConfig) -> GroupConfig:
    """The group coordinator's part of the broker's settings."""
    return GroupConfig(
        offsets_topic_num_partitions=broker.offsets_topic_num_partitions,
        offsets_topic_compression_codec=Compression(broker.offsets_topic_compression_codec),
        offsets_topic_segment_bytes=broker.offsets_topic_segment_bytes,
        offsets_retention_minutes=broker.offsets_retention_minutes,
        offsets_retention_check_interval_ms=broker.offsets_retention_check_interval_ms,
        offsets_load_buffer_size=broker.offsets_load_buffer_size,
        offset_metadata_max_bytes=broker.offset_metadata_max_bytes,
        group_initial_rebalance_delay_ms=broker.group_initial_rebalance_delay_ms,
        group_min_session_timeout_ms=broker.group_min_session_timeout_ms,
        group_max_session_timeout_ms=broker.group_max_session_timeout_ms,
        group_max_size=broker.group_max_size,
        consumer=_consumer_settings(broker),
        share=ShareSettings(
            broker.group_share_assignors,
            broker.group_share_max_size,
            broker.group_share_initialize_retry_interval_ms,
        ),
        streams=StreamsSettings(broker.group_streams_max_size),
    )


def _consumer_settings(broker: BrokerConfig) -> ConsumerSettings:
    policy = broker.group_consumer_migration_policy.lower()
    return ConsumerSettings(
        group_consumer_assignors=broker.group_consumer_assignors,
        group_consumer_max_size=broker.group_consumer_max_size,
        may_upgrade=policy in ("upgrade", "bidirectional"),
        may_downgrade=policy in ("downgrade", "bidirectional"),
        group_consumer_regex_refresh_interval_ms=broker.group_consumer_regex_refresh_interval_ms,
    )


def group_times(registry: ConfigRegistry, group_id: str) -> GroupTimes:
    """A consumer group's settings in force."""
    config = registry.consumer_group_config(group_id)
    return GroupTimes(
        config.consumer_session_timeout_ms,
        config.consumer_heartbeat_interval_ms,
        config.consumer_assignment_interval_ms,
    )


def streams_times(registry: ConfigRegistry, group_id: str) -> StreamsTimes:
    """A streams group's settings in force."""
    config = registry.streams_group_config(group_id)
    return StreamsTimes(
        config.streams_session_timeout_ms,
        config.streams_heartbeat_interval_ms,
        config.streams_assignment_interval_ms,
        config.streams_initial_rebalance_delay_ms,
        config.streams_num_standby_replicas,
    )
