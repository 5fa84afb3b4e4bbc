"""Settings of the group coordinator, by their Kafka names in snake_case with the unit last."""

from __future__ import annotations

from dataclasses import dataclass

from wire.kafka.records.compression import Compression


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """Defaults are Kafka 4.3's, but for what it has no setting for (marked)."""

    offsets_topic_num_partitions: int = 50
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_topic_compression_codec: Compression = Compression.NONE
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_load_buffer_size: int = 5_242_880
    offset_metadata_max_bytes: int = 4_096
    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    #: Ours: a coordinator partition answers COORDINATOR_NOT_AVAILABLE while so many bytes of
    #: records wait for their acks.
    pending_bytes_max: int = 16_777_216
    #: Ours: records of one turn are merged into batches of at most about this size; below the
    #: topic's max.message.bytes.
    batch_bytes_max: int = 524_288
    #: Ours: partitions of `__consumer_offsets` that are loaded at the same time.
    loads_max: int = 8

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
