"""A login at another broker, before anything else is asked there: what peers.py needs of it.

Which mechanism it is by is the login's own matter (broker/security/sasl/outgoing.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from wire.kafka.errors import WireError
from wire.kafka.headers import decode_response, encode_request

if TYPE_CHECKING:
    from runtime.net import Transport
    from wire.kafka.message import Message

#: Sends a request of a login, and has its answer. LoginRefusedError: the connection ended.
Ask = Callable[["Message", int], Awaitable[Any]]
#: Logs in; how many seconds it is good for, None: as long as the connection. LoginRefusedError.
Login = Callable[[Ask], Awaitable["float | None"]]

LOGIN_SECONDS = 10.0
#: Of the time that a login is good for: then it is made anew on another connection.
SESSION_SHARE = 0.85


class LoginRefusedError(Exception):
    """The other broker does not let this one in, or is not whom it says. Without secrets."""


class Talk:
    """Requests of a login, one at a time, over a connection that is not there for others yet."""

    def __init__(self, transport: Transport, client_id: str) -> None:
        self.transport = transport
        self._client_id = client_id
        self._asked: tuple[int, int] | None = None
        self._answers: list[Message] = []
        self._has_answer = trio.Event()
        self._is_over = False

    async def ask(self, message: Message, version: int) -> Message:
        if not self._is_over:
            self._has_answer = trio.Event()
            self._asked = (message.INFO.key, version)
            self.transport.write([encode_request(message, version, 0, self._client_id)])
            await self._has_answer.wait()
        if not self._answers:
            raise LoginRefusedError("it closed the connection")
        return self._answers.pop()

    def answered(self, frame: memoryview) -> None:
        """WireError."""
        asked, self._asked = self._asked, None
        if asked is None:
            raise WireError("an answer to nothing")
        self._answers.append(decode_response(*asked, frame)[1])
        self._has_answer.set()

    def ended(self) -> None:
        self._is_over = True
        self._has_answer.set()
