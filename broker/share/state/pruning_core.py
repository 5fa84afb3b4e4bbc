"""Which records at the beginning of a log nobody needs any more.

A key needs its newest snapshot and what comes behind it, and no key needs what is behind its
tombstone's front. So the log may begin at the oldest of all keys' newest snapshots, and without any
key at the end of what is known. Only what is durable counts: a snapshot on its way supersedes
nothing yet, and lies behind all that is known.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.share.ports import ShareKey

#: Places in the heap beyond twice the keys, before those that are superseded are thrown out.
_SPARE = 64


class Redundancy:
    """Told of each record in the log's order, once it is durable."""

    __slots__ = ("_heap", "_snapshots", "end_offset")

    def __init__(self) -> None:
        self.end_offset = 0
        self._snapshots: dict[ShareKey, int] = {}
        #: By offset; one that is not in `_snapshots` is superseded.
        self._heap: list[tuple[int, ShareKey]] = []

    def snapshot(self, key: ShareKey, offset: int) -> None:
        self.passed(offset)
        self._snapshots[key] = offset
        heapq.heappush(self._heap, (offset, key))
        if len(self._heap) > 2 * len(self._snapshots) + _SPARE:
            self._heap = [(at, each) for each, at in self._snapshots.items()]
            heapq.heapify(self._heap)

    def tombstone(self, key: ShareKey, offset: int) -> None:
        self.passed(offset)
        self._snapshots.pop(key, None)

    def passed(self, offset: int) -> None:
        """A record that is neither."""
        assert offset >= self.end_offset, "in the log's order"
        self.end_offset = offset + 1

    def redundant_offset(self) -> int:
        """All below it is redundant."""
        heap = self._heap
        while heap and self._snapshots.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else self.end_offset

    def is_mostly_superseded(self) -> bool:
        """Whether of the records that cannot be deleted now more are superseded than needed: new
        snapshots of the oldest would let more of them go than they add."""
        return self.end_offset - self.redundant_offset() > 2 * len(self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)
