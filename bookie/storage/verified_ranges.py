"""Which parts of entry logs hold nothing but entries whose digests were checked since they came
from the disk.

Pages leave the page cache unseen, and come back with whatever the kernel reads: with their
neighbours, or when it was only asked whether they are there. So once a look finds that something of
a log is not in memory, nothing of that log counts as checked. Assumed: all else that reads a log in
the background checks what it reads (the scrub, compaction).

Per log a few disjoint ranges; reading on in order lengthens one. Forgetting a range costs a second
check and nothing else, so a log that is read in many places at random keeps only RANGES_MAX.

Owner: the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

RANGES_MAX = 64
LOGS_MAX = 4096


class VerifiedRanges:
    __slots__ = ("_logs",)

    def __init__(self) -> None:
        #: By log: starts and ends of its ranges, ascending; ranges neither touch nor overlap.
        self._logs: dict[int, tuple[list[int], list[int]]] = {}

    def covers(self, log_id: int, start: int, end: int) -> bool:
        """Whether all bytes of `start` to `end` were checked."""
        ranges = self._logs.get(log_id)
        if ranges is None:
            return False
        index = bisect_right(ranges[0], start) - 1
        return index >= 0 and end <= ranges[1][index]

    def add(self, log_id: int, start: int, end: int) -> None:
        if start >= end:
            return
        ranges = self._logs.get(log_id)
        if ranges is None:
            if len(self._logs) >= LOGS_MAX:
                del self._logs[next(iter(self._logs))]
            ranges = self._logs[log_id] = ([], [])
        starts, ends = ranges
        # Those that it touches become one with it.
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        if len(starts) > RANGES_MAX:
            smallest = min(range(len(starts)), key=lambda index: ends[index] - starts[index])
            del starts[smallest], ends[smallest]

    def forget(self, log_id: int) -> None:
        """Bytes of this log come from the disk again."""
        self._logs.pop(log_id, None)
