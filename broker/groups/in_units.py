"""A group in two states, and the units of events between them. Pure.

`applied` has every event that was made, and inputs are decided by it; `stored` has those whose
records are acknowledged, and is what others are told of the group. A unit of events is written when
the one before it is stored, with all others that wait by then: nothing is in the log that builds
upon what is not. So if a unit is not stored the group goes back to `stored`, and those who wait are
told to try again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.coordinator.units import KeyValue
    from wire.kafka.errors import ErrorCode

E = TypeVar("E")

#: Records that are written together, unless one unit has more: to pack them, to apply them once
#: they are stored, and to tell those who waited takes some 2 us each, in one turn of the loop.
RECORDS_MAX = 500


class State(Protocol):
    """What events come to."""

    def apply(self, event: Any, /) -> None: ...  # noqa: ANN401  # of the group's kind
    def copy(self) -> Self: ...


@dataclass(slots=True)
class Unit(Generic[E]):
    """Events that are stored together or not at all, and who waits for that."""

    events: Sequence[E]
    records: Sequence[KeyValue]
    size_bytes: int
    dones: list[Callable[[ErrorCode], None]] = field(default_factory=list)
    is_written: bool = False


S = TypeVar("S", bound="State")


class InUnits(Generic[S, E]):
    """See above. A kind of group adds what follows from its events, and its deadlines."""

    __slots__ = ("applied", "pending", "stored")

    def __init__(self, applied: S, stored: S) -> None:
        self.applied = applied
        self.stored = stored
        self.pending: deque[Unit[E]] = deque()

    def take(self, unit: Unit[E], now_ms: int) -> None:
        """A unit whose events are applied; its records are about to be written."""
        self.pending.append(unit)
        for event in unit.events:
            self._follow(event, now_ms)

    def to_write(self, size_max: int, *, at_once: bool = False) -> list[Unit[E]]:
        """The units that are to be written now, together. `at_once`: all there are, whatever is on
        its way."""
        if self.pending and self.pending[0].is_written and not at_once:
            return []
        units: list[Unit[E]] = []
        size = count = 0
        for unit in self.pending:
            if unit.is_written:
                continue
            size += unit.size_bytes
            count += len(unit.records)
            if units and (size > size_max or count > RECORDS_MAX) and not at_once:
                break
            unit.is_written = True
            units.append(unit)
        return units

    def units_stored(self, units: Sequence[Unit[E]]) -> None:
        for unit in units:
            if self.pending and self.pending[0] is unit:
                self.pending.popleft()
                for event in unit.events:
                    self.stored.apply(event)
            else:  # what was before it is not, and it was written at once
                for event in unit.events:
                    self.load(event)

    def units_failed(self, now_ms: int) -> list[Unit[E]]:
        """Back to what is stored. The units that were never written: they will not be."""
        unwritten = [unit for unit in self.pending if not unit.is_written]
        self.pending.clear()
        self.applied = self.stored.copy()
        self._derive_deadlines(now_ms)
        return unwritten

    def load(self, event: E) -> None:
        """A record of the log."""
        self.applied.apply(event)
        self.stored.apply(event)

    def _follow(self, event: E, now_ms: int) -> None:
        """An event was made: what of the deadlines follows from it."""

    def _derive_deadlines(self, now_ms: int) -> None:
        """From the state alone: of members that are not there, none."""


def unit_slices(records: Sequence[KeyValue], size_max: int) -> Iterator[slice]:
    """Which of a long list of records go into one unit; the last slice has at least one, or is all
    there is."""
    start = size = 0
    for at, (key, value) in enumerate(records):
        cost = len(key) + len(value or b"")
        if at > start and (size + cost > size_max or at - start >= RECORDS_MAX):
            yield slice(start, at)
            start, size = at, 0
        size += cost
    yield slice(start, len(records))
