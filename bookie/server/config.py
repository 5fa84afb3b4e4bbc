"""The settings of a bookie as a server, by their names in bk_server.conf: where it listens, who it
says it is, where its metadata is (ServerConfiguration.java)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bookie.server.admission import AdmissionLimits
from bookie.server.auth import AUTH_KEYS, auth_provider
from bookie.server.request_limits import ProcessorSettings
from runtime.config import ConfigError, ConfigKey, ConfigType, ConfigValue, at_least, between
from runtime.tls_context import server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from bookie.server.auth import AuthProvider

SERVER_KEYS = (
    ConfigKey("bookiePort", ConfigType.INT, "3181", "Where clients connect.", between(0, 65535)),
    ConfigKey("allowEphemeralPorts", ConfigType.BOOLEAN, "false", "bookiePort=0 takes any port."),
    ConfigKey("listeningInterface", ConfigType.STRING, None, "A network interface; all if unset."),
    ConfigKey("advertisedAddress", ConfigType.STRING, None, "The host that clients are told."),
    ConfigKey(
        "quire.network.location",
        ConfigType.STRING,
        None,
        "/region/rack, told to clients; a name of ours.",
    ),
    ConfigKey("allowLoopback", ConfigType.BOOLEAN, "false", "A loopback address may be told."),
    ConfigKey("permittedStartupUsers", ConfigType.LIST, "", "Users that may start it; else all."),
    ConfigKey("metadataServiceUri", ConfigType.STRING, None, "zk+hierarchical://host:2181/ledgers"),
    ConfigKey("zkServers", ConfigType.STRING, None, "The same, hosts only; older."),
    ConfigKey("zkLedgersRootPath", ConfigType.STRING, "/ledgers", "The root with zkServers."),
    ConfigKey(
        "zkTimeout", ConfigType.INT, "10000", "The session's time-out.", at_least(100), unit="ms"
    ),
    ConfigKey("maxAddsInProgressLimit", ConfigType.INT, "0", "0: no limit.", at_least(0)),
    ConfigKey("maxReadsInProgressLimit", ConfigType.INT, "0", "0: no limit.", at_least(0)),
    ConfigKey(
        "maxPendingReadRequestsPerThread",
        ConfigType.INT,
        "10000",
        "Reads that wait for the disk; then ETOOMANYREQUESTS.",
        at_least(1),
    ),
    ConfigKey(
        "maxBatchReadSize",
        ConfigType.LONG,
        str(5 << 20),
        "Of one answer.",
        at_least(1),
        unit="bytes",
    ),
    ConfigKey("tlsProviderFactoryClass", ConfigType.STRING, None, "Any name offers START_TLS."),
    ConfigKey("tlsCertificatePath", ConfigType.STRING, None, "The certificates, PEM."),
    ConfigKey("tlsKeyStore", ConfigType.STRING, None, "The private key, PEM."),
    ConfigKey("tlsKeyStoreType", ConfigType.STRING, "PEM", "Only PEM."),
    ConfigKey("tlsKeyStorePasswordPath", ConfigType.STRING, None, "File with the key's password."),
    ConfigKey("tlsTrustStore", ConfigType.STRING, None, "Who signs clients' certificates, PEM."),
    ConfigKey("tlsTrustStoreType", ConfigType.STRING, "PEM", "Only PEM."),
    ConfigKey("tlsClientAuthentication", ConfigType.BOOLEAN, "false", "Clients need one."),
)


@dataclass(slots=True, frozen=True)
class ServerConfig:
    host: str
    port: int
    #: What clients are told; the port too is `port`, unless that is 0.
    advertised_host: str
    bookie_id: str | None
    session_timeout_ms: int
    processor: ProcessorSettings
    #: /region/rack, for who places ledgers by racks; None: not told.
    location: str | None = None
    #: What START_TLS offers; None: nothing.
    tls: ssl.SSLContext | None = None
    #: None: everybody is served.
    auth: AuthProvider | None = None
    #: permittedStartupUsers: who may start it; empty: anybody.
    startup_users: tuple[str, ...] = ()
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)


def metadata_service_uri(values: Mapping[str, ConfigValue]) -> str:
    """metadataServiceUri, or what zkServers and zkLedgersRootPath come to. ConfigError."""
    uri = values.get("metadataServiceUri")
    hosts = values.get("zkServers")
    if uri is None and hosts is not None:
        root = values.get("zkLedgersRootPath") or "/ledgers"
        uri = f"zk+hierarchical://{str(hosts).replace(',', ';')}{root}"
    if uri is None:
        raise ConfigError("metadataServiceUri", "metadataServiceUri: must be set")
    return str(uri)


def server_config(
    values: Mapping[str, ConfigValue],
    interface_address: Callable[[str | None], str],
) -> ServerConfig:
    """`interface_address(name)`: an interface's address, or this host's if there is no name.
    ConfigError."""
    found: dict[str, Any] = {key.name: key.parse_default() for key in (*SERVER_KEYS, *AUTH_KEYS)}
    found |= {name: value for name, value in values.items() if value is not None}
    if found["bookiePort"] == 0 and not found["allowEphemeralPorts"]:
        raise ConfigError("bookiePort", "bookiePort: 0 needs allowEphemeralPorts=true")
    interface = found["listeningInterface"]
    advertised = found["advertisedAddress"] or interface_address(interface)
    if advertised.startswith("127.") and not found["allowLoopback"]:
        raise ConfigError(
            "advertisedAddress",
            f"advertisedAddress: {advertised} is a loopback address; allowLoopback=true allows it",
        )
    return ServerConfig(
        host=interface_address(interface) if interface else "0.0.0.0",
        port=found["bookiePort"],
        advertised_host=advertised,
        bookie_id=found.get("bookieId"),
        session_timeout_ms=found["zkTimeout"],
        processor=ProcessorSettings(
            adds_in_progress_max=found["maxAddsInProgressLimit"],
            # What is read at once never waits: both limit the reads that wait for the disk.
            waiting_reads_max=min(
                found["maxPendingReadRequestsPerThread"],
                found["maxReadsInProgressLimit"] or found["maxPendingReadRequestsPerThread"],
            ),
            batch_read_size_max_bytes=found["maxBatchReadSize"],
        ),
        location=_location(found["quire.network.location"]),
        tls=_tls_context(found),
        auth=auth_provider(found),
        startup_users=found["permittedStartupUsers"],
        admission=AdmissionLimits(
            found["quire.bookie.auth.timeout.ms"], found["quire.bookie.auth.connections.max"]
        ),
    )


def _location(text: str | None) -> str | None:
    """ConfigError unless it is `/rack` or `/region/rack`."""
    if text is not None and (not text.startswith("/") or "" in text.split("/")[1:]):
        raise ConfigError(
            "quire.network.location", f"quire.network.location={text!r}: expected /region/rack"
        )
    return text


def _tls_context(found: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Of TLSContextFactory.java's settings. ConfigError."""
    if not found.get("tlsProviderFactoryClass"):
        return None
    for name in ("tlsEnabledProtocols", "tlsEnabledCipherSuites"):
        if found.get(name):
            raise ConfigError(name, f"{name}: cannot be chosen here; Python's defaults are served")
    for name in ("tlsKeyStoreType", "tlsTrustStoreType"):
        if str(found[name]).upper() != "PEM":
            raise ConfigError(name, f"{name}: {found[name]} is not served, PEM is")
    for name in ("tlsCertificatePath", "tlsKeyStore"):
        if not found.get(name):
            raise ConfigError(name, f"{name}: must be set for TLS")
    try:
        password = None
        if found["tlsKeyStorePasswordPath"]:
            with open(found["tlsKeyStorePasswordPath"], encoding="utf-8") as file:
                password = file.read().strip()
        return server_context(
            certificate_path=found["tlsCertificatePath"],
            key_path=found["tlsKeyStore"],
            key_password=password,
            trust_path=found["tlsTrustStore"],
            needs_client_certificate=found["tlsClientAuthentication"],
        )
    except (OSError, ValueError) as error:
        raise ConfigError("tlsCertificatePath", f"TLS: {error}") from error
