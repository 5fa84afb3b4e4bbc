"""Settings of the share coordinator, by their Kafka names in snake_case, the unit last."""

from __future__ import annotations

from broker.cluster.config import BrokerConfig
from wire.dataclass import dataclass
from wire.kafka.records.compression import Compression

#: Of which nothing is set: its defaults are the declarations'.
_BROKER = BrokerConfig()
_COMPRESSION = Compression(_BROKER.share_coordinator_state_topic_compression_codec)


@dataclass(slots=True, frozen=True)
class ShareStateConfig:
    """The broker's settings, and what Kafka has no setting for (marked)."""

    state_topic_num_partitions: int = _BROKER.share_coordinator_state_topic_num_partitions
    state_topic_compression_codec: Compression = _COMPRESSION
    load_buffer_size: int = _BROKER.share_coordinator_load_buffer_size
    snapshot_update_records_per_snapshot: int = (
        _BROKER.share_coordinator_snapshot_update_records_per_snapshot
    )
    write_timeout_ms: int = _BROKER.share_coordinator_write_timeout_ms
    state_topic_prune_interval_ms: int = _BROKER.share_coordinator_state_topic_prune_interval_ms
    cold_partition_snapshot_interval_ms: int = (
        _BROKER.share_coordinator_cold_partition_snapshot_interval_ms
    )
    #: Ours: a partition answers COORDINATOR_NOT_AVAILABLE while so many bytes of records wait for
    #: their acks.
    pending_bytes_max: int = 16_777_216
    #: Ours: records of one turn are merged into batches of at most about this size; below the
    #: topic's max.message.bytes.
    batch_bytes_max: int = 524_288
    #: Ours: partitions of `__share_group_state` that are loaded at the same time.
    loads_max: int = 8

    @classmethod
    def of(cls, broker: BrokerConfig) -> ShareStateConfig:
        """The coordinator's part of the broker's settings."""
        return cls(
            broker.share_coordinator_state_topic_num_partitions,
            Compression(broker.share_coordinator_state_topic_compression_codec),
            broker.share_coordinator_load_buffer_size,
            broker.share_coordinator_snapshot_update_records_per_snapshot,
            broker.share_coordinator_write_timeout_ms,
            broker.share_coordinator_state_topic_prune_interval_ms,
            broker.share_coordinator_cold_partition_snapshot_interval_ms,
        )
