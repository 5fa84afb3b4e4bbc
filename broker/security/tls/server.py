"""TLS of one listener: its context, those whose handshake is not done, and who a client is.

Whoever does not shake hands in time is closed, and so is the oldest such connection when one too
many comes (as with SASL, broker/security/sasl/server.py). It is a `TlsLayer` of
broker/security/listener.py.

A certificate that was loaded anew is for new connections; those that are open keep theirs, and
their client's name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.security.principal import USER, Principal
from broker.security.tls.mapping import SUBJECT_CHARACTERS_MAX
from broker.security.tls.subject import subject_of
from runtime.aside import Aside
from runtime.logs import kv
from runtime.spread import Spread
from runtime.tls import HANDSHAKE_CLOSED, Tls, TlsTransport
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.cluster.config_listener import ListenerSettings
    from broker.connection import KafkaConnection
    from broker.security.tls.loading import LoadedTls
    from broker.security.tls.mapping import Mapping
    from runtime.net import Transport
    from runtime.timers import Timers
    from runtime.turn import Turn

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class TlsLimits:
    handshake_timeout_ms: int = 10_000
    handshakes_max: int = 1000


class TlsServer:
    def __init__(
        self,
        listener: str,
        loaded: LoadedTls,
        names: Mapping | None,
        limits: TlsLimits,
        turn: Turn,
        timers: Timers,
    ) -> None:
        """`names`: None: certificates name nobody, as SASL does."""
        self.listener = listener
        self._names = names
        self._limits = limits
        self._turn = turn
        self._timers = timers
        #: By whom long steps of handshakes are made.
        self.aside = Aside("quire-handshake")
        #: In the order of coming.
        self._waiting: dict[TlsTransport, None] = {}
        self.handshakes_count = 0
        self.failed_count = 0
        self.use(loaded)

    def use(self, loaded: LoadedTls) -> None:
        """For new connections. It is said in the log."""
        logger.info(
            "tls_loaded",
            kv(
                listener=self.listener,
                subject=loaded.certificate.subject.rfc4514_string(),
                expires=loaded.certificate.not_valid_after_utc.isoformat(),
            ),
        )
        self.loaded = loaded
        self._tls = Tls(
            loaded.context,
            self._turn,
            self._timers,
            self._limits.handshake_timeout_ms,
            Spread(self._turn, loaded.handshake_units),
            self.aside,
        )

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def layer(self, below: Transport) -> TlsTransport:
        return TlsTransport(below, self._tls, server_side=True)

    def check_client(self, settings: ListenerSettings, loaded: LoadedTls | None = None) -> None:
        """ConfigError if this broker could connect to no other one, with `loaded` if it is given
        instead of what is in use."""
        if (loaded or self.loaded).client is None:
            name = "ssl.truststore.location"
            raise settings.error(name, "must be set: brokers meet here, and believe nobody")

    def client_layer(self, below: Transport, host: str) -> TlsTransport:
        """Of a connection to another broker, which has a listener of this name, too."""
        client = self.loaded.client
        assert client is not None, "it was looked for before it was used"
        tls = Tls(client, self._turn, self._timers, self._limits.handshake_timeout_ms)
        return TlsTransport(below, tls, server_side=False, server_hostname=host)

    def begin(
        self, layer: TlsTransport, connection: KafkaConnection, then: Callable[[], None]
    ) -> None:
        if len(self._waiting) >= self._limits.handshakes_max:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._refuse(oldest.peer, "too many whose handshake was not done")
            oldest.close()
        self._waiting[layer] = None

        def established() -> None:
            self._waiting.pop(layer, None)
            self.handshakes_count += 1
            if self._names is not None and not self._know(layer, connection, self._names):
                connection.close()
            else:
                then()

        def failed(reason: str) -> None:
            if self._waiting.pop(layer, layer) is None and reason != HANDSHAKE_CLOSED:
                self._refuse(layer.peer, reason)

        layer.on_established = established
        layer.on_failed = failed
        layer.attach(connection)

    def _know(self, layer: TlsTransport, connection: KafkaConnection, names: Mapping) -> bool:
        """Whether the client has a name, or needs none."""
        certificate = layer.peer_certificate_der
        if certificate is None:
            return True  # User:ANONYMOUS
        try:
            subject = subject_of(certificate)
        except ValueError as error:
            self._refuse(layer.peer, f"a subject that cannot be read: {error}")
            return False
        if len(subject) > SUBJECT_CHARACTERS_MAX:
            self._refuse(layer.peer, f"a subject of {len(subject)} characters")
            return False
        name = names.name_of(subject)
        if name is None:
            self._refuse(layer.peer, f"no rule of ssl.principal.mapping.rules is for {subject!r}")
            return False
        connection.info.principal = Principal(USER, name)
        return True

    def _refuse(self, peer: str, reason: str) -> None:
        self.failed_count += 1
        logger.info("tls_refused", kv(peer=peer, listener=self.listener, reason=reason))
