"""Damage that was found in entry logs: what an operator is told of it, and what reads are cut at.

Found by reads (bookie/storage/reader.py) and by the scrub (scrub.py). Each damaged record is
listed once, until its entry is found to be sound again (bookie/reads.py) or its ledger is deleted.
Lines in the log are limited: one bad disk must not fill another with words.

Auto-recovery is told by whoever listens (joined/damage_marks.py).

Owner: the event loop's thread. Bounded: DAMAGES_MAX records are listed. Of a ledger with damage
beyond that, it is known that there is more than is listed: auto-recovery is told all the same, and
whoever wants to know which entries are sound reads them all. Reads are cut at CUTS_MAX records of
all logs; damage beyond that is found by such a read only where the read checks the digest.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from runtime.env import Clock

    #: Path, offset, ledger id, entry id.
    Place = tuple[str, int, int, int]

logger = logging.getLogger(__name__)

DAMAGES_MAX = 10_000
#: Eight bytes each.
CUTS_MAX = 1_000_000
#: Lines in the log within one interval.
LINES_MAX = 20
LINES_INTERVAL_SECONDS = 60.0
#: Of a ledger whose damage is found again and again, as by reads.
TELL_AGAIN_SECONDS = 3600.0
#: If it is not listed: it may be other damage of the ledger than what was told of last.
TELL_UNLISTED_AGAIN_SECONDS = 60.0

#: Entry id of damage that has none: nothing says which entry this was.
UNKNOWN_ID = -1


@dataclass(frozen=True, slots=True)
class Damage:
    path: str
    #: Of the record, its length included; -1 if that is not known.
    offset: int
    ledger_id: int
    entry_id: int
    reason: str
    #: Wall clock, milliseconds.
    found_ms: int


class DamageReports:
    __slots__ = (
        "_by_ledger",
        "_by_place",
        "_clock",
        "_cut_count",
        "_lines",
        "_lines_since",
        "_listeners",
        "_positions",
        "_suppressed",
        "_told_at",
        "_unlisted",
        "count",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_place: dict[Place, Damage] = {}
        #: Ledger id -> ids of its entries among them, each with the places of its records.
        self._by_ledger: dict[int, dict[int, list[Place]]] = {}
        #: Ledger id -> reports of damage that found no room in the list.
        self._unlisted: dict[int, int] = {}
        self._listeners: list[Callable[[int], None]] = []
        #: Ledger id -> when the listeners were told of it last.
        self._told_at: dict[int, float] = {}
        #: Offsets of damaged records, ascending, by log: reads are cut there.
        self._positions: dict[int, array[int]] = {}
        self._cut_count = 0
        self._lines = 0
        self._lines_since = clock.monotonic()
        self._suppressed = 0
        #: Damaged records that were found since the start; one for which there is no room in the
        #: list counts each time.
        self.count = 0

    def report(self, path: str, offset: int, ledger_id: int, entry_id: int, reason: str) -> None:
        """Lists it, if it is new, and says so in the log, unless there was too much of that."""
        place = (path, offset, ledger_id, entry_id)
        if place in self._by_place:
            self._tell(ledger_id, entry_id)
            return
        self.count += 1
        if len(self._by_place) >= DAMAGES_MAX:
            if ledger_id >= 0:
                self._unlisted[ledger_id] = self._unlisted.get(ledger_id, 0) + 1
            self._tell(ledger_id, entry_id, TELL_UNLISTED_AGAIN_SECONDS)
            return
        self._by_place[place] = Damage(*place, reason, self._clock.time_ms())
        if ledger_id >= 0 and entry_id >= 0:
            self._by_ledger.setdefault(ledger_id, {}).setdefault(entry_id, []).append(place)
        # Also an entry that was damaged before: this may be the copy that mended it.
        self._told_at.pop(ledger_id, None)
        self._tell(ledger_id, entry_id)
        self._log(place, reason)

    def _log(self, place: Place, reason: str) -> None:
        now = self._clock.monotonic()
        if now - self._lines_since >= LINES_INTERVAL_SECONDS:
            if self._suppressed:
                logger.error("damage: %d more records, not logged one by one", self._suppressed)
            self._lines_since, self._lines, self._suppressed = now, 0, 0
        if self._lines >= LINES_MAX:
            self._suppressed += 1
            return
        self._lines += 1
        logger.error(
            "damaged path=%s offset=%d ledger=%d entry=%d: %s",
            *place,
            reason,
        )

    def _tell(
        self, ledger_id: int, entry_id: int, again_seconds: float = TELL_AGAIN_SECONDS
    ) -> None:
        if ledger_id < 0 or entry_id < 0:
            return
        now = self._clock.monotonic()
        told_at = self._told_at.get(ledger_id)
        if told_at is None or now - told_at >= again_seconds:
            self._told_at[ledger_id] = now
            for listener in self._listeners:
                listener(ledger_id)

    def on_damage(self, listener: Callable[[int], None]) -> None:
        """Calls it, on the loop, with the ledger of each entry that is found damaged from now on;
        and now and then again, while it is found so."""
        self._listeners.append(listener)

    def entries_of(self, ledger_id: int) -> list[int]:
        """Entries of which a record was found damaged, ascending; there may be a good one by
        now, and there may be more (`unlisted_of`)."""
        return sorted(self._by_ledger.get(ledger_id, ()))

    def unlisted_of(self, ledger_id: int) -> int:
        """How often damage of the ledger was found that is not among `entries_of`; 0 if never."""
        return self._unlisted.get(ledger_id, 0)

    def are_sound(self, ledger_id: int, first_entry_id: int, count: int) -> None:
        """These entries were read, from other records than those that were found damaged."""
        entries = self._by_ledger.get(ledger_id)
        if entries is None:
            return
        for entry_id in range(first_entry_id, first_entry_id + count):
            for place in entries.pop(entry_id, ()):
                del self._by_place[place]
        if not entries:
            del self._by_ledger[ledger_id]
            if ledger_id not in self._unlisted:
                self._told_at.pop(ledger_id, None)

    def all_were_read(self, ledger_id: int, unlisted: int) -> None:
        """All entries of the ledger were read since `unlisted_of` was so. If nothing was found
        since then that had no room, all that is damaged is listed."""
        if self._unlisted.get(ledger_id) == unlisted:
            del self._unlisted[ledger_id]
            if ledger_id not in self._by_ledger:
                self._told_at.pop(ledger_id, None)

    def forget_ledger(self, ledger_id: int) -> None:
        """It was deleted."""
        for places in self._by_ledger.pop(ledger_id, {}).values():
            for place in places:
                del self._by_place[place]
        self._unlisted.pop(ledger_id, None)
        self._told_at.pop(ledger_id, None)

    def cut_reads_at(self, log_id: int, position: int) -> None:
        """No read of this log gives the record at this offset any more, nor goes beyond it."""
        positions = self._positions.setdefault(log_id, array("q"))
        at = bisect_left(positions, position)
        is_known = at < len(positions) and positions[at] == position
        if not is_known and self._cut_count < CUTS_MAX:
            positions.insert(at, position)
            self._cut_count += 1

    def forget_logs_but(self, is_kept: Callable[[int], bool]) -> None:
        """Logs for which it is false are gone: their ids do not come again."""
        for log_id in [each for each in self._positions if not is_kept(each)]:
            self._cut_count -= len(self._positions.pop(log_id))

    def first_cut(self, log_id: int, start: int, end: int) -> int:
        """The offset of the first damaged record in this range of a log, -1 if there is none."""
        positions = self._positions.get(log_id)
        if positions is None:
            return -1
        at = bisect_left(positions, start)
        return positions[at] if at < len(positions) and positions[at] < end else -1

    @property
    def cut_logs(self) -> Collection[int]:
        """The logs in which reads are cut."""
        return self._positions.keys()

    @property
    def has_cuts(self) -> bool:
        return bool(self._positions)

    def listed(self) -> list[Damage]:
        """In the order in which they were found."""
        return list(self._by_place.values())
