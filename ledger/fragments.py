"""Fragments: which entries of a ledger are on which ensemble. Pure.

A segment of the metadata says from where on an ensemble holds; a fragment also where that ends. It
is closed when that is final: another segment follows, or the ledger is closed (invariants A).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.distribution import Schedule
from ledger.errors import MetadataConflictError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ledger.bookie_client import BookieId
    from wire.bookkeeper.ledger_metadata import LedgerMetadata


@dataclass(slots=True, frozen=True)
class Fragment:
    """Entries of a ledger that are on the same ensemble."""

    ledger_id: int
    first_entry_id: int
    #: Inclusive, `first_entry_id - 1` if there is no entry; None while the fragment is open.
    last_entry_id: int | None
    ensemble: tuple[BookieId, ...]

    @property
    def is_closed(self) -> bool:
        return self.last_entry_id is not None

    def indexes_of(self, bookies: Collection[BookieId]) -> tuple[int, ...]:
        return tuple(index for index, bookie in enumerate(self.ensemble) if bookie in bookies)

    def entry_ids(self, schedule: Schedule, indexes: Collection[int]) -> Iterator[int]:
        """Ascending: the entries that have a copy at any of these ensemble indexes."""
        assert self.last_entry_id is not None, "an open fragment has no end"
        wanted = [bool(set(write_set) & set(indexes)) for write_set in schedule.write_sets]
        size = schedule.ensemble_size
        for entry_id in range(self.first_entry_id, self.last_entry_id + 1):
            if wanted[entry_id % size]:
                yield entry_id


def fragments(ledger_id: int, metadata: LedgerMetadata) -> tuple[Fragment, ...]:
    """All of a ledger's, in order; only the last one may be open."""
    end = metadata.last_entry_id if metadata.is_closed else None
    found: list[Fragment] = []
    for first_entry_id, ensemble in reversed(metadata.segments):
        # A ledger may be closed in front of a segment that got no entry.
        last = end if end is None else max(end, first_entry_id - 1)
        found.append(Fragment(ledger_id, first_entry_id, last, ensemble))
        end = first_entry_id - 1 if end is None else min(end, first_entry_id - 1)
    found.reverse()
    return tuple(found)


def schedule_of(metadata: LedgerMetadata) -> Schedule:
    return Schedule(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)


def with_replacements(
    fragment: Fragment, replacements: Mapping[int, BookieId], metadata: LedgerMetadata
) -> LedgerMetadata | None:
    """The metadata with other bookies at these indexes of the fragment's ensemble; None if they are
    there already. MetadataConflictError if an old bookie is gone from its place, or a new one is in
    the ensemble at another."""
    first_entry_id = fragment.first_entry_id
    firsts = [first for first, _ in metadata.segments]
    if first_entry_id not in firsts:
        words = f"there is no segment from entry {first_entry_id} any more"
        raise MetadataConflictError(fragment.ledger_id, words)
    position = firsts.index(first_entry_id)
    ensemble = metadata.segments[position][1]
    wanted = list(ensemble)
    for index, bookie in replacements.items():
        wanted[index] = bookie
    if tuple(wanted) == ensemble:
        return None
    for index, bookie in replacements.items():
        if ensemble[index] != fragment.ensemble[index] or bookie in ensemble:
            raise MetadataConflictError(
                fragment.ledger_id,
                f"the ensemble from entry {first_entry_id} was {fragment.ensemble} and is now "
                f"{ensemble}: no place for {bookie} at {index}",
            )
    segments = list(metadata.segments)
    segments[position] = (first_entry_id, tuple(wanted))
    return replace(metadata, segments=tuple(segments))
