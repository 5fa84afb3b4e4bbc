"""Who waits for a coordinator's batches is told, in order and some in each turn.

What follows one acknowledgement may be much: of a batch's hundreds of units each lets somebody do
his work (a parked batch is numbered, an answer is written, markers leave). So it is counted
(runtime/turn.py): as many units are told as the turn has room for, the others in later turns. A
unit costs more the more records it has, as each changes something that is kept in memory.

The order is that of the batches, and in a batch that of its units, however the log settled them: a
batch that it refused at once is told behind those before it, which may yet be acknowledged. Until
its last unit is told a batch counts as on its way; so whoever is to come behind everything
(`join`) does, and what is appended meanwhile is told later.

Owner: the event loop's thread. A unit that is told may call everything here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.coordinator.units import Unit
    from runtime.turn import Turn


#: What each record but the first of a unit that is told costs the turn, in its units.
RECORD_UNITS = 5


class Batch:
    """Units that are told together; `tell` knows nothing of them before they are settled."""

    __slots__ = ("error", "is_settled", "offset", "told_count", "units")

    def __init__(self, units: list[Unit]) -> None:
        self.units = units
        self.told_count = 0
        self.is_settled = False
        self.error = ErrorCode.NONE
        #: Of the first record that is not told, if it was acknowledged.
        self.offset = -1


class Telling:
    """`on_told(unit)` is called before each unit is told."""

    __slots__ = ("_batches", "_is_put_off", "_on_told", "_turn", "_units_each")

    def __init__(self, turn: Turn, units_each: int, on_told: Callable[[Unit], None]) -> None:
        """`units_each`: what one of them with one record costs the turn, in its units."""
        self._turn = turn
        self._units_each = units_each
        self._on_told = on_told
        #: Those that are not told to their end, in the order of the log.
        self._batches: deque[Batch] = deque()
        self._is_put_off = False

    def add(self, units: list[Unit]) -> Batch:
        """Before it is given to the log."""
        batch = Batch(units)
        self._batches.append(batch)
        return batch

    def settle(self, batch: Batch, error: ErrorCode, offset: int = -1) -> None:
        """The log acknowledged the batch, its first record at `offset`, or it refused it."""
        assert not batch.is_settled, "a log answers once"
        batch.is_settled, batch.error, batch.offset = True, error, offset
        if not self._is_put_off:
            self._tell_some()

    def join(self, mark: Unit) -> bool:
        """Puts the mark behind everything that is on its way; False: nothing is."""
        if self._batches:
            self._batches[-1].units.append(mark)
        return bool(self._batches)

    def tell_settled(self) -> None:
        """All that is settled, in this turn: what comes next must find it told."""
        while self._is_due():
            self._tell_next()

    def _is_due(self) -> bool:
        return bool(self._batches) and self._batches[0].is_settled

    def _tell_some(self) -> None:
        self._is_put_off = False
        turn = self._turn
        while self._is_due():
            if turn.is_spent:
                if not self._is_put_off:
                    self._is_put_off = True
                    turn.later(self._tell_some)
                return
            batch = self._batches[0]
            if batch.told_count < len(batch.units):
                more = max(len(batch.units[batch.told_count].records) - 1, 0)
                turn.spent_units += self._units_each + RECORD_UNITS * more
            self._tell_next()

    def _tell_next(self) -> None:
        """The batch stays until its last unit was told, which may have put a mark behind itself."""
        batch = self._batches[0]
        if batch.told_count < len(batch.units):
            unit = batch.units[batch.told_count]
            batch.told_count += 1
            self._on_told(unit)
            if not batch.error and not unit.is_mark:
                offset = batch.offset
                batch.offset += len(unit.records)
                unit.stored(offset)
            unit.done(batch.error)
        if batch.told_count == len(batch.units) and self._batches and self._batches[0] is batch:
            self._batches.popleft()
