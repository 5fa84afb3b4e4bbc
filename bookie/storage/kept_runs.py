"""KeptRuns: where the journals have a generation of the write cache (adopted.py)."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from bookie.journal.group import Placement


class KeptRuns:
    """Where a generation's long runs of records are in the journals."""

    __slots__ = ("_placements", "_starts")

    def __init__(self, views: Sequence[memoryview], placements: deque[Placement]) -> None:
        """`views`: of the generation's segments. Takes out what is of them, and what is in front of
        it, which is of generations that were flushed before."""
        self._starts: list[list[int]] = [[] for _ in views]
        self._placements: list[list[Placement]] = [[] for _ in views]
        numbers = {id(view): number for number, view in enumerate(views)}
        last = max(
            (at for at, each in enumerate(placements) if id(each.view) in numbers), default=-1
        )
        for _ in range(last + 1):
            placement = placements.popleft()
            number = numbers.get(id(placement.view))
            if number is not None:
                self._starts[number].append(placement.start)
                self._placements[number].append(placement)

    def journal_ids(self) -> list[int]:
        """Of the journals that have them, ascending."""
        return sorted({each.journal_id for some in self._placements for each in some})

    def find(self, segment_index: int, start: int, end: int) -> tuple[int, int] | None:
        """(journal id, offset) of the record in `[start, end)` of the segment; None if it is not
        part of a long run."""
        at = bisect_right(self._starts[segment_index], start) - 1
        if at < 0:
            return None
        found = self._placements[segment_index][at]
        return (found.journal_id, found.offset + start - found.start) if end <= found.end else None
