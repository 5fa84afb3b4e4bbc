"""Slices: long work on the loop, cut into turns of a bounded number of units.

The loop belongs to everybody: no input may hold it above 5 ms. Whoever walks over something that
input can make long counts its elements here, and lets the others have the loop in between. Units
are counted, not measured, so that the same work is cut at the same places in the simulation, where
no time passes while a function runs.

    slices = Slices(500)  # about 1 ms of records
    for record in records:
        if slices.due():
            await slices.turn()
        ...

Between two slices anything may have changed: what was looked at before a `turn` is looked at again.
"""

from __future__ import annotations

import trio


class Slices:
    __slots__ = ("_left", "_size")

    def __init__(self, units_per_turn: int) -> None:
        """`units_per_turn`: so many elements (records, entries, topics) take 1 to 2 ms."""
        assert units_per_turn > 0
        self._size = units_per_turn
        self._left = units_per_turn

    def due(self, units: int = 1) -> bool:
        """Counts `units` of work; True if the loop is to be given away first."""
        self._left -= units
        if self._left >= 0:
            return False
        self._left = self._size - units
        return True

    async def turn(self) -> None:
        """One pass of the loop for everybody else."""
        await trio.lowlevel.checkpoint()
