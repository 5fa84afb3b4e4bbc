"""ClientQuotas: which quotas are in force in this broker, and what their meters say.

Follows what is stored (the registry's room of quotas) and the settings of the windows. While no
client has a quota nothing is counted: `on_change` is told when that begins or ends, and the
dispatcher then goes by `broker.quotas.account`, or does not.

Every broker counts for itself, as in Kafka: a client that produces to three brokers has three times
its producer_byte_rate. So it is here with controller_mutation_rate, too, which in Kafka the one
controller counts: whichever broker is asked makes a topic.
"""

from __future__ import annotations

import logging
from dataclasses import field
from ipaddress import ip_address
from typing import TYPE_CHECKING

from broker.cluster.registry import Room
from broker.quotas.entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaTable,
    entity_named,
)
from broker.quotas.meters import METERS_MAX, Meter, Meters
from broker.quotas.rates import Windows
from runtime.logs import kv
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.cluster.registry import ConfigRegistry
    from broker.quotas.entities import Entity
    from runtime.env import Clock
    from runtime.timers import Timers

logger = logging.getLogger(__name__)

_CLIENT_KEYS = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
NO_LIMITS = QuotaTable({})


@dataclass(slots=True, frozen=True)
class QuotaWindows:
    """quota.window.num and quota.window.size.seconds; the same with `controller.` before."""

    clients: Windows = field(default_factory=Windows)
    controller: Windows = field(default_factory=Windows)


class ClientQuotas:
    def __init__(
        self, registry: ConfigRegistry, clock: Clock, timers: Timers, windows: QuotaWindows
    ) -> None:
        """What is stored is in force at once. `timers` end what clients wait for."""
        self._registry = registry
        self.timers = timers
        self._windows = windows.clients
        self.clock = clock
        own = windows.clients
        self.produce = Meters(NO_LIMITS, own)
        self.fetch = Meters(NO_LIMITS, own)
        #: As in Kafka nobody waits longer for the processor than one window.
        self.request = Meters(NO_LIMITS, own, wait_max=own.seconds)
        self.mutation = Meters(NO_LIMITS, windows.controller)
        self._addresses = NO_LIMITS
        #: By address; as many as Meters has.
        self._connections: dict[str, Meter] = {}
        self.on_change: Callable[[], None] = lambda: None
        #: Seconds of the processor for requests that no quota is asked about.
        self.exempt_seconds = 0.0
        registry.subscribe_room(Room.QUOTAS, self._follow)
        self._follow()

    @property
    def is_for_clients(self) -> bool:
        """Whether any request is to be counted."""
        return any((self.produce, self.fetch, self.request, self.mutation))

    @property
    def is_for_addresses(self) -> bool:
        return bool(self._addresses)

    def _follow(self) -> None:
        limits: dict[str, dict[Entity, float]] = {key: {} for key in _CLIENT_KEYS}
        addresses: dict[Entity, float] = {}
        for name in self._registry.stored_names(Room.QUOTAS):
            try:
                entity = entity_named(name)
                if entity[0][0] == IP:
                    entity = ((IP, _canonical(entity[0][1])),)
                for key, text in self._registry.stored(Room.QUOTAS, name).items():
                    limit = float(text)
                    if key == CONNECTION_CREATION_RATE:
                        addresses[entity] = limit
                    else:
                        limits[key][entity] = limit
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                logger.error("quota_not_understood", kv(entity=name, error=error))
        for meters, key in zip(
            (self.produce, self.fetch, self.request, self.mutation), _CLIENT_KEYS, strict=True
        ):
            meters.limit_to(QuotaTable(limits[key]))
        self._addresses = QuotaTable(addresses)
        self.on_change()

    # -- connections ------------------------------------------------------------------------------

    def connection_wait(self, host: str) -> float:
        """Of one more connection from there: 0.0, or the seconds after which it is closed, at most
        one window. One that is refused does not count."""
        try:
            address = str(_canonical(host.strip("[]")))
        except ValueError:
            return 0.0  # no address, as of a socket in the simulation
        limit = self._addresses.of_address(address)
        if limit is None:
            return 0.0
        now = self.clock.monotonic()
        meter = self._connections.pop(address, None)
        if meter is None:
            if len(self._connections) >= METERS_MAX:
                del self._connections[next(iter(self._connections))]
            meter = Meter(self._windows)
        self._connections[address] = meter  # last used, last
        meter.limit = limit
        meter.rate.record(1, now)
        wait = meter.rate.wait_seconds(limit, now)
        if wait:
            meter.rate.record(-1, now)
            meter.throttled(wait, now)
        return min(wait, float(self._windows.seconds))

    def connection_meters(self) -> Iterator[tuple[str, Meter]]:
        """Those used last come first; not to be gone on with after one is made."""
        return reversed(self._connections.items())


def _canonical(address: str | None) -> str | None:
    return None if address is None else str(ip_address(address))
