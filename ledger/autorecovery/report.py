"""What cannot be repaired now, and why. Pure.

Nobody has to guess from «count: 1» what is waited for (bk#4872, #2162, #3338): every marked ledger
has a problem with a reason, in the worker's log and metrics and in `quire bookie repair-report`,
which finds it anew from the metadata. Nothing of this is kept in the metadata.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ledger.fragments import fragments, schedule_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ledger.bookie_client import BookieId
    from ledger.distribution import Schedule
    from ledger.fragments import Fragment
    from wire.bookkeeper.ledger_metadata import LedgerMetadata


class Reason(Enum):
    #: All bookies that had copies of some entry are gone; with a write quorum of 1, one is enough.
    NO_COPY_LEFT = "no copy left"
    #: Nobody can take the place of a lost bookie: all writable ones are in the ensemble already.
    TOO_FEW_BOOKIES = "too few bookies"
    #: No bookie gives an entry, though one that should have it is there.
    UNREADABLE_ENTRY = "unreadable entry"
    #: Its writer may still replace the lost bookie by itself; then it is fenced.
    OPEN = "open"
    #: Its writer goes on without bookies of the ensemble, or they lack something of its open end:
    #: that is settled when it is closed. It is not fenced for that.
    UNFINISHED = "unfinished"
    #: Its end cannot be found: too few bookies of its last ensemble answer.
    NOT_RECOVERED = "not recovered"
    #: The bookies that were to get the copies did not take them.
    TARGET_FAILED = "target failed"
    METADATA = "metadata"


@dataclass(slots=True, frozen=True)
class Problem:
    reason: Reason
    detail: str
    #: Whose return may end it.
    bookies: frozenset[BookieId] = frozenset()
    #: Of UNREADABLE_ENTRY: which fragment, and which entry.
    fragment_first_entry_id: int | None = None
    entry_id: int | None = None

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


def entries_without_copy(
    fragment: Fragment, schedule: Schedule, registered: Collection[BookieId]
) -> int:
    """Entries of a closed fragment whose bookies are all gone."""
    assert fragment.last_entry_id is not None
    first, end = fragment.first_entry_id, fragment.last_entry_id + 1
    size = schedule.ensemble_size
    count = 0
    for residue, write_set in enumerate(schedule.write_sets):
        if registered and any(fragment.ensemble[index] in registered for index in write_set):
            continue
        # Entry ids in first..end-1 that are `residue` modulo the ensemble's size.
        count += max(0, (end - 1 - residue) // size - (first - 1 - residue) // size)
    return count


def no_copy_left(
    fragment: Fragment, schedule: Schedule, registered: Collection[BookieId]
) -> Problem | None:
    if not fragment.is_closed:
        return None
    count = entries_without_copy(fragment, schedule, registered)
    if not count:
        return None
    gone = sorted(set(fragment.ensemble).difference(registered))
    words = (
        f"{count} entries between {fragment.first_entry_id} and {fragment.last_entry_id} were only "
        f"on {', '.join(gone)} (write quorum {schedule.write_quorum_size})"
    )
    return Problem(Reason.NO_COPY_LEFT, words, frozenset(gone))


def too_few(fragment: Fragment, gone: Collection[BookieId], spare: int) -> Problem:
    words = (
        f"{len(gone)} of the ensemble from entry {fragment.first_entry_id} must be replaced "
        f"({', '.join(sorted(gone))}), and {spare} writable bookies are not in it"
    )
    return Problem(Reason.TOO_FEW_BOOKIES, words, frozenset(gone))


def still_open(fragment: Fragment, gone: Collection[BookieId]) -> Problem:
    words = (
        f"its last ensemble, from entry {fragment.first_entry_id}, has lost "
        f"{', '.join(sorted(gone))}, and its writer may replace that"
    )
    return Problem(Reason.OPEN, words, frozenset(gone))


def unfinished(fragment: Fragment, suspects: Collection[BookieId]) -> Problem:
    words = (
        f"its last ensemble, from entry {fragment.first_entry_id}, is written without "
        f"{', '.join(sorted(set(fragment.ensemble).intersection(suspects)))}"
    )
    return Problem(Reason.UNFINISHED, words)


def problems_of(
    ledger_id: int,
    metadata: LedgerMetadata,
    registered: Collection[BookieId],
    writable: Collection[BookieId],
) -> Iterator[Problem]:
    """As far as metadata tells. None for a ledger that can be repaired, or needs no repair."""
    schedule = schedule_of(metadata)
    for fragment in fragments(ledger_id, metadata):
        gone = set(fragment.ensemble).difference(registered)
        if not gone:
            continue
        if not fragment.is_closed:
            yield still_open(fragment, gone)
            continue
        problem = no_copy_left(fragment, schedule, registered)
        spare = len(set(writable).difference(fragment.ensemble))
        if problem is not None:
            yield problem
        elif spare < len(gone):
            yield too_few(fragment, gone, spare)
