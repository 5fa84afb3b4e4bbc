"""What is queued for a coordinator's partition: units, each of one request, and how they are put
into batches.

Plain units share a batch. What a transaction writes has a batch of its own, as a batch has one
producer, and so has a marker; they keep their place in the order of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.log.transactions.origin import Origin
    from wire.kafka.records.control import EndTransactionMarker

#: A record's key and value; a None value is a tombstone.
KeyValue = tuple[bytes, bytes | None]
Done = Callable[[ErrorCode], None]
#: Of units that are durable: the offset of its first record.
Stored = Callable[[int], None]

#: What a record costs beside its key and value, at most: lengths, deltas, attributes.
_RECORD_OVERHEAD = 24
#: Records of one batch, of several requests together, and of one unit of a long list.
_BATCH_RECORDS_MAX = 500
#: What a marker is counted as, in memory.
MARKER_BYTES = 100


@dataclass(slots=True, frozen=True)
class Producer:
    """Whose batch it is. Without an id: nobody's transaction."""

    id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    #: With which the log was asked whether the transaction may write there.
    origin: Origin | None = None


NOBODY = Producer()


@dataclass(slots=True, frozen=True)
class Marker:
    """The end of a transaction, as WriteTxnMarkers tells it."""

    producer_id: int
    producer_epoch: int
    end: EndTransactionMarker
    #: Of transactions, that of the producer's client; 0 of an administrator.
    version: int


def _nothing(offset: int) -> None:
    """Who has no use for the offset."""


@dataclass(slots=True)
class Unit:
    """The records of one request, and who waits for them. Without records, and without a marker: a
    mark in the order."""

    records: Sequence[KeyValue]
    done: Done
    size_bytes: int
    stored: Stored = _nothing
    producer: Producer = NOBODY
    marker: Marker | None = None

    @property
    def is_mark(self) -> bool:
        return not self.records and self.marker is None

    @property
    def is_alone(self) -> bool:
        """Its batch has no other records."""
        return self.marker is not None or self.producer is not NOBODY


def cost_of(record: KeyValue) -> int:
    """Bytes of a batch, at most."""
    key, value = record
    return len(key) + len(value or b"") + _RECORD_OVERHEAD


def cut(records: Sequence[KeyValue], batch_bytes_max: int) -> Iterator[tuple[slice, int]]:
    """Which of a long list of records go into one batch, and their size in bytes."""
    size = start = 0
    for at, cost in enumerate(map(cost_of, records)):
        is_full = at - start >= _BATCH_RECORDS_MAX
        if at > start and (is_full or size + cost > batch_bytes_max):
            yield slice(start, at), size
            start, size = at, 0
        size += cost
    if records:
        yield slice(start, len(records)), size


def next_batch(queue: Sequence[Unit], batch_bytes_max: int) -> tuple[int, int, int]:
    """(units, records, bytes) of the next batch: of the first units of the queue as many as one may
    have; marks go with what is before them."""
    if len(queue) == 1:  # as nearly always, where a topic has many partitions
        unit = queue[0]
        return 1, len(unit.records), 0 if unit.is_mark else unit.size_bytes
    count = size = taken = 0
    last: Unit | None = None
    for unit in queue:
        if not unit.is_mark:
            more, larger = count + len(unit.records), size + unit.size_bytes
            if last is not None and (
                unit.is_alone
                or last.is_alone
                or larger > batch_bytes_max
                or more > _BATCH_RECORDS_MAX
            ):
                break
            last, count, size = unit, more, larger
        taken += 1
    return taken, count, size
