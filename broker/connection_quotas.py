"""How many connections there may be, and how fast they may come: Kafka's `ConnectionQuotas`. Pure:
time comes in.

| limit | of | who is over it |
|--|--|--|
| max.connections | the broker, each listener | waits to be accepted |
| max.connection.creation.rate | the broker, each listener | what comes next waits |
| max.connections.per.ip, overrides | an address | is closed at once |

(The rate of single addresses is a quota, connection_creation_rate: broker/quotas/quotas.py.) What
is said of a listener alone, listener.name.<listener>.max.connections, counts there in the place of
the broker's, as far as it is lower. The listener that brokers meet at, if there are others, is held
to its own limits only; while there are more than the broker's max.connections the excess of the
other listeners is closed, beginning with who was silent for longest.

Deviation: of a rate Kafka has the connection wait that went over it; here that one is served, and
those behind it wait.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING

from broker.quotas.rates import WindowedRate, Windows
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

UNLIMITED = (1 << 31) - 1


@dataclass(slots=True, frozen=True)
class ListenerLimits:
    """max.connections and max.connection.creation.rate (a second)."""

    connections_max: int = UNLIMITED
    creation_rate: int = UNLIMITED


@dataclass(slots=True, frozen=True)
class ConnectionLimits:
    """Kafka's names: max.connections, max.connections.per.ip, max.connections.per.ip.overrides
    (address -> count), max.connection.creation.rate; `listeners`: what is set of single ones, by
    name. All may be changed while the broker runs."""

    connections_max: int = UNLIMITED
    per_ip_max: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    creation_rate: int = UNLIMITED
    listeners: Mapping[str, ListenerLimits] = field(default_factory=dict)

    def of(self, host: str) -> int:
        return self.per_ip_overrides.get(host, self.per_ip_max)

    def of_listener(self, listener: str) -> ListenerLimits:
        own = self.listeners.get(listener)
        return ListenerLimits(self.connections_max, self.creation_rate) if own is None else own


class ConnectionQuotas:
    """Counts connections. `windows`: quota.window.num and quota.window.size.seconds."""

    def __init__(self, limits: ConnectionLimits, windows: Windows, protected: str) -> None:
        """`protected`: the listener that brokers meet at."""
        self.limits = limits
        self._windows = windows
        self._protected = protected
        self._rate = WindowedRate(windows)
        self._rates: dict[str, WindowedRate] = {}
        self._by_host: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self.count = 0

    def add_listener(self, listener: str) -> None:
        self._rates.setdefault(listener, WindowedRate(self._windows))

    def is_protected(self, listener: str) -> bool:
        return len(self._rates) > 1 and listener == self._protected

    # -- how many ---------------------------------------------------------------------------------

    def is_host_full(self, host: str) -> bool:
        return self._by_host[host] >= self.limits.of(host)

    def opened(self, host: str, listener: str) -> None:
        self._by_host[host] += 1
        self._by_listener[listener] += 1
        self.count += 1

    def closed(self, host: str, listener: str) -> None:
        self._by_listener[listener] -= 1
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def connections_of(self, listener: str) -> int:
        return self._by_listener[listener]

    def has_slot(self, listener: str) -> bool:
        """Whether one more may be accepted there."""
        if self._by_listener[listener] >= self.limits.of_listener(listener).connections_max:
            return False
        return self.is_protected(listener) or self.count < self.limits.connections_max

    @property
    def excess(self) -> int:
        """How many connections of listeners that are not protected are to go."""
        return max(0, self.count - self.limits.connections_max)

    # -- how fast ---------------------------------------------------------------------------------

    def accepted(self, listener: str, now: float) -> float:
        """Counts one that came; for how many seconds those behind it are to wait."""
        wait = self._recorded(self._rates[listener], self.limits.of_listener(listener), now)
        if self.is_protected(listener):
            return wait
        of_broker = ListenerLimits(creation_rate=self.limits.creation_rate)
        return max(wait, self._recorded(self._rate, of_broker, now))

    def _recorded(self, rate: WindowedRate, limits: ListenerLimits, now: float) -> float:
        """Also without a limit: one that is set later finds what came before it."""
        rate.record(1, now)
        return bounded_wait(rate, limits.creation_rate, now, self._windows)


def bounded_wait(rate: WindowedRate, limit: float, now: float, windows: Windows) -> float:
    """Of whoever is above `limit`, which may be 0; at most one window, as Kafka bounds what is
    waited for connections."""
    if limit <= 0:
        return float(windows.seconds)
    return min(rate.wait_seconds(limit, now), float(windows.seconds))
