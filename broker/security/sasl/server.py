"""SASL of one listener: its mechanisms, its limits, and those who have not logged in yet.

Whoever does not log in in time is closed, and so is the oldest such connection when one too many
comes: who really logs in is through in milliseconds, and a crowd that only waits cannot keep him
out. It is `broker.security.listener.SaslLayer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.security.sasl.front import SaslFront

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.api import Handling
    from broker.connection import KafkaConnection
    from broker.security.sasl.limits import SaslLimits
    from broker.security.sasl.mechanism import Login, Mechanism
    from runtime.env import Clock
    from runtime.timers import Timers


class SaslServer:
    def __init__(
        self, mechanisms: Mapping[str, Mechanism], limits: SaslLimits, timers: Timers, clock: Clock
    ) -> None:
        self.mechanisms = mechanisms
        self.limits = limits
        self.timers = timers
        self.clock = clock
        #: In the order of coming.
        self._waiting: dict[SaslFront, None] = {}
        self.logins_count = 0
        self.failed_count = 0
        #: Connections whose client went on after its session's end.
        self.expired_count = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def begin(self, connection: KafkaConnection, dispatcher: Handling) -> SaslFront:
        if len(self._waiting) >= self.limits.connections_max:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.turn_away("too many that did not log in")
        front = SaslFront(self, connection, dispatcher)
        self._waiting[front] = None
        front.begin()
        return front

    def left(self, front: object) -> None:
        """It logged in, or is gone."""
        if isinstance(front, SaslFront):
            self._waiting.pop(front, None)

    def lifetime_ms(self, login: Login, mechanism: str) -> int:
        """Of a session that begins now, at least 1; 0: it does not end. One whose credentials have
        ended meanwhile ends, too (KAFKA-13848)."""
        most = max(self.limits.reauthentication_ms.get(mechanism, 0), 0)
        if login.expires_ms is None:
            return most
        left = max(login.expires_ms - self.clock.time_ms(), 1)
        return min(left, most) if most else left
