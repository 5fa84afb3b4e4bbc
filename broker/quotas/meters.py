"""The quotas of one key: who has used how much, and how long he is to wait.

A meter is made when a client that has a limit uses something. Meters that nobody used for an hour
are forgotten, as Kafka's sensors, and so is the one that was not used for longest if there are
METERS_MAX: client ids are what clients call themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from broker.quotas.rates import TokenBucket, WindowedRate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.quotas.entities import QuotaTable, Shared
    from broker.quotas.rates import Windows

METERS_MAX = 10_000
IDLE_SECONDS = 3600


class Meter:
    """What those who share one quota have used."""

    __slots__ = ("_throttled", "_throttles", "bucket", "limit", "rate", "used")

    def __init__(self, windows: Windows) -> None:
        self.limit = 0.0
        self.used = 0.0
        self.rate = WindowedRate(windows)
        self.bucket = TokenBucket(windows)
        self._throttled = WindowedRate(windows)
        self._throttles = WindowedRate(windows)

    def throttled(self, seconds: float, now: float) -> None:
        self._throttled.record(seconds, now)
        self._throttles.record(1, now)

    def throttle_seconds(self, now: float) -> float:
        """How long clients were told to wait, on average, those that were."""
        times = self._throttles.value(now)
        return self._throttled.value(now) / times if times else 0.0


class Meters:
    """Of one key. `wait_max`: in seconds."""

    def __init__(self, table: QuotaTable, windows: Windows, wait_max: float | None = None) -> None:
        self._table = table
        self._windows = windows
        self._wait_max = wait_max
        self._meters: OrderedDict[Shared, Meter] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether anybody has a limit."""
        return bool(self._table)

    def __len__(self) -> int:
        return len(self._meters)

    def limit_to(self, table: QuotaTable) -> None:
        """Other limits from now on; what was used stays."""
        self._table = table

    def of(self, user: str, client_id: str, now: float) -> Meter | None:
        """Whoever has no limit has no meter."""
        found = self._table.in_force(user, client_id)
        if found is None:
            return None
        limit, shared = found
        meter = self._meters.get(shared)
        if meter is None:
            self._forget_idle(now)
            meter = self._meters[shared] = Meter(self._windows)
        else:
            self._meters.move_to_end(shared)
        meter.limit, meter.used = limit, now
        return meter

    def _forget_idle(self, now: float) -> None:
        while self._meters:
            shared, oldest = next(iter(self._meters.items()))
            if len(self._meters) < METERS_MAX and now - oldest.used < IDLE_SECONDS:
                return
            del self._meters[shared]

    def record(self, meter: Meter, units: float, now: float) -> float:
        """For how many seconds the client is to wait; 0.0 below the limit."""
        meter.rate.record(units, now)
        wait = meter.rate.wait_seconds(meter.limit, now)
        if wait and self._wait_max is not None:
            return min(wait, self._wait_max)
        return wait

    def burst(self, meter: Meter) -> float:
        """Units that fit in the windows at the limit's rate: the most that one answer may have."""
        return meter.limit * (self._windows.count - 1) * self._windows.seconds

    def last_used(self) -> Iterator[tuple[Shared, Meter]]:
        """All; not to be gone on with after one is made."""
        return reversed(self._meters.items())
