"""LatencyHistogram: how long something took, in fixed buckets.

For things that happen once per sync, flush or request to a disk, never once per entry: a batch is
recorded once, with the number of entries that it took so long for. Recording is
a binary search and three additions; nothing is allocated. Whoever exports it reads the fields.
"""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds in seconds; one more bucket takes what is longer than the last.
BOUNDS_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class LatencyHistogram:
    __slots__ = ("count", "counts", "max_seconds", "sum_seconds")

    def __init__(self) -> None:
        #: How many in each bucket, not cumulated; one more than BOUNDS_SECONDS has.
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.count = 0
        self.sum_seconds = 0.0
        self.max_seconds = 0.0

    def record(self, seconds: float, count: int = 1) -> None:
        """`count` things took `seconds` each."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.count += count
        self.sum_seconds += seconds * count
        self.max_seconds = max(self.max_seconds, seconds)

    def quantile(self, share: float) -> float:
        """An upper bound, in seconds, of the fastest `share` (0..1) of all: the bound of the bucket
        that holds it, and the maximum where that is less. 0 if nothing was recorded."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip(BOUNDS_SECONDS, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(bound, self.max_seconds)
        return self.max_seconds
