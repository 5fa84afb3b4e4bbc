"""Every handler of the broker with its collaborators: what this server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.cluster.internal_topics import making_of
from broker.fetch_sessions import FetchSessions
from broker.groups.config import GroupConfig
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.cluster import ClusterHandler
from broker.handlers.configs import ConfigsHandler
from broker.handlers.delete_records import DeleteRecordsHandler
from broker.handlers.fetch import FetchHandler
from broker.handlers.find_coordinator import (
    KEY_TYPE_GROUP,
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
from broker.handlers.topics import TopicsHandler
from broker.handlers.transactions import TransactionsHandler
from broker.handlers.txn_markers import TransactionMarkersHandler
from broker.producer_ids import ProducerIds
from wire.kafka.records.compression import Compression

if TYPE_CHECKING:
    from broker.api import Api
    from broker.cluster.catalog import Topic
    from broker.cluster.config import BrokerConfig
    from broker.node.foundation import Foundation, Services


class Handler(Protocol):
    """What every class in broker/handlers offers."""

    def apis(self) -> list[Api]: ...


def make_handlers(foundation: Foundation, services: Services) -> list[Api]:
    """The API table, ApiVersions included."""
    env, registry, catalog = foundation.env, services.registry, services.catalog
    logs, view, coordinator = services.logs, services.view, services.coordinator
    transactions = services.transactions
    broker = registry.broker

    async def auto_create(name: str) -> Topic:
        making = making_of(name, registry.broker)
        if making is None:
            return await catalog.create(name, registry.broker.num_partitions, {})
        return await catalog.create(name, making.partition_count, making.configs)

    key_types = {KEY_TYPE_GROUP: KeyType(coordinator.topic, coordinator.ensure_ready)}
    if transactions is not None:
        key_types[KEY_TYPE_TRANSACTION] = KeyType(transactions.topic, transactions.ensure_ready)
    versions = ApiVersionsHandler(services.features)
    sessions = FetchSessions(broker.max_incremental_fetch_session_cache_slots, env.rng, env.clock)
    handlers: list[Handler] = [
        versions,
        MetadataHandler(
            catalog, view, logs, auto_create, lambda: registry.broker.auto_create_topics_enable
        ),
        ProduceHandler(logs, foundation.bookies),
        FetchHandler(
            logs, sessions, services.timers, env.turn, fetch_bytes_max=broker.fetch_max_bytes
        ),
        ListOffsetsHandler(logs),
        DeleteRecordsHandler(logs),
        InitProducerIdHandler(ProducerIds(foundation.store, str(env.new_uuid())), transactions),
        FindCoordinatorHandler(key_types, view),
        GroupsHandler(coordinator),
        OffsetsHandler(coordinator, catalog),
        TopicsHandler(catalog, registry, view),
        ConfigsHandler(catalog, registry, view),
        ClusterHandler(
            catalog,
            registry,
            view,
            logs,
            data_directory=foundation.data_directory,
            disk_usage=lambda: env.disk.usage(foundation.data_directory),
        ),
    ]
    if logs.serves_transactions:
        handlers.append(TransactionMarkersHandler(logs, foundation.env.turn))
    if (member := services.member) is not None:
        handlers.append(LeadersHandler(catalog, member.membership, member.ownership, view))
    if transactions is not None:
        handlers.append(TransactionsHandler(transactions, catalog, coordinator.topic))
    apis = [api for handler in handlers for api in handler.apis()]
    versions.serve(apis)
    return apis


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
    )
