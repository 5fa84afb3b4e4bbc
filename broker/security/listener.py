"""How the clients of one listener are known: its protocol, and what that stands on.

`KafkaServer.listen` is given it. Where a listener has SASL the connection is dispatch's once its
client has logged in, and the principal is the one that did. Else it is who the certificate of TLS
says, if there is one, and User:ANONYMOUS.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.api import Handling
    from broker.connection import KafkaConnection
    from runtime.net import Transport
    from runtime.tls import TlsTransport


class SecurityProtocol(StrEnum):
    """Kafka's `org.apache.kafka.common.security.auth.SecurityProtocol`."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SaslLayer(Protocol):
    """SASL in front of dispatch."""

    def begin(self, connection: KafkaConnection, dispatcher: Handling) -> Handling:
        """What a new connection's frames go to. It gives the connection `dispatcher` and its
        principal once the client has logged in, and closes it otherwise."""


class TlsLayer(Protocol):
    """TLS below a connection."""

    def layer(self, below: Transport) -> TlsTransport:
        """What is to be the connection's transport."""

    def client_layer(self, below: Transport, host: str) -> TlsTransport:
        """The transport of a connection to that host, if brokers meet at this listener."""

    def begin(
        self, layer: TlsTransport, connection: KafkaConnection, then: Callable[[], None]
    ) -> None:
        """Joins the two. `then` is called when the handshake is done and the connection has its
        principal; it is closed if there is none for its certificate."""


@dataclass(slots=True, frozen=True)
class ListenerSecurity:
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    #: None: its protocol has none.
    sasl: SaslLayer | None = None
    tls: TlsLayer | None = None
