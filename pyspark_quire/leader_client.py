"""A client of Kafka's protocol that blocks, until a deadline: for what the driver asks leaders.

    with LeaderClient(security, seconds=60) as client:
        answer = client.ask(("host", 9092), MetadataRequest(topics=[]), 9)

One connection for each broker that is asked, one request at a time.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.cluster.peer_login import LoginRefusedError
from wire.kafka.errors import WireError
from wire.kafka.headers import decode_response, encode_request

if TYPE_CHECKING:
    from types import TracebackType

    from broker.security.client_security import ClientSecurity
    from wire.kafka.message import Message

Address = tuple[str, int]

CLIENT_ID = "pyspark_quire"
#: Of one request: a broker that takes longer is asked again, or another one is.
REQUEST_SECONDS = 15.0
#: No answer to what is asked here is larger.
ANSWER_BYTES_MAX = 256 << 20
#: A broker that goes ends a connection so, too, in the middle of a handshake as well.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class LeadersRefuseError(Exception):
    """Brokers do not let this user in, or do not let him see a topic, or are not believed; says
    whom, and why."""


class NoAnswerError(Exception):
    """It may be tried again; says who did not answer, and why."""


class LeaderClient:
    """Of one look. `deadline`: of time.monotonic."""

    def __init__(self, security: ClientSecurity, *, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self._security = security
        self._connections: dict[Address, socket.socket] = {}
        self._correlation_id = 0

    def __enter__(self) -> LeaderClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def seconds_left(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)

    def ask(self, address: Address, body: Message, version: int) -> Any:  # noqa: ANN401 - a message
        """NoAnswerError, after which the connection is another one; LeadersRefuseError."""
        place = f"{address[0]}:{address[1]}"
        try:
            return self._ask(self._connected(address), body, version)
        except LoginRefusedError as error:
            raise LeadersRefuseError(
                f"the broker at {place} does not let in {self._security}: {error}"
            ) from None
        except (OSError, EOFError, WireError) as error:
            if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDED):
                raise LeadersRefuseError(f"TLS with the broker at {place}: {error}") from None
            connection = self._connections.pop(address, None)
            if connection is not None:
                connection.close()
            words = str(error) or type(error).__name__
            raise NoAnswerError(f"the broker at {place} does not answer: {words}") from None

    def _ask(self, connection: socket.socket, body: Message, version: int) -> Any:  # noqa: ANN401
        """OSError, EOFError, WireError."""
        until = time.monotonic() + self._timeout()
        connection.settimeout(self._timeout())
        self._correlation_id += 1
        connection.sendall(encode_request(body, version, self._correlation_id, CLIENT_ID))
        (size,) = struct.unpack(">i", _received(connection, 4, until))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise WireError(f"an answer of {size} bytes")
        answered_id, answer = decode_response(
            body.INFO.key, version, _received(connection, size, until)
        )
        if answered_id != self._correlation_id:
            raise WireError("an answer to another question")
        return answer

    def _timeout(self) -> float:
        """Never 0, which would mean not to block at all."""
        return max(min(self.seconds_left(), REQUEST_SECONDS), 0.001)

    def _connected(self, address: Address) -> socket.socket:
        connection = self._connections.get(address)
        if connection is None:
            connection = socket.create_connection(address, self._timeout())
            try:
                connection = self._security.secured(connection, address[0])
                self._security.log_in(partial(self._ask, connection))
            except BaseException:
                connection.close()
                raise
            self._connections[address] = connection
        return connection


def _received(connection: socket.socket, size: int, until: float) -> bytes:
    """All of it by `until`, however little comes at a time."""
    data = bytearray()
    while len(data) < size:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        connection.settimeout(left)
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("it closed the connection")
        data += part
    return bytes(data)
