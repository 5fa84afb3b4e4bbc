"""Typed settings: what the broker's code reads, one frozen value per level.

`BrokerConfig` and `TopicConfig` have one field per setting; its name is the setting's with dots
as underscores (so `log.retention.ms` is `log_retention_ms`), its type follows from the setting's.
Settings that nothing here reads have no field; see `config_definitions_*`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from broker.cluster.config_definitions_broker import BROKER_CONFIGS
from broker.cluster.config_forms import Listener, parse_listener, parse_protocol_map
from runtime.config import ConfigError, ConfigValue

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicConfig:
    """What is in force for one topic. Sizes in bytes; -1 is no limit where a limit may be absent.

    The quorums are asked of new ledgers only."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_insync_replicas: int
    quire_ledger_ack_quorum: int
    quire_ledger_ensemble_size: int
    quire_ledger_write_quorum: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_jitter_ms: int
    segment_ms: int

    @classmethod
    def of(cls, values: Mapping[str, ConfigValue]) -> TopicConfig:
        """From the effective value of every topic setting."""
        return cls(**_by_field(_TOPIC_FIELDS, values))


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerConfig:
    """What is in force for one broker. Names, meanings and defaults: `BROKER_CONFIGS`."""

    node_id: int
    broker_rack: str | None
    listeners: tuple[str, ...]
    advertised_listeners: tuple[str, ...] | None
    listener_security_protocol_map: str

    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    controlled_shutdown_enable: bool
    cordoned_log_dirs: tuple[str, ...]

    socket_request_max_bytes: int
    queued_max_request_bytes: int
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int

    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    quire_clip_replication_factor: bool
    log_retention_check_interval_ms: int
    min_insync_replicas: int
    quire_ledger_ack_quorum: int
    quire_ledger_ensemble_size: int
    quire_ledger_write_quorum: int

    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    offset_metadata_max_bytes: int
    offsets_load_buffer_size: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    producer_id_expiration_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_min_isr: int
    transaction_state_log_segment_bytes: int

    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_segment_bytes: int

    @classmethod
    def of(cls, values: Mapping[str, ConfigValue]) -> BrokerConfig:
        """From parsed values of those that are set; the others have their defaults.

        ConfigError where two settings do not go together."""
        merged = BROKER_CONFIGS.with_defaults(values)
        if "node.id" not in values and "broker.id" in values:
            merged["node.id"] = values["broker.id"]
        config = cls(**_by_field(_BROKER_FIELDS, merged))
        _check_together(config)
        return config

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> BrokerConfig:
        """From texts, as a properties file has them; ConfigError names the setting."""
        return cls.of(BROKER_CONFIGS.parse(texts))

    def parsed_listeners(self) -> list[Listener]:
        return [parse_listener(text) for text in self.listeners]

    def parsed_advertised_listeners(self) -> list[Listener]:
        """What clients are told; where nothing is set, the listeners themselves."""
        texts = self.advertised_listeners
        return self.parsed_listeners() if texts is None else [parse_listener(t) for t in texts]


def _by_field(names: Mapping[str, str], values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    return {field: values[setting] for field, setting in names.items()}


_BROKER_FIELDS = {field.name: field.name.replace("_", ".") for field in fields(BrokerConfig)}
_TOPIC_FIELDS = {field.name: field.name.replace("_", ".") for field in fields(TopicConfig)}


def _check_together(config: BrokerConfig) -> None:
    if config.node_id < 0:
        raise ConfigError("broker.id", f"broker.id={config.node_id}: the least is 0")
    protocols = parse_protocol_map(config.listener_security_protocol_map)
    for listener in config.parsed_listeners():
        if listener.name not in protocols:
            raise ConfigError(
                "listeners",
                f"listeners: {listener.name} is not in listener.security.protocol.map",
            )
    named = {listener.name for listener in config.parsed_listeners()}
    for listener in config.parsed_advertised_listeners():
        if listener.name not in named:
            raise ConfigError(
                "advertised.listeners", f"advertised.listeners: {listener.name} is no listener"
            )
        if listener.host in ("0.0.0.0", "::") and config.advertised_listeners is not None:
            raise ConfigError(
                "advertised.listeners",
                f"advertised.listeners: no client can connect to {listener.host}",
            )
    _check_order(
        ("group.min.session.timeout.ms", config.group_min_session_timeout_ms),
        ("group.max.session.timeout.ms", config.group_max_session_timeout_ms),
    )
    check_quorums(
        config.quire_ledger_ensemble_size,
        config.quire_ledger_write_quorum,
        config.quire_ledger_ack_quorum,
    )


def _check_order(*settings: tuple[str, int]) -> None:
    for (name, value), (next_name, next_value) in itertools.pairwise(settings):
        if value > next_value:
            raise ConfigError(name, f"{name}={value} is above {next_name}={next_value}")


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """feature 19: E >= Qw >= Qa."""
    _check_order(
        ("quire.ledger.ack.quorum", ack_quorum),
        ("quire.ledger.write.quorum", write_quorum),
        ("quire.ledger.ensemble.size", ensemble_size),
    )
