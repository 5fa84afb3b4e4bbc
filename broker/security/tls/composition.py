"""TLS as a listener's settings say: `tls_server`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.security.tls.mapping import Mapping, MappingError
from broker.security.tls.server import TlsLimits, TlsServer

if TYPE_CHECKING:
    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_listener import ListenerSettings
    from runtime.timers import Timers
    from runtime.turn import Turn

_RULES = "ssl.principal.mapping.rules"


def tls_server(
    settings: ListenerSettings, broker: BrokerConfig, turn: Turn, timers: Timers, *, has_sasl: bool
) -> TlsServer:
    """ConfigError. Reads files: at the start only."""
    from broker.security.tls.loading import load  # X.509 is of no use to a start without TLS

    names = _mapping(settings)
    limits = TlsLimits(broker.quire_ssl_handshake_timeout_ms, broker.quire_ssl_handshakes_max)
    return TlsServer(
        settings.listener,
        load(settings, has_sasl=has_sasl),
        None if has_sasl else names,
        limits,
        turn,
        timers,
    )


def _mapping(settings: ListenerSettings) -> Mapping:
    try:
        return Mapping(settings.tls().principal_mapping_rules)
    except MappingError as error:
        raise settings.error(_RULES, error) from None
