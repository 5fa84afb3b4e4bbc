"""What quotas are measured by: rates over windows, and a bucket of tokens. Pure: time comes in.

As Kafka's `SampledStat`, `Rate` and `TokenBucket`, so that the same load is slowed down as much:

- a rate is what was recorded in the last `window_count` windows, divided by the time since the
  oldest of them began, which counts as at least `window_count - 1` whole windows;
- above its limit a client waits until the rate would be the limit again: (rate / limit - 1) times
  the time that the rate was taken over;
- a bucket fills at the limit's rate up to as many tokens as come in all windows, and may be drawn
  below zero; a client waits until it is at zero again.

All times are in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import deque

from wire.dataclass import dataclass


@dataclass(slots=True, frozen=True)
class Windows:
    """Kafka's names: quota.window.num, quota.window.size.seconds, and those of `controller.`."""

    count: int = 11
    seconds: int = 1


class WindowedRate:
    """Units a second. Costs at most `Windows.count` steps a call, and as many pairs of numbers."""

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        #: (when it began, units), the oldest first.
        self._samples: deque[list[float]] = deque()
        self._total = 0.0

    def record(self, units: float, now: float) -> None:
        """Negative units take back what was recorded."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= self._windows.seconds:
            self._drop_old(now)
            samples.append([now, 0.0])
        samples[-1][1] += units
        self._total += units

    def _drop_old(self, now: float) -> None:
        samples, windows = self._samples, self._windows
        while samples and now - samples[0][0] >= windows.count * windows.seconds:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0  # what rounding left

    def seconds(self, now: float) -> float:
        """The time that `value` is taken over."""
        self._drop_old(now)
        windows = self._windows
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        missing = windows.count - 1 - int(elapsed // windows.seconds)
        if missing > 0:
            elapsed += missing * windows.seconds
        return max(elapsed, windows.seconds)

    def value(self, now: float) -> float:
        seconds = self.seconds(now)  # drops what is too old for the total
        return self._total / seconds

    def wait_seconds(self, limit: float, now: float) -> float:
        """For how long who is above `limit` is to wait; 0.0 below it."""
        seconds = self.seconds(now)
        above = self._total / seconds - limit
        return above / limit * seconds if above > 0 else 0.0


class TokenBucket:
    """A limit of few large things, that one burst after a pause does not break."""

    __slots__ = ("_tokens", "_updated", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._updated: float | None = None

    def tokens(self, limit: float, now: float) -> float:
        """What is in it: full at first."""
        windows = self._windows
        burst = windows.count * windows.seconds * limit
        if self._updated is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + (now - self._updated) * limit)
        self._updated = now
        return self._tokens

    def take(self, tokens: float, limit: float, now: float) -> None:
        self._tokens = self.tokens(limit, now) - tokens

    def wait_seconds(self, limit: float, now: float) -> float:
        """Until nothing is owed any more; 0.0 if nothing is."""
        return max(0.0, -self.tokens(limit, now) / limit)
