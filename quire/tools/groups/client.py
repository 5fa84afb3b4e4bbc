"""A client of Kafka's protocol that blocks: for the command line, which asks little.

One connection for each broker that is asked, one request at a time.
"""

from __future__ import annotations

import socket
import struct
from functools import partial
from typing import TYPE_CHECKING

import click

from broker.cluster.peer_login import LoginRefusedError
from broker.security.client_security import ClientSecurity
from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.headers import decode_response, encode_request

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from wire.kafka.message import Message

TIMEOUT_SECONDS = 30.0
CLIENT_ID = "quire-groups"
#: No answer to what is asked here is larger.
ANSWER_BYTES_MAX = 256 << 20

Address = tuple[str, int]


class KafkaClient:
    """ClickException for whatever goes wrong: it ends the command with a line and code 1."""

    def __init__(self, bootstrap: Address, security: ClientSecurity | None = None) -> None:
        """`security`: None: neither TLS nor a login."""
        self.bootstrap = bootstrap
        self._security = security or ClientSecurity()
        self._connections: dict[Address, socket.socket] = {}
        self._correlation_id = 0

    def __enter__(self) -> KafkaClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def ask(self, address: Address, body: Message, version: int) -> Any:  # noqa: ANN401  # a class
        host, port = address
        try:
            return self._ask(self._connected(address), body, version)
        except LoginRefusedError as error:
            raise click.ClickException(f"{host}:{port} lets nobody in so: {error}") from error
        except (OSError, EOFError, WireError) as error:
            words = str(error) or type(error).__name__
            raise click.ClickException(f"{host}:{port} does not answer: {words}") from error

    def _ask(
        self,
        connection: socket.socket,
        body: Message,
        version: int,
    ) -> Any:  # noqa: ANN401  # a class
        """OSError, EOFError, WireError."""
        self._correlation_id += 1
        connection.sendall(encode_request(body, version, self._correlation_id, CLIENT_ID))
        (size,) = struct.unpack(">i", _received(connection, 4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise WireError(f"an answer of {size} bytes")
        answered_id, answer = decode_response(body.INFO.key, version, _received(connection, size))
        if answered_id != self._correlation_id:
            raise WireError("an answer to another question")
        return answer

    def _connected(self, address: Address) -> socket.socket:
        connection = self._connections.get(address)
        if connection is None:
            connection = socket.create_connection(address, TIMEOUT_SECONDS)
            try:
                connection = self._security.secured(connection, address[0])
                self._security.log_in(partial(self._ask, connection))
            except BaseException:
                connection.close()
                raise
            self._connections[address] = connection
        return connection


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("it closed the connection")
        data += part
    return bytes(data)


def check(code: int, what: str, message: str | None = None) -> None:
    """ClickException if it is an error."""
    if code:
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = f"error {code}"
        raise click.ClickException(f"{what}: {name}" + (f": {message}" if message else ""))
