"""Connections that a bookie does not serve yet: what they may say, how many, for how long.

`AuthProvider` (bookie/server/auth.py) decides; a `Door` asks it and keeps the exchanges. Whoever
was not admitted within the time-out is closed, and so is the oldest such connection when one too
many comes: who really authenticates is through in milliseconds, and a crowd that only waits cannot
keep him out. What one of them may make the bookie hold is bounded by FRAME_BYTES_MAX and
UNSENT_BYTES_MAX, which `BookieConnection` goes by till it is admitted.

Until a connection is admitted, the short way of plain adds (bookie/server/connection.py) is closed
to it as well. START_TLS makes void what was said before it, and the connection is judged anew.

AUTH that fails is answered EUA in version 3, and both versions' connections are closed. (A Java
bookie says nothing at all when a password is wrong, and its client waits for a time-out.)

Java's client sends one more AUTH when its exchange is complete. The bookie has admitted it by then,
and answers AuthDisabledPlugin.

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bookie.server.auth import AuthError
from runtime.config import ConfigType, at_least
from runtime.logs import kv
from runtime.settings import setting
from wire.bookkeeper.requests import AuthRequest
from wire.bookkeeper.responses import AuthResponse, refusal
from wire.bookkeeper.status import Status
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.server.auth import AuthProvider, Exchange
    from runtime.timers import Timer, Timers
    from runtime.tls import Tls
    from wire.bookkeeper.requests import Request
    from wire.bookkeeper.responses import Response

logger = logging.getLogger(__name__)

#: Of a connection that is not admitted. An AUTH is some hundred bytes.
FRAME_BYTES_MAX = 128 << 10
UNSENT_BYTES_MAX = 64 << 10


@dataclass(slots=True, frozen=True)
class AdmissionLimits:
    timeout_ms: int = setting(
        "quire.bookie.auth.timeout.ms",
        ConfigType.INT,
        "10000",
        at_least(100),
        doc="For a client to authenticate; a name of ours.",
    )
    connections_max: int = setting(
        "quire.bookie.auth.connections.max",
        ConfigType.INT,
        "1000",
        at_least(1),
        doc="That did not authenticate yet; a name of ours.",
    )


class Applicant(Protocol):
    """A connection (bookie/server/connection.py), as far as it is judged."""

    #: Whether `Door.judge` was asked.
    is_judged: bool

    @property
    def peer(self) -> str: ...

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The peer's, verified; None without one."""

    @property
    def is_v3(self) -> bool: ...

    def admit(self) -> None:
        """From the next frame on its requests are served."""

    def close(self) -> None: ...

    def close_with(self, response: Response | None) -> None:
        """Closes after what was answered, and this, was sent."""


class Door:
    def __init__(
        self,
        provider: AuthProvider,
        limits: AdmissionLimits,
        timers: Timers,
        randbytes: Callable[[int], bytes],
    ) -> None:
        self._provider = provider
        self._limits = limits
        self._timers = timers
        self._randbytes = randbytes
        #: In the order of coming.
        self._waiting: dict[Applicant, Timer] = {}
        self._exchanges: dict[Applicant, Exchange] = {}

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def came(self, connection: Applicant) -> None:
        if len(self._waiting) >= self._limits.connections_max:
            self._turn_away(next(iter(self._waiting)), "too many that did not authenticate")
        seconds = self._limits.timeout_ms / 1000
        late = partial(self._turn_away, connection, "not authenticated in time")
        self._waiting[connection] = self._timers.after(seconds, late)

    def _turn_away(self, connection: Applicant, reason: str) -> None:
        logger.info("not_authorized", kv(peer=connection.peer, reason=reason))
        self.left(connection)
        connection.close()

    def left(self, connection: Applicant) -> None:
        """It is closed, or was admitted. Calling it again changes nothing."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._exchanges.pop(connection, None)

    def judge(self, connection: Applicant) -> bool:
        """Admits it for what it is, if it may be; true if so. Once, and again after `renew`."""
        if connection.is_judged:
            return False
        connection.is_judged = True
        if not self._provider.admits(connection.peer, connection.certificate):
            return False
        self.left(connection)
        connection.admit()
        return True

    def renew(self, connection: Applicant) -> None:
        """START_TLS was done: who it is, and what it said, was of another connection."""
        self._exchanges.pop(connection, None)
        if connection not in self._waiting:
            self.came(connection)

    def answer(self, connection: Applicant, request: Request) -> Response | None:
        """To a request of a connection that is not admitted; None if it was closed instead. May
        admit it."""
        if type(request) is not AuthRequest:
            return refusal(request, Status.EUA)
        try:
            payload = self._step(connection, request)
        except AuthError as error:
            logger.warning("not_authorized", kv(peer=connection.peer, reason=error))
            # Version 2 has no word for it.
            connection.close_with(refusal(request, Status.EUA) if connection.is_v3 else None)
            return None
        plugin = self._provider.plugin_name
        return AuthResponse(Status.EOK, plugin, payload, request.transaction_id)

    def _step(self, connection: Applicant, request: AuthRequest) -> bytes:
        """AuthError."""
        provider = self._provider
        if request.plugin_name != provider.plugin_name:
            raise AuthError(f"plugin {request.plugin_name[:40]!r} is not {provider.plugin_name}")
        exchange = self._exchanges.get(connection)
        if exchange is None:
            exchange = provider.exchange(self._randbytes)
            if exchange is None:
                raise AuthError("there is nothing to be said")
            self._exchanges[connection] = exchange
        payload = exchange.step(bytes(request.payload))
        if exchange.user is not None:
            logger.info("authenticated", kv(peer=connection.peer, user=exchange.user))
            self.left(connection)
            connection.admit()
        return payload


class Entrance(NamedTuple):
    """How a connection comes in: what START_TLS offers (None: nothing), and whom a Door admits
    (None: everybody)."""

    tls: Tls | None = None
    door: Door | None = None


OPEN_TO_ALL = Entrance()
