"""ShortestFirst: of those who wait, who costs least; and half of the time, who came first.

Shortest job first alone has whoever costs little wait for at most the one that is being served,
however many wait who cost more; but these might wait for ever. So what was served out of its turn
is counted, and when it has cost as much as the oldest would, that one is served. Whoever costs
little then waits for one more, and whoever costs much for at most twice what came before him.

A share for each (weighted fair queueing) would not do: beside a thousand that cost much, a
thousandth is what one that costs little may have.

Costs that differ by less than a factor of two (of as many bits) count as equal, and are served in
the order in which they came. So equals that come again and again have turns.

Pure: no clock, the same order each time.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ShortestFirst(Generic[T]):
    __slots__ = ("_classes", "_overtaken_by", "_put_count")

    def __init__(self) -> None:
        #: By the bits of the cost: (how many were put before, cost, item).
        self._classes: list[deque[tuple[int, int, T]]] = []
        self._put_count = 0
        #: What was served, since the oldest was, while an older one waited.
        self._overtaken_by = 0

    def put(self, item: T, cost: int) -> None:
        """`cost`: in any unit, the same for all; not negative."""
        number = cost.bit_length()
        while len(self._classes) <= number:
            self._classes.append(deque())
        self._classes[number].append((self._put_count, cost, item))
        self._put_count += 1

    def pop(self) -> T | None:
        """Whoever is served next; None: nobody waits."""
        waiting = [some for some in self._classes if some]
        if not waiting:
            return None
        shortest = waiting[0]
        oldest = min(waiting, key=_age)
        if oldest is shortest or self._overtaken_by >= oldest[0][1]:
            self._overtaken_by = 0
            return oldest.popleft()[2]
        _, cost, item = shortest.popleft()
        self._overtaken_by += cost
        return item


def _age(some: deque[tuple[int, int, T]]) -> int:
    return some[0][0]
