"""Throttle: at most so much per second, for work that must not get in the way of adds."""

from __future__ import annotations

import trio

#: Up to this long's worth may be taken at once after a pause.
BURST_SECONDS = 0.1


class Throttle:
    """Callers share it and are served as they come. Time is the event loop's, so simulations drive
    it."""

    __slots__ = ("_free_at", "_rate")

    def __init__(self, rate_per_second: float) -> None:
        """`rate_per_second` <= 0: no limit."""
        self._rate = rate_per_second
        self._free_at = 0.0

    async def take(self, amount: float) -> None:
        """Returns when what was taken before has been paid for; `amount` is paid by the next. So
        one that is larger than the rate is possible, and no sleep is shorter than it is worth."""
        if self._rate <= 0:
            await trio.lowlevel.checkpoint()
            return
        now = trio.current_time()
        start = max(self._free_at, now - BURST_SECONDS)
        self._free_at = start + amount / self._rate
        if start > now:
            await trio.sleep(start - now)
        else:
            await trio.lowlevel.checkpoint()
