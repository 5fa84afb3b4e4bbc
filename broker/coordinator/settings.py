"""What a coordinator's owner decides about its topic's partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wire.kafka.errors import ErrorCode
    from wire.kafka.records.compression import Compression


@dataclass(slots=True, frozen=True)
class CoordinatorSettings:
    """No defaults: each kind of coordinator has settings of its own, and makes these of them."""

    #: Of batches that are written; what is loaded may have any.
    compression: Compression
    #: Records of one turn are merged into batches of at most about this size; below the topic's
    #: max.message.bytes.
    batch_bytes_max: int
    #: A partition answers COORDINATOR_NOT_AVAILABLE while so many bytes of records wait for acks.
    pending_bytes_max: int
    #: Bytes of one read of a load.
    load_buffer_size: int
    #: Of the records of one key the last is all that counts, as the topic is compacted.
    last_counts: bool
    #: Partitions that are loaded at the same time.
    loads_max: int
    #: What it costs a turn of the loop to tell one unit of records that they are stored, with all
    #: that this lets others do (runtime/turn.py).
    told_units: int
    #: What clients are told for an append's error; others pass as they are.
    append_errors: Mapping[ErrorCode, ErrorCode]
