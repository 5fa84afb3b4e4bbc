"""What those who log in may cost, and what their connections need of the listener they share."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.security.sasl.mechanism import Login, Mechanism
    from runtime.env import Clock
    from runtime.timers import Timers


@dataclass(slots=True, frozen=True)
class SaslLimits:
    """Of those who log in. `reauthentication_ms`: connections.max.reauth.ms by mechanism; 0 or
    less: a session lasts as long as what it logged in with."""

    receive_bytes_max: int = 524_288
    timeout_seconds: float = 10.0
    connections_max: int = 1000
    failure_delay_seconds: float = 0.1
    reauthentication_ms: Mapping[str, int] = field(default_factory=dict)


class Host(Protocol):
    """What all connections of a listener share (broker/security/sasl/server.py)."""

    mechanisms: Mapping[str, Mechanism]
    limits: SaslLimits
    timers: Timers
    clock: Clock
    logins_count: int
    failed_count: int
    expired_count: int

    def left(self, front: object) -> None: ...

    def lifetime_ms(self, login: Login, mechanism: str) -> int: ...
