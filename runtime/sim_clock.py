"""SimClock: a node's clock in a simulation, on trio's (virtual) time.

Sleeping is trio's own; what a node reads as the wall clock may be wrong by `offset_ms`, which a
simulation changes at any time, and so it steps forwards and backwards. The monotonic clock has no
such fault: a process's own is trusted not to go back (Env's contract).
"""

from __future__ import annotations

import trio

#: What a simulation's wall clock begins with: 2026-01-01T00:00:00Z.
START_MS = 1_767_225_600_000


class SimClock:
    """See `runtime.env.Clock`. To be read inside a trio run."""

    __slots__ = ("offset_ms",)

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def time_ms(self) -> int:
        return START_MS + int(trio.current_time() * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return trio.current_time()
