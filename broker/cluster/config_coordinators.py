"""Settings of the broker's coordinators and of their internal topics: groups and their offsets,
transactions, what is known of share groups. Those of the newer group protocols are in
config_consumer.py, config_share.py and config_streams.py.
"""

from __future__ import annotations

from broker.cluster.config_streams import StreamsGroupsConfig
from runtime.config import INT_MAX, ConfigType, Scope, at_least, between
from runtime.settings import setting, settings_part

INT, LONG, SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
STRING, LIST, BOOLEAN = ConfigType.STRING, ConfigType.LIST, ConfigType.BOOLEAN
CLUSTER_WIDE = Scope.CLUSTER_WIDE


@settings_part
class CoordinatorsConfig(StreamsGroupsConfig):
    """The broker's part; sizes in bytes, times as the names say. A chain of classes, as one with
    slots has one base."""

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        doc="How long a new classic group waits for more members before its first rebalance.",
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        INT,
        "6000",
        doc="Shortest session timeout that a classic member may ask for.",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        doc="Longest session timeout that a classic member may ask for.",
    )
    group_max_size: int = setting(
        "group.max.size",
        INT,
        str(INT_MAX),
        at_least(1),
        doc="Most members of a classic group.",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        doc="Longest text that a commit may carry beside an offset.",
    )
    offsets_load_buffer_size: int = setting(
        "offsets.load.buffer.size",
        INT,
        "5242880",
        at_least(1),
        unit="bytes",
        doc="Bytes read at a time when a coordinator loads a partition.",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        INT,
        "10080",
        at_least(1),
        doc="How long the offsets of a group without members are kept.",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        at_least(1),
        doc="Time between two looks for offsets that are too old.",
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        INT,
        "50",
        at_least(1),
        doc="Partitions of __consumer_offsets; fixed once the topic exists.",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        SHORT,
        "1",
        at_least(1),
        doc="Replication factor of __consumer_offsets.",
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        INT,
        "104857600",
        at_least(1),
        doc="segment.bytes of __consumer_offsets.",
    )
    offsets_topic_compression_codec: int = setting(
        "offsets.topic.compression.codec",
        INT,
        "0",
        between(0, 4),
        doc="How the coordinator compresses its records: 0 not, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )

    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        INT,
        "900000",
        at_least(1),
        doc="Longest transaction timeout that a producer may ask for.",
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        at_least(1),
        doc="How long a transactional id without transactions is remembered.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        at_least(1),
        doc="Time between two looks for transactional ids that are too old.",
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        INT,
        "100",
        at_least(0),
        doc="How long a producer's next transaction waits here for the end of the last one, before"
        " the producer is told to try again.",
    )
    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        scope=CLUSTER_WIDE,
        doc="Whether a partition asks if a transaction is open before it takes its first batch"
        " (Produce up to version 11).",
    )
    transaction_state_log_load_buffer_size: int = setting(
        "transaction.state.log.load.buffer.size",
        INT,
        "5242880",
        at_least(1),
        unit="bytes",
        doc="Bytes read at a time when a coordinator of transactions loads a partition.",
    )
    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        at_least(1),
        doc="Partitions of __transaction_state; fixed once the topic exists.",
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        SHORT,
        "1",
        at_least(1),
        doc="Replication factor of __transaction_state.",
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        INT,
        "1",
        at_least(1),
        doc="min.insync.replicas of __transaction_state.",
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        at_least(1),
        doc="segment.bytes of __transaction_state.",
    )

    share_coordinator_state_topic_num_partitions: int = setting(
        "share.coordinator.state.topic.num.partitions",
        INT,
        "50",
        at_least(1),
        doc="Partitions of __share_group_state; fixed once the topic exists.",
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        "share.coordinator.state.topic.replication.factor",
        SHORT,
        "1",
        at_least(1),
        doc="Replication factor of __share_group_state.",
    )
    share_coordinator_state_topic_min_isr: int = setting(
        "share.coordinator.state.topic.min.isr",
        SHORT,
        "1",
        at_least(1),
        doc="min.insync.replicas of __share_group_state.",
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        "share.coordinator.state.topic.segment.bytes",
        INT,
        "104857600",
        at_least(1),
        doc="segment.bytes of __share_group_state.",
    )
    share_coordinator_state_topic_compression_codec: int = setting(
        "share.coordinator.state.topic.compression.codec",
        INT,
        "0",
        between(0, 4),
        doc="How the share coordinator compresses its records: 0 not, 1 gzip, 2 snappy, 3 lz4,"
        " 4 zstd.",
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        "share.coordinator.state.topic.prune.interval.ms",
        INT,
        "300000",
        at_least(1),
        doc="How often what is superseded is deleted from the beginning of __share_group_state.",
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        INT,
        "300000",
        at_least(1),
        doc="A share partition whose snapshot is that old gets a new one, where the old one keeps"
        " what is superseded from being deleted.",
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        INT,
        "500",
        between(0, 500),
        doc="Updates of a share partition's state before the next snapshot of all of it.",
    )
    share_coordinator_load_buffer_size: int = setting(
        "share.coordinator.load.buffer.size",
        INT,
        "5242880",
        at_least(1),
        doc="Bytes of one read when a partition of __share_group_state is loaded.",
    )
    share_coordinator_write_timeout_ms: int = setting(
        "share.coordinator.write.timeout.ms",
        INT,
        "5000",
        at_least(1),
        doc="Whoever waits for longer until a share partition's state is stored is told"
        " COORDINATOR_NOT_AVAILABLE; it may be stored later.",
    )
