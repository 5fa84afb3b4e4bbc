"""The last commit of each group and partition, of batches of `__consumer_offsets`. Pure.

commits = LastCommits()
commits.feed(header, batch)        # in the order of offsets
commits.found()                    # {("group", "topic", 0): 17}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.transactions.markers import marker_of
from wire.kafka.records.batch import iter_records
from wire.kafka.records.coordinator import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_key,
    decode_value,
)

if TYPE_CHECKING:
    from wire.kafka.records.batch import BatchHeader

BATCH_BYTES_MAX = 1 << 28

#: Group, topic, partition.
Place = tuple[str, str, int]


class LastCommits:
    """What a transaction commits counts from its marker on, and not if it was aborted, or is not
    decided yet (Kafka's GroupMetadataManager: pending offsets)."""

    def __init__(self) -> None:
        #: At which offset it was written, and what was committed; None: a tombstone.
        self._last: dict[Place, tuple[int, int | None]] = {}
        self._pending: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}

    def feed(self, header: BatchHeader, batch: memoryview) -> None:
        """WireError."""
        if header.is_control:
            self._ended(header, batch)
            return
        for record in iter_records(batch, header, size_max=BATCH_BYTES_MAX):
            written = header.base_offset + record.offset_delta, record.key, record.value
            if header.is_transactional:
                self._pending.setdefault(header.producer_id, []).append(written)
            else:
                self._add(*written)

    def _ended(self, header: BatchHeader, batch: memoryview) -> None:
        marker = marker_of(header, batch)
        if marker is None:
            return
        for written in self._pending.pop(header.producer_id, []):
            if marker.committed:
                self._add(*written)

    def _add(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        parsed = decode_group_key(key)
        if not isinstance(parsed, OffsetCommitKey) or parsed.partition < 0:
            return
        place = parsed.group, parsed.topic, parsed.partition
        if place in self._last and self._last[place][0] > offset:
            return  # committed while the transaction was open
        if value is None:
            self._last[place] = offset, None
            return
        commit = decode_value(OffsetCommitValue, value)
        if commit is not None:
            self._last[place] = offset, commit.offset

    def found(self) -> dict[Place, int]:
        return {place: offset for place, (_, offset) in self._last.items() if offset is not None}
