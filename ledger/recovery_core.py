"""What the answers to recovery's questions mean (invariants C, R). Pure.

Two questions: «what do you know of this ledger's end?» to all bookies of the last ensemble, and
«do you have this entry?» to one entry's write set. Silence and errors are *unknown*; only an
explicit «no such entry» or «no such ledger» is a negative (bk#2281, bk#2273).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from ledger.distribution import Schedule
    from wire.bookkeeper.entry import EntryHeader

_KNOWN = (Status.EOK, Status.ENOENTRY, Status.ENOLEDGER)
_NEGATIVE = (Status.ENOENTRY, Status.ENOLEDGER)


class Verdict(Enum):
    WAITING = auto()
    FOUND = auto()
    NOT_FOUND = auto()
    #: All have answered, and that decides nothing.
    UNDECIDED = auto()


class EndCore:
    """Collects the answers about a ledger's end. FOUND: `last_add_confirmed` is a lower bound of
    every acked entry's id, and so many bookies are fenced (if they were asked to) that nothing more
    can be acked."""

    __slots__ = ("_known_mask", "_replied_mask", "_schedule", "last_add_confirmed")

    def __init__(self, schedule: Schedule, last_segment_first: int) -> None:
        self._schedule = schedule
        self._known_mask = 0
        self._replied_mask = 0
        # Never before the last segment: its first entry id is the LAC of that moment, plus one, and
        # earlier entries are on bookies that were not asked (bk#2615).
        self.last_add_confirmed = last_segment_first - 1

    def reply(self, index: int, status: Status, header: EntryHeader | None) -> Verdict:
        """`header` of the entry in the answer, None if there is none or its digest is wrong."""
        self._replied_mask |= 1 << index
        if status in _KNOWN:
            self._known_mask |= 1 << index
        if header is not None:
            self.last_add_confirmed = max(self.last_add_confirmed, header.last_add_confirmed)
        if status in _KNOWN and self._schedule.is_covered(self._known_mask):
            return Verdict.FOUND
        if self._replied_mask.bit_count() == self._schedule.ensemble_size:
            return Verdict.UNDECIDED
        return Verdict.WAITING


class EntryCore:
    """Collects the answers of one entry's write set."""

    __slots__ = ("_negative_count", "_replied_count", "_schedule")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._negative_count = 0
        self._replied_count = 0

    def reply(self, status: Status, is_valid: bool) -> Verdict:
        """`is_valid`: the answer holds this entry, with a right digest."""
        self._replied_count += 1
        if status is Status.EOK and is_valid:
            return Verdict.FOUND
        if status in _NEGATIVE:
            self._negative_count += 1
            # As soon as it is decided: a bookie that hangs is not waited for (bk#1067).
            if self._negative_count >= self._schedule.negative_size:
                return Verdict.NOT_FOUND
        if self._replied_count == self._schedule.write_quorum_size:
            return Verdict.UNDECIDED
        return Verdict.WAITING
