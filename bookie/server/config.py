"""The settings of a bookie as a server, by their names in bk_server.conf: where it listens, who it
says it is, where its metadata is (ServerConfiguration.java)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from bookie.server.admission import AdmissionLimits
from bookie.server.auth import auth_provider
from bookie.server.request_limits import ProcessorSettings
from bookie.server.tls_config import renewed_tls
from runtime.config import ConfigError, ConfigType, ConfigValue, at_least, between
from runtime.settings import of_values, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bookie.server.auth import AuthProvider
    from runtime.renewed_tls import RenewedTls

INT, LIST = ConfigType.INT, ConfigType.LIST
STRING, BOOLEAN = ConfigType.STRING, ConfigType.BOOLEAN


@dataclass(slots=True, frozen=True)
class ServerSettings:
    """As they are set; what comes of them and of this host is ServerConfig."""

    port: int = setting("bookiePort", INT, "3181", between(0, 65535), doc="Where clients connect.")
    allow_ephemeral_ports: bool = setting(
        "allowEphemeralPorts", BOOLEAN, "false", doc="bookiePort=0 takes any port."
    )
    interface: str | None = setting(
        "listeningInterface", STRING, doc="A network interface; all if unset."
    )
    advertised_host: str | None = setting(
        "advertisedAddress", STRING, doc="The host that clients are told."
    )
    location: str | None = setting(
        "quire.network.location", STRING, doc="/region/rack, told to clients; a name of ours."
    )
    allow_loopback: bool = setting(
        "allowLoopback", BOOLEAN, "false", doc="A loopback address may be told."
    )
    startup_users: tuple[str, ...] = setting(
        "permittedStartupUsers", LIST, "", doc="Users that may start it; else all."
    )


@dataclass(slots=True, frozen=True)
class MetadataSettings:
    """Where the metadata is; a client's, too."""

    service_uri: str | None = setting(
        "metadataServiceUri", STRING, doc="zk+hierarchical://host:2181/ledgers"
    )
    hosts: str | None = setting("zkServers", STRING, doc="The same, hosts only; older.")
    ledgers_root: str = setting(
        "zkLedgersRootPath", STRING, "/ledgers", doc="The root with zkServers."
    )
    session_timeout_ms: int = setting(
        "zkTimeout", INT, "10000", at_least(100), doc="The session's time-out.", unit="ms"
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
    tls: RenewedTls | None = None
    #: None: everybody is served.
    auth: AuthProvider | None = None
    #: permittedStartupUsers: who may start it; empty: anybody.
    startup_users: tuple[str, ...] = ()
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)


def metadata_service_uri(values: Mapping[str, ConfigValue]) -> str:
    """metadataServiceUri, or what zkServers and zkLedgersRootPath come to. ConfigError."""
    settings = of_values(MetadataSettings, values)
    if settings.service_uri is not None:
        return settings.service_uri
    if settings.hosts is None:
        raise ConfigError("metadataServiceUri", "metadataServiceUri: must be set")
    hosts = settings.hosts.replace(",", ";")
    return f"zk+hierarchical://{hosts}{settings.ledgers_root}"


def server_config(
    values: Mapping[str, ConfigValue],
    interface_address: Callable[[str | None], str],
) -> ServerConfig:
    """`interface_address(name)`: an interface's address, or this host's if there is no name.
    ConfigError."""
    settings = of_values(ServerSettings, values)
    if settings.port == 0 and not settings.allow_ephemeral_ports:
        raise ConfigError("bookiePort", "bookiePort: 0 needs allowEphemeralPorts=true")
    interface = settings.interface
    advertised = settings.advertised_host or interface_address(interface)
    if advertised.startswith("127.") and not settings.allow_loopback:
        raise ConfigError(
            "advertisedAddress",
            f"advertisedAddress: {advertised} is a loopback address; allowLoopback=true allows it",
        )
    bookie_id = values.get("bookieId")
    return ServerConfig(
        host=interface_address(interface) if interface else "0.0.0.0",
        port=settings.port,
        advertised_host=advertised,
        bookie_id=bookie_id if isinstance(bookie_id, str) else None,
        session_timeout_ms=of_values(MetadataSettings, values).session_timeout_ms,
        processor=of_values(ProcessorSettings, values),
        location=_location(settings.location),
        tls=renewed_tls(values),
        auth=auth_provider(values),
        startup_users=settings.startup_users,
        admission=of_values(AdmissionLimits, values),
    )


def _location(text: str | None) -> str | None:
    """ConfigError unless it is `/rack` or `/region/rack`."""
    if text is not None and (not text.startswith("/") or "" in text.split("/")[1:]):
        raise ConfigError(
            "quire.network.location", f"quire.network.location={text!r}: expected /region/rack"
        )
    return text
