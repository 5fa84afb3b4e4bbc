"""Settings of TLS on the broker's listeners (Kafka's `SslConfigs` and `BrokerSecurityConfigs`).

Each of `TlsSettings` may be said of one listener, as `listener.name.<listener>.<name>`, which wins
over what is said of all (config_listener.py). What is not served (engines and providers of Java's)
is a line of known_settings/broker.txt, and refused.

Deviation: RSA keys and file modes have bounds (broker/security/tls/stores.py), and files that were
changed are loaded anew without being told (`quire.ssl.reload.check.ms`).
"""

from __future__ import annotations

from broker.cluster.config_sasl import SaslConfig
from runtime.config import ConfigType, Scope, at_least, list_of, one_of
from runtime.settings import setting, settings_part
from wire.dataclass import dataclass

STRING, PASSWORD, LIST = ConfigType.STRING, ConfigType.PASSWORD, ConfigType.LIST
BOOLEAN, INT = ConfigType.BOOLEAN, ConfigType.INT
PER_BROKER = Scope.PER_BROKER
_STORES = one_of("JKS", "PKCS12", "PEM")


@dataclass(slots=True, frozen=True, kw_only=True)
class TlsSettings:
    """One listener's."""

    protocol: str = setting(
        "ssl.protocol",
        STRING,
        "TLSv1.3",
        one_of("TLS", "TLSv1.2", "TLSv1.3"),
        PER_BROKER,
        doc="TLSv1.2 leaves out TLS 1.3, whatever ssl.enabled.protocols says.",
    )
    enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        LIST,
        "TLSv1.2,TLSv1.3",
        list_of("TLSv1.2", "TLSv1.3", empty_allowed=False),
        PER_BROKER,
        doc="Versions of TLS that clients may speak.",
    )
    cipher_suites: tuple[str, ...] = setting(
        "ssl.cipher.suites",
        LIST,
        "",
        scope=PER_BROKER,
        doc="Cipher suites by IANA's names; none: OpenSSL's choice. Those of TLS 1.3 are taken or"
        " left together.",
    )
    client_auth: str = setting(
        "ssl.client.auth",
        STRING,
        "none",
        one_of("none", "requested", "required"),
        PER_BROKER,
        doc="Whether clients are asked for a certificate, and need one. Of a SASL_SSL listener only"
        " if it is said of the listener.",
    )
    keystore_type: str = setting(
        "ssl.keystore.type",
        STRING,
        "JKS",
        _STORES,
        PER_BROKER,
        doc="JKS and PKCS12 are told apart by their first bytes, as Java does.",
    )
    keystore_location: str | None = setting(
        "ssl.keystore.location",
        STRING,
        scope=PER_BROKER,
        doc="The file of the server's key and certificates. Others must not be able to read it.",
    )
    keystore_password: str | None = setting(
        "ssl.keystore.password", PASSWORD, scope=PER_BROKER, doc="Of a JKS or PKCS12 key store."
    )
    key_password: str | None = setting(
        "ssl.key.password",
        PASSWORD,
        scope=PER_BROKER,
        doc="Of the key in a JKS store or in PEM; without it, the store's.",
    )
    keystore_key: str | None = setting(
        "ssl.keystore.key", PASSWORD, scope=PER_BROKER, doc="The private key itself, PEM."
    )
    keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        scope=PER_BROKER,
        doc="The certificates of ssl.keystore.key, PEM, the server's own first.",
    )
    truststore_type: str = setting(
        "ssl.truststore.type", STRING, "JKS", _STORES, PER_BROKER, doc="As ssl.keystore.type."
    )
    truststore_location: str | None = setting(
        "ssl.truststore.location",
        STRING,
        scope=PER_BROKER,
        doc="The file of the authorities whose clients are believed.",
    )
    truststore_password: str | None = setting(
        "ssl.truststore.password",
        PASSWORD,
        scope=PER_BROKER,
        doc="Of a JKS or PKCS12 trust store. Without it a JKS store is not checked for changes.",
    )
    truststore_certificates: str | None = setting(
        "ssl.truststore.certificates",
        PASSWORD,
        scope=PER_BROKER,
        doc="The authorities' certificates themselves, PEM.",
    )
    endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        one_of("https", ""),
        PER_BROKER,
        doc="https: another broker's certificate must name the host by which it is reached; empty:"
        " any that is signed by somebody of the trust store.",
    )
    principal_mapping_rules: str = setting(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        doc="How a client's name is made of its certificate's subject (RULE:pattern/replacement/,"
        " DEFAULT).",
    )
    allow_dn_changes: bool = setting(
        "ssl.allow.dn.changes",
        BOOLEAN,
        "false",
        doc="Whether a certificate that is loaded while the broker runs may have another subject.",
    )
    allow_san_changes: bool = setting(
        "ssl.allow.san.changes",
        BOOLEAN,
        "false",
        doc="Whether it may lack names or addresses that the one before had.",
    )


@settings_part
class SslConfig(SaslConfig):
    """The broker's part. A chain of classes, as one with slots has one base."""

    quire_ssl_handshake_timeout_ms: int = setting(
        "quire.ssl.handshake.timeout.ms",
        INT,
        "10000",
        at_least(100),
        doc="For a TLS handshake of a client.",
    )
    quire_ssl_handshakes_max: int = setting(
        "quire.ssl.handshakes.max",
        INT,
        "1000",
        at_least(1),
        unit="connections",
        doc="Of a listener, whose handshake is not done; beyond, the oldest of them is closed.",
    )
    quire_ssl_reload_check_ms: int = setting(
        "quire.ssl.reload.check.ms",
        INT,
        "10000",
        at_least(0),
        doc="How often files of keys and certificates are looked at for changes; 0: never.",
    )
