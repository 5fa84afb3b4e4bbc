"""What one look at the partitions of a fetch has found, and what that makes in the answer.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.api import FREED_PER_TURN, STEP_UNITS, Steps
from wire.dataclass import dataclass
from wire.kafka.messages.fetch import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.fetch_sessions import Wanted
    from broker.log.partition import PartitionLog
    from broker.log.read.partition_reader import ReadResult
    from broker.log.transactions.aborted_index import AbortedTransaction as Aborted
    from wire.kafka.messages.fetch import FetchPartition, FetchRequest, PartitionData

#: A partition of which nothing can be read without waiting, and its part of the answer.
Cold = tuple["Wanted", "PartitionData", "PartitionLog"]


@dataclass(slots=True)
class Collected:
    """One look at all partitions of a fetch."""

    data: list[tuple[Wanted, PartitionData]]
    size_bytes: int
    #: What is there to be read, each partition up to its limit; not less than `size_bytes`.
    available_bytes: int
    failed: bool  # some partition answered with an error: do not wait
    #: What cannot be read without waiting.
    cold: list[Cold]
    #: Of each in `data`, if none is cold and none failed.
    reads: list[ReadResult]
    #: Of some partition there is more than was read.
    is_cut: bool

    @classmethod
    def nothing(cls) -> Collected:
        return cls([], 0, 0, False, [], [], False)

    def count(self, wanted: Wanted, end_offset: int, got: ReadResult) -> None:
        """What was read of one partition, which ends there."""
        self.size_bytes += got.size_bytes
        self.is_cut |= got.next_offset < end_offset
        self.available_bytes += available_bytes(
            wanted.request, got.size_bytes, got.next_offset, end_offset
        )
        self.reads.append(got)

    def let_go(self) -> Steps[None]:
        """Frees what was collected, of many partitions in slices."""
        self.cold.clear()
        yield from freed(self.reads)
        yield from freed(self.data)


def freed(elements: list[Any]) -> Steps[None]:
    """Empties a list whose elements nobody else may have."""
    while len(elements) > FREED_PER_TURN:
        del elements[-FREED_PER_TURN:]
        yield STEP_UNITS
    elements.clear()


def is_committed(body: FetchRequest) -> bool:
    """Whether the client reads committed records only."""
    return body.isolation_level != 0


def available_bytes(
    request: FetchPartition, size_bytes: int, next_offset: int, end_offset: int
) -> int:
    """What counts for min_bytes: of a partition whose batches did not all fit, its limit."""
    if next_offset < end_offset:
        return max(size_bytes, request.partition_max_bytes)
    return size_bytes


def fill(data: PartitionData, log: PartitionLog, got: ReadResult | None) -> None:
    """The partition's ends, and the records of what was read of it."""
    data.high_watermark = log.high_watermark
    data.last_stable_offset = log.last_stable_offset
    data.log_start_offset = log.log_start_offset
    if got is not None and got.parts:
        data.records = got.parts


def listed(aborted: Sequence[Aborted]) -> list[AbortedTransaction]:
    """As the answer has them."""
    return [AbortedTransaction(each.producer_id, each.first_offset) for each in aborted]
