"""Markers: the end of a producer's transaction in this partition, as a batch on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.append.queue import Append
from wire.kafka.records.batch import iter_records
from wire.kafka.records.control import (
    EndTransactionMarker,
    build_end_transaction_batch,
    decode_end_transaction_marker,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader

#: A control record is some 20 bytes.
CONTROL_BYTES_MAX = 64 << 10


class MarkerAppend(Append):
    """Calls `done(append)`. `transaction_version` is that of the producer's client (0 to 2), and 0
    of an administrator's abort."""

    __slots__ = ("_done", "marker", "transaction_version")

    def __init__(
        self,
        records: memoryview,
        marker: EndTransactionMarker,
        transaction_version: int,
        done: Callable[[Append], None],
    ) -> None:
        super().__init__(records)
        self.marker = marker
        self.transaction_version = transaction_version
        self._done = done

    def finished(self) -> None:
        self._done(self)


def marker_append(
    producer_id: int,
    producer_epoch: int,
    marker: EndTransactionMarker,
    transaction_version: int,
    *,
    now_ms: int,
    done: Callable[[Append], None],
) -> MarkerAppend:
    """The batch of a marker, to be submitted as an internal one."""
    batch = build_end_transaction_batch(
        marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
    )
    return MarkerAppend(memoryview(bytearray(batch)), marker, transaction_version, done)


def marker_of(header: BatchHeader, batch: Buffer) -> EndTransactionMarker | None:
    """What a control batch says of a transaction; None if it is about something else, or was
    emptied by compaction. WireError if its record is damaged."""
    assert header.is_control
    for record in iter_records(batch, header, size_max=CONTROL_BYTES_MAX):
        return decode_end_transaction_marker(record)
    return None
