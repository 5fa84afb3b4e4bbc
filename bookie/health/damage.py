"""Damage that was found in entry logs: what an operator is told of it, and what reads are cut at.

Found by reads (bookie/storage/reader.py) and by the scrub (scrub.py). Each damaged record is
listed once. Lines in the log are limited: one bad disk must not fill another with words.

Auto-recovery is told by whoever listens (quire/damage_marks.py).

Owner: the event loop's thread. Bounded: DAMAGES_MAX records are listed; beyond that they are only
counted.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.env import Clock

logger = logging.getLogger(__name__)

DAMAGES_MAX = 10_000
#: Lines in the log within one interval.
LINES_MAX = 20
LINES_INTERVAL_SECONDS = 60.0
#: Of a ledger whose damage is found again and again, as by reads.
TELL_AGAIN_SECONDS = 3600.0

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
        "_lines",
        "_lines_since",
        "_listeners",
        "_positions",
        "_suppressed",
        "_told_at",
        "unlisted_count",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_place: dict[tuple[str, int, int, int], Damage] = {}
        #: Ledger id -> ids of its entries among them.
        self._by_ledger: dict[int, set[int]] = {}
        self._listeners: list[Callable[[int], None]] = []
        #: Ledger id -> when the listeners were told of it last.
        self._told_at: dict[int, float] = {}
        #: Offsets of damaged records, ascending, by log: reads are cut there.
        self._positions: dict[int, list[int]] = {}
        self._lines = 0
        self._lines_since = clock.monotonic()
        self._suppressed = 0
        self.unlisted_count = 0

    def report(self, path: str, offset: int, ledger_id: int, entry_id: int, reason: str) -> None:
        """Lists it, if it is new, and says so in the log, unless there was too much of that."""
        place = (path, offset, ledger_id, entry_id)
        if place in self._by_place:
            self._tell(ledger_id, entry_id)
            return
        if len(self._by_place) >= DAMAGES_MAX:
            self.unlisted_count += 1
            return
        self._by_place[place] = Damage(*place, reason, self._clock.time_ms())
        if entry_id not in self._by_ledger.get(ledger_id, ()):
            self._told_at.pop(ledger_id, None)
        self._tell(ledger_id, entry_id)
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
            path,
            offset,
            ledger_id,
            entry_id,
            reason,
        )

    def _tell(self, ledger_id: int, entry_id: int) -> None:
        if ledger_id < 0 or entry_id < 0:
            return
        self._by_ledger.setdefault(ledger_id, set()).add(entry_id)
        now = self._clock.monotonic()
        told_at = self._told_at.get(ledger_id)
        if told_at is None or now - told_at >= TELL_AGAIN_SECONDS:
            self._told_at[ledger_id] = now
            for listener in self._listeners:
                listener(ledger_id)

    def on_damage(self, listener: Callable[[int], None]) -> None:
        """Calls it, on the loop, with the ledger of each entry that is found damaged from now on;
        and now and then again, while it is found so."""
        self._listeners.append(listener)

    def entries_of(self, ledger_id: int) -> list[int]:
        """Entries of which a record was found damaged; there may be a good one by now."""
        return sorted(self._by_ledger.get(ledger_id, ()))

    def cut_reads_at(self, log_id: int, position: int) -> None:
        """No read of this log gives the record at this offset any more, nor goes beyond it."""
        positions = self._positions.setdefault(log_id, [])
        at = bisect_left(positions, position)
        if len(positions) < DAMAGES_MAX and positions[at : at + 1] != [position]:
            insort(positions, position)

    def first_cut(self, log_id: int, start: int, end: int) -> int:
        """The offset of the first damaged record in this range of a log, -1 if there is none."""
        positions = self._positions.get(log_id)
        if positions is None:
            return -1
        at = bisect_left(positions, start)
        return positions[at] if at < len(positions) and positions[at] < end else -1

    @property
    def has_cuts(self) -> bool:
        return bool(self._positions)

    @property
    def count(self) -> int:
        """Damaged records that were found since the start."""
        return len(self._by_place) + self.unlisted_count

    def listed(self) -> list[Damage]:
        """In the order in which they were found."""
        return list(self._by_place.values())
