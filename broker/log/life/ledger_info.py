"""One ledger of a partition's chain, as the chain's document names it.

Pure values. A ledger that was made by compaction stands in for one or more others (its sources): it
has their whole range of offsets, with holes inside, and of the facts about its sources those that
a reader may ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_TIMESTAMP = -1
#: What minima begin with.
TIMESTAMP_MAX = 2**63 - 1
#: No batch of the ledger has a delete horizon.
NO_HORIZON = -1


@dataclass(slots=True, frozen=True)
class LedgerInfo:
    """Offsets are Kafka's, times milliseconds, sizes payload bytes."""

    ledger_id: int
    base_offset: int
    #: The first that wrote records of it; others that followed are in `epochs`.
    leader_epoch: int
    #: Of a compacted one: when the newest of its sources was made.
    created_ms: int
    last_offset: int | None = None  # None while open
    entry_count: int = 0
    size_bytes: int = 0
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    index_entry: int | None = None
    snapshot_entry: int | None = None  # the newest; set while open, too
    #: 0: as it was written. Of a compacted one, 1 more than the largest of its sources.
    generation: int = 0
    #: (leader epoch, its first offset) of a compacted ledger whose sources had several, ascending
    #: in both, the first one (`leader_epoch`, `base_offset`); else empty.
    epochs: tuple[tuple[int, int], ...] = ()
    #: The earliest delete horizon of its batches (KIP-534).
    min_horizon_ms: int = NO_HORIZON
    #: The entry that lists the ledger's aborted transactions, and how many these are.
    aborted_entry: int | None = None
    aborted_count: int = 0
    #: No record is earlier; NO_TIMESTAMP if nobody knows.
    min_timestamp: int = NO_TIMESTAMP

    @property
    def is_open(self) -> bool:
        return self.last_offset is None

    @property
    def is_compacted(self) -> bool:
        return self.generation > 0

    @property
    def end_offset(self) -> int:
        """One past the last offset; only for a closed ledger."""
        assert self.last_offset is not None
        return self.last_offset + 1

    def end_offset_or(self, offset: int) -> int:
        """`end_offset`, or `offset` while it is open."""
        return offset if self.is_open else self.end_offset

    @property
    def all_epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, its first offset), one or more."""
        return self.epochs or ((self.leader_epoch, self.base_offset),)


def known_minimum(timestamp: int) -> int:
    """What `LedgerInfo.min_timestamp` is to be, of the least of some: below 0 if one is not known,
    or is not a time; TIMESTAMP_MAX if there were none."""
    return timestamp if 0 <= timestamp < TIMESTAMP_MAX else NO_TIMESTAMP


def merged_epochs(sources: Iterable[LedgerInfo]) -> tuple[tuple[int, int], ...]:
    """What `LedgerInfo.epochs` is to be of a ledger that stands in for these, which are
    consecutive: empty if they have one epoch."""
    merged: list[tuple[int, int]] = []
    for info in sources:
        merged += [each for each in info.all_epochs if not merged or each[0] != merged[-1][0]]
    return tuple(merged) if len(merged) > 1 else ()
