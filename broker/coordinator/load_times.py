"""How long partitions of a coordinator took to load: Kafka's `partition-load-time` of group and
transaction coordinators, which is of the last minute, and not a number while none was loaded."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.env import Clock

#: Kafka's metrics.sample.window.ms times metrics.num.samples.
WINDOW_SECONDS = 60.0


class LoadTimes:
    __slots__ = ("_clock", "_loads")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: (when it ended, seconds); at most one per partition of the topic is of the same moment.
        self._loads: deque[tuple[float, float]] = deque()

    def loaded(self, since: float) -> None:
        """A partition was loaded, which was to be since then (seconds of the monotonic clock)."""
        now = self._clock.monotonic()
        self._forget(now)
        self._loads.append((now, now - since))

    def max_ms(self) -> float:
        self._forget(self._clock.monotonic())
        return max((seconds for _, seconds in self._loads), default=math.nan) * 1000

    def average_ms(self) -> float:
        self._forget(self._clock.monotonic())
        if not self._loads:
            return math.nan
        return sum(seconds for _, seconds in self._loads) / len(self._loads) * 1000

    def _forget(self, now: float) -> None:
        while self._loads and self._loads[0][0] <= now - WINDOW_SECONDS:
            self._loads.popleft()
