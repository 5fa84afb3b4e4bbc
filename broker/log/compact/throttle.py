"""A token bucket over the bytes that passes read and write (log.cleaner.io.max.bytes.per.second).

One for all passes of a broker, as Kafka's `Throttler`: both sides of the copying count, in both
walks over the log. Who took more than there was waits until the debt is paid, so that one large
batch passes, and the mean holds. The limit may change at any time, also for who waits.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

#: What may come at once after a pause, in seconds of the limit.
BURST_SECONDS = 0.25
#: Shorter waits are made as long: what is over is the next one's.
WAIT_SECONDS_MIN = 0.001
#: A changed limit is seen after so long.
LOOK_SECONDS = 0.25


class Throttle:
    def __init__(self, bytes_per_second: Callable[[], float], now: Callable[[], float]) -> None:
        """`bytes_per_second`: the limit as it is now, above 0. `now`: seconds, monotonic."""
        self._limit = bytes_per_second
        self._now = now
        #: What may pass; below 0 while somebody waits.
        self._balance = 0.0
        self._at = now()
        self.waited_seconds = 0.0

    async def take(self, size_bytes: int) -> None:
        """Returns once so many bytes, which were read or are to be written, may pass. No
        checkpoint while they are below the limit."""
        self._earn()
        self._balance -= size_bytes
        while self._balance < 0:
            pause = min(max(-self._balance / self._limit(), WAIT_SECONDS_MIN), LOOK_SECONDS)
            self.waited_seconds += pause
            await trio.sleep(pause)
            self._earn()

    def _earn(self) -> None:
        now, limit = self._now(), self._limit()
        assert limit > 0
        earned = self._balance + (now - self._at) * limit
        self._balance = min(earned, BURST_SECONDS * limit)
        self._at = now
