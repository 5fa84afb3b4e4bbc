"""Settings of SASL on the broker's listeners (Kafka's `SaslConfigs`).

Deviation: sasl.enabled.mechanisms is read at the start only; Kafka takes changes of a single
listener's while it runs.
"""

from __future__ import annotations

from broker.cluster.config_oauth import OAuthConfig
from runtime.config import ConfigType, at_least
from runtime.settings import setting, settings_part


@settings_part
class SaslConfig(OAuthConfig):
    """The broker's part. A chain of classes, as one with slots has one base."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        ConfigType.LIST,
        "GSSAPI",
        doc="Mechanisms by which clients of SASL listeners may log in; all of them must be served,"
        " and GSSAPI is not.",
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        ConfigType.INT,
        "524288",
        doc="Of a request before its client has logged in.",
        unit="bytes",
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        ConfigType.LONG,
        "0",
        doc="After so long a client has to log in anew (KIP-368); 0: as its credentials say.",
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        ConfigType.INT,
        "100",
        at_least(0),
        doc="Before a failed login is answered and its connection closed.",
    )
    delegation_token_secret_key: str | None = setting(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        doc="Delegation tokens are made of it (KIP-48); without it there are none. The same for all"
        " brokers; with another one all tokens end.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        "delegation.token.max.lifetime.ms",
        ConfigType.LONG,
        "604800000",
        at_least(1),
        doc="Of a delegation token, however often it is renewed.",
    )
    delegation_token_expiry_time_ms: int = setting(
        "delegation.token.expiry.time.ms",
        ConfigType.LONG,
        "86400000",
        at_least(1),
        doc="Within which a delegation token has to be renewed.",
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        "delegation.token.expiry.check.interval.ms",
        ConfigType.LONG,
        "3600000",
        at_least(1),
        doc="How often delegation tokens that have ended are removed.",
    )
    quire_sasl_timeout_ms: int = setting(
        "quire.sasl.timeout.ms",
        ConfigType.INT,
        "10000",
        at_least(100),
        doc="For a client to log in.",
    )
    quire_sasl_connections_max: int = setting(
        "quire.sasl.connections.max",
        ConfigType.INT,
        "1000",
        at_least(1),
        doc="Of a listener, that have not logged in; beyond, the oldest of them is closed.",
    )
