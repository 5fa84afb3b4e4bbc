"""Settings of the group coordinator, by their Kafka names in snake_case with the unit last."""

from __future__ import annotations

from dataclasses import field

from broker.cluster.config import BrokerConfig
from broker.groups.consumer.settings import ConsumerSettings
from broker.groups.share.settings import ShareSettings
from broker.groups.streams.settings import StreamsSettings
from wire.dataclass import dataclass
from wire.kafka.records.compression import Compression

#: Of which nothing is set: its defaults are the declarations'.
_BROKER = BrokerConfig()
_CODEC = Compression(_BROKER.offsets_topic_compression_codec)


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """The broker's settings, and what Kafka has no setting for (marked)."""

    offsets_topic_num_partitions: int = _BROKER.offsets_topic_num_partitions
    offsets_topic_segment_bytes: int = _BROKER.offsets_topic_segment_bytes
    offsets_topic_compression_codec: Compression = _CODEC
    offsets_retention_minutes: int = _BROKER.offsets_retention_minutes
    offsets_retention_check_interval_ms: int = _BROKER.offsets_retention_check_interval_ms
    offsets_load_buffer_size: int = _BROKER.offsets_load_buffer_size
    offset_metadata_max_bytes: int = _BROKER.offset_metadata_max_bytes
    group_initial_rebalance_delay_ms: int = _BROKER.group_initial_rebalance_delay_ms
    group_min_session_timeout_ms: int = _BROKER.group_min_session_timeout_ms
    group_max_session_timeout_ms: int = _BROKER.group_max_session_timeout_ms
    group_max_size: int = _BROKER.group_max_size
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    share: ShareSettings = field(default_factory=ShareSettings)
    streams: StreamsSettings = field(default_factory=StreamsSettings)
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
