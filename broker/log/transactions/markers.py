"""Markers: the end of a producer's transaction in this partition, as a batch on its way."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from broker.log.append.queue import Append
from wire.kafka.records.batch import BatchHeader, iter_records, parse_header
from wire.kafka.records.control import (
    EndTransactionMarker,
    build_end_transaction_batch,
    decode_end_transaction_marker,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.buffers import Buffer

#: A control record is some 20 bytes.
CONTROL_BYTES_MAX = 64 << 10
_NOTHING = memoryview(b"")


class MarkerAppend(Append):
    """`transaction_version` is that of the producer's client (0 to 2), and 0 of an administrator's
    abort. It has no records until the partition gives it some (`marker_batch`)."""

    __slots__ = ("marker", "producer_epoch", "producer_id", "transaction_version")

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
    ) -> None:
        super().__init__(_NOTHING)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.marker = marker
        self.transaction_version = transaction_version


class CallbackMarkerAppend(MarkerAppend):
    """Calls `done(append)`."""

    __slots__ = ("_done",)

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
        done: Callable[[Append], None],
    ) -> None:
        super().__init__(producer_id, producer_epoch, marker, transaction_version)
        self._done = done

    def finished(self) -> None:
        self._done(self)


# The markers of one transaction come one after the other, a partition each, and differ in nothing
# that the checksum covers: what is built for the first serves them all.
@lru_cache(maxsize=8)
def marker_batch(
    producer_id: int,
    producer_epoch: int,
    is_committed: bool,
    coordinator_epoch: int,
    now_ms: int,
) -> tuple[bytes, BatchHeader]:
    """The batch of a marker, to be copied, and its header."""
    batch = build_end_transaction_batch(
        EndTransactionMarker(is_committed, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp_ms=now_ms,
    )
    return batch, parse_header(batch)


def marker_of(header: BatchHeader, batch: Buffer) -> EndTransactionMarker | None:
    """What a control batch says of a transaction; None if it is about something else, or was
    emptied by compaction. WireError if its record is damaged."""
    assert header.is_control
    for record in iter_records(batch, header, size_max=CONTROL_BYTES_MAX):
        return decode_end_transaction_marker(record)
    return None
