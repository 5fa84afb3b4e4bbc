"""One connection's way to dispatch: what may be said before, and while, somebody logs in.

First ApiVersions, once at most; then SaslHandshake; then the mechanism's tokens, in requests
SaslAuthenticate after handshake version 1, as they are after version 0 (KIP-43, KIP-152); then
everything is dispatch's. Whatever else comes closes the connection. A failed login is answered,
where there is a form for it, and closed after a delay, and the answer tells nothing that a guesser
could use.

A SaslHandshake of somebody who is logged in begins a login anew (KIP-368): with the same mechanism,
as the same principal, and not sooner than a second after the last; then it is dispatch's, which
refuses it. Nothing else is handled meanwhile. A session that has ended is closed at its next
request, as in Kafka.
"""

from __future__ import annotations

import enum
import logging
from struct import Struct
from typing import TYPE_CHECKING, Any

from broker.api import Handling
from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.messages import (
    RAW_ROUTE,
    auth_bytes,
    authenticate_answer,
    has_many_tags,
    route_of,
)
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode
from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.headers import decode_request_header
from wire.kafka.messages.security import (
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.connection import KafkaConnection
    from broker.security.sasl.limits import Host
    from broker.security.sasl.mechanism import Exchange, Mechanism
    from runtime.timers import Timer
    from runtime.turn import Turn

logger = logging.getLogger(__name__)

#: Of ApiVersions and SaslHandshake: decoding more would hold the loop, for a stranger.
FRAME_BYTES_MAX = 4096
#: Messages of one login; no mechanism has more than three.
STEPS_MAX = 8
#: Between two logins of a connection.
REAUTHENTICATION_SECONDS = 1.0
#: What a step costs the turn beside its bytes, in units of about a microsecond: a signature, say.
STEP_UNITS = 300
_KEY_AND_VERSION = Struct(">hh")
_API_VERSIONS_MAX = 4
_HANDSHAKE_KEY = ApiKey.SASL_HANDSHAKE.to_bytes(2, "big")


class State(enum.Enum):
    FIRST = enum.auto()  # ApiVersions or SaslHandshake
    HANDSHAKE = enum.auto()
    TOKENS = enum.auto()  # in SaslAuthenticate
    RAW_TOKENS = enum.auto()
    DONE = enum.auto()
    CLOSED = enum.auto()


class SaslFront(Handling):
    def __init__(self, server: Host, connection: KafkaConnection, dispatcher: Handling) -> None:
        self._server = server
        self._connection = connection
        connection.info.is_stranger = True
        self._dispatcher = dispatcher
        self._state = State.FIRST
        self._mechanism: Mechanism | None = None
        self._exchange: Exchange | None = None
        self._steps = 0
        #: For the present login to come to its end, or for a failed one to be answered.
        self._timer: Timer | None = None
        self._is_known = False
        self._began_again_at: float | None = None
        #: `Clock.monotonic` of the session's end.
        self._ends_at: float | None = None

    # -- as dispatch -----------------------------------------------------------------------------

    @property
    def turn(self) -> Turn:
        return self._dispatcher.turn

    @property
    def is_stopped(self) -> bool:
        return self._dispatcher.is_stopped

    def connection_closed(self, connection: Any) -> None:  # noqa: ANN401  # as Handling's
        self._state = State.CLOSED
        self._stop_timer()
        self._server.left(self)
        self._dispatcher.connection_closed(connection)

    def frame_bytes_max(self, key: int, version: int, *, is_known: bool) -> int:
        if self._state is State.DONE and key != ApiKey.SASL_HANDSHAKE:
            return self._dispatcher.frame_bytes_max(key, version, is_known=is_known)
        return self._server.limits.receive_bytes_max

    def start(
        self,
        function: Callable[..., Awaitable[None]],
        *arguments: Any,  # noqa: ANN401  # the function's
        name: str,
    ) -> None:
        self._dispatcher.start(function, *arguments, name=name)

    def dispatch(self, connection: Any, frame: memoryview) -> None:  # noqa: ANN401  # as Handling's
        if self._state is State.DONE and not self._is_login(frame):
            if self._ends_at is not None and self._server.clock.monotonic() > self._ends_at:
                self._server.expired_count += 1
                self._log("session_expired")
                connection.close()
                return
            self._dispatcher.dispatch(connection, frame)
            return
        if self.is_stopped:
            connection.close()
            return
        try:
            self._take(frame)
        except WireError as error:
            self._refuse(str(error))

    # -- before and while somebody logs in ---------------------------------------------------------

    def begin(self) -> None:
        self._timer = self._server.timers.after(self._server.limits.timeout_seconds, self._late)

    def turn_away(self, reason: str) -> None:
        """Closes now."""
        self._refuse(reason)

    def _is_login(self, frame: memoryview) -> bool:
        """Whether a login begins anew."""
        if frame[:2] != _HANDSHAKE_KEY:
            return False
        now = self._server.clock.monotonic()
        last = self._began_again_at
        if last is not None and now - last < REAUTHENTICATION_SECONDS:
            return False
        self._began_again_at = now
        self._state = State.HANDSHAKE
        self.begin()
        return True

    def _take(self, frame: memoryview) -> None:
        """WireError closes."""
        if len(frame) > self._server.limits.receive_bytes_max:
            raise WireError(f"{len(frame)} bytes before a login")
        if self._state is State.RAW_TOKENS:
            self._step(bytes(frame), None, 0)
            return
        if len(frame) < _KEY_AND_VERSION.size:
            raise WireError("a frame without a key")
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        if key == ApiKey.SASL_AUTHENTICATE and self._state is State.TOKENS:
            if has_many_tags(frame, version):
                raise WireError("very many tagged fields")
            header, offset = decode_request_header(frame)
            self._step(auth_bytes(frame, offset, version), header.correlation_id, version)
        elif len(frame) > FRAME_BYTES_MAX:
            raise WireError(f"{len(frame)} bytes before a login")
        elif key == ApiKey.SASL_HANDSHAKE and self._state in (State.FIRST, State.HANDSHAKE):
            self._handshake(frame)
        elif key == ApiKey.API_VERSIONS and self._state is State.FIRST:
            if 0 <= version <= _API_VERSIONS_MAX:
                self._state = State.HANDSHAKE
            self._dispatcher.dispatch(self._connection, frame)
        else:
            raise WireError(f"API key {key} is not for now")

    def _handshake(self, frame: memoryview) -> None:
        header, offset = decode_request_header(frame)
        request, end = decode(SaslHandshakeRequest, header.api_version, frame, offset)
        if end != len(frame):
            raise WireError("something follows a SaslHandshake")
        mechanisms = self._server.mechanisms
        answer = SaslHandshakeResponse(mechanisms=list(mechanisms))
        mechanism = mechanisms.get(request.mechanism)
        if mechanism is not None and self._is_known and mechanism is not self._mechanism:
            self._fail(AuthenticationFailedError("another mechanism than before"))
            return
        if mechanism is None:
            answer.error_code = int(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        route = route_of(ApiKey.SASL_HANDSHAKE, header.api_version)
        self._connection.reply_now(route, header.correlation_id, answer)
        if mechanism is None:
            self._fail(AuthenticationFailedError("a mechanism that is not enabled"))
            return
        self._mechanism = mechanism
        self._exchange = mechanism.begin()
        self._steps = 0
        self._state = State.TOKENS if header.api_version else State.RAW_TOKENS

    def _step(self, token: bytes, correlation_id: int | None, version: int) -> None:
        """Without a correlation id it came as it is, and is answered so."""
        exchange = self._exchange
        assert exchange is not None
        self._steps += 1
        # Thousands may log in at once, and all of them are strangers.
        self.turn.spent_units += STEP_UNITS + (len(token) >> 4)
        try:
            if self._steps > STEPS_MAX:
                raise AuthenticationFailedError("does not come to an end")
            answer = exchange.step(token)
            login = exchange.login
            if login is not None and self._is_known:
                before = self._connection.info.principal
                if login.principal != before:
                    raise AuthenticationFailedError("another principal", str(login.principal))
        except AuthenticationFailedError as error:
            self._fail(error, correlation_id, version)
            return
        lifetime_ms = 0
        if login is not None:
            lifetime_ms = self._server.lifetime_ms(login, self._name)
            self._connection.info.principal = login.principal
        response = SaslAuthenticateResponse(
            error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms
        )
        if correlation_id is None:
            self._connection.reply_now(RAW_ROUTE, 0, response)
        else:
            route = route_of(ApiKey.SASL_AUTHENTICATE, version)
            self._connection.reply_now(route, correlation_id, response)
        if login is not None:
            self._done(lifetime_ms)

    def _done(self, lifetime_ms: int) -> None:
        self._state = State.DONE
        self._exchange = None
        self._stop_timer()
        self._server.left(self)
        self._is_known = True
        self._connection.info.is_stranger = False
        self._ends_at = None
        if lifetime_ms:
            self._ends_at = self._server.clock.monotonic() + lifetime_ms / 1000
        self._server.logins_count += 1

    # -- ends ------------------------------------------------------------------------------------

    def _fail(
        self, error: AuthenticationFailedError, correlation_id: int | None = None, version: int = 0
    ) -> None:
        """Nothing more is read; after the delay it is answered, if it can be, and closed."""
        self._server.failed_count += 1
        self._log("authentication_failed", reason=str(error), user=error.user)
        self._state = State.CLOSED
        self._exchange = None
        self._stop_timer()
        self._connection.rest()

        def end() -> None:
            self._timer = None
            if correlation_id is not None and not self._connection.is_closed:
                route = route_of(ApiKey.SASL_AUTHENTICATE, version)
                self._connection.reply_now(route, correlation_id, authenticate_answer(self._name))
            self._connection.close()

        self._timer = self._server.timers.after(self._server.limits.failure_delay_seconds, end)

    def _late(self) -> None:
        self._timer = None
        self._refuse("not logged in in time")

    def _refuse(self, reason: str) -> None:
        self._server.failed_count += 1
        self._log("authentication_refused", reason=reason)
        self._state = State.CLOSED
        self._connection.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _name(self) -> str:
        return "" if self._mechanism is None else self._mechanism.name

    def _log(self, event: str, **more: str) -> None:
        info = self._connection.info
        logger.info(
            event,
            kv(peer=self._connection.peer, listener=info.listener, mechanism=self._name, **more),
        )
