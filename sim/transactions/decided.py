"""What a log with transactions says: by its markers alone, and as a consumer takes it that reads
only what is committed (KIP-98).

Code of its own: nothing of the broker's state of producers, aborted index or last stable offset.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wire.kafka.records.batch import iter_records, scan_batches
from wire.kafka.records.control import EndTransactionMarker, decode_end_transaction_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wire.kafka.messages.fetch import AbortedTransaction
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.record import Record

RECORDS_MAX = 1 << 20


class Read(NamedTuple):
    """A batch as it was read. `records`: of a control batch none."""

    header: BatchHeader
    records: Sequence[tuple[int, Record]]
    marker: EndTransactionMarker | None


def parse(data: bytes) -> Iterator[Read]:
    """All batches of an answer to a fetch, each whole; records with their offsets."""
    at = 0
    for header in scan_batches(data):
        batch = memoryview(data)[at : at + header.size]
        at += header.size
        records = list(iter_records(batch, header, size_max=RECORDS_MAX))
        if header.is_control:
            marker = decode_end_transaction_marker(records[0]) if records else None
            yield Read(header, (), marker)
        else:
            offsets = [(header.base_offset + each.offset_delta, each) for each in records]
            yield Read(header, offsets, None)


def committed(
    batches: Iterable[Read], aborted: Iterable[AbortedTransaction]
) -> Iterator[tuple[int, Record]]:
    """Records that Java's consumer hands out: none of a producer whose aborted transaction has
    begun, until its marker has come."""
    ahead = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    dropped: set[int] = set()
    for header, records, marker in batches:
        while ahead and ahead[-1].first_offset <= header.last_offset:
            dropped.add(ahead.pop().producer_id)
        if marker is not None and not marker.committed:
            dropped.discard(header.producer_id)
        if not (header.is_transactional and header.producer_id in dropped):
            yield from records


class Marker(NamedTuple):
    offset: int
    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int


@dataclass(slots=True)
class Decided:
    """A partition from its log start on, in the order of offsets."""

    log_start: int
    end: int = 0
    #: Offset -> value, of all records; and whether it is committed, for those of transactions.
    #: None: no marker says.
    values: dict[int, bytes] = field(default_factory=dict)
    fates: dict[int, bool | None] = field(default_factory=dict)
    #: Producer id and epoch of each record of a transaction.
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)

    def is_visible(self, offset: int) -> bool:
        """To who reads what is committed."""
        return self.fates.get(offset, True) is True


def decide(log_start: int, batches: Iterable[Read]) -> Decided:
    """`batches`: all of the partition, from its log start on."""
    found = Decided(log_start, log_start)
    open_: dict[int, list[int]] = defaultdict(list)
    for header, records, marker in batches:
        found.end = header.last_offset + 1
        producer = (header.producer_id, header.producer_epoch)
        if marker is not None:
            found.markers.append(
                Marker(header.base_offset, *producer, marker.committed, marker.coordinator_epoch)
            )
            for offset in open_.pop(header.producer_id, ()):
                found.fates[offset] = marker.committed
        for offset, record in records:
            if offset < log_start:
                continue
            assert record.value is not None
            found.values[offset] = record.value
            if header.is_transactional:
                found.fates[offset] = None
                found.producers[offset] = producer
                open_[header.producer_id].append(offset)
    return found
