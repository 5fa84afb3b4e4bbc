"""How ZooKeeper is reached, by names in bk_server.conf and server.properties: zkTimeout and
zkEnableSecurity are BookKeeper's, `zookeeper.ssl...` are ZooKeeper's own (its client's system
properties, which a Java process has to be given beside its configuration).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metadata.zookeeper_tls import ZooKeeperTls
from runtime.config import ConfigError, ConfigType
from runtime.settings import of_values, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

STRING = ConfigType.STRING
BOOLEAN = ConfigType.BOOLEAN
DIGEST_PATH = "quire.zookeeper.digest.path"
_KEY_PASSWORD_PATH = "zookeeper.ssl.keyStore.passwordPath"
_KEY_TYPE, _TRUST_TYPE = "zookeeper.ssl.keyStore.type", "zookeeper.ssl.trustStore.type"


@dataclass(slots=True, frozen=True)
class ZooKeeperSettings:
    """As they are set; what comes of them are fields of ZooKeeperOptions, which needs kazoo."""

    creator_all_acl: bool = setting(
        "zkEnableSecurity", BOOLEAN, "false", doc="Nodes are their creator's alone."
    )
    digest_path: str | None = setting(
        DIGEST_PATH, STRING, doc="A file with user:password; a name of ours."
    )
    has_tls: bool = setting(
        "zookeeper.client.secure", BOOLEAN, "false", doc="TLS to ZooKeeper's secure port."
    )
    trust_path: str | None = setting(
        "zookeeper.ssl.trustStore.location", STRING, doc="Who signs servers', PEM."
    )
    trust_type: str = setting(_TRUST_TYPE, STRING, "PEM", doc="Only PEM.")
    key_path: str | None = setting(
        "zookeeper.ssl.keyStore.location", STRING, doc="Own key and certificates, PEM."
    )
    key_type: str = setting(_KEY_TYPE, STRING, "PEM", doc="Only PEM.")
    key_password_path: str | None = setting(
        _KEY_PASSWORD_PATH, STRING, doc="File with its password."
    )
    verify_hostname: bool = setting(
        "zookeeper.ssl.hostnameVerification", BOOLEAN, "true", doc="Certificates name hosts."
    )


def zookeeper_security(values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """The fields of ZooKeeperOptions that have to do with it. ConfigError, also for files that
    cannot be used: kazoo would try them for ever."""
    settings = of_values(ZooKeeperSettings, values)
    digest = _secret(DIGEST_PATH, settings.digest_path)
    if digest is not None and (":" not in digest or digest.startswith(":")):
        raise ConfigError(DIGEST_PATH, f"{DIGEST_PATH}: the file must have user:password")
    if settings.creator_all_acl and digest is None:
        raise ConfigError("zkEnableSecurity", f"zkEnableSecurity: {DIGEST_PATH} must be set, too")
    return {
        "creator_all_acl": settings.creator_all_acl,
        "digest": digest,
        "tls": _tls(settings) if settings.has_tls else None,
    }


def _secret(name: str, path: str | None) -> str | None:
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(name, f"{name}: {error}") from error


def _tls(settings: ZooKeeperSettings) -> ZooKeeperTls:
    for name, kind in ((_TRUST_TYPE, settings.trust_type), (_KEY_TYPE, settings.key_type)):
        if kind.upper() != "PEM":
            raise ConfigError(name, f"{name}: {kind} cannot be read here, PEM can")
    tls = ZooKeeperTls(
        ca_file=settings.trust_path,
        certificate_file=settings.key_path,
        key_password=_secret(_KEY_PASSWORD_PATH, settings.key_password_path),
        verify_hostname=settings.verify_hostname,
    )
    try:
        tls.context()
    except OSError as error:
        files = f"{tls.ca_file or 'the system'}, {tls.certificate_file or 'no certificate'}"
        raise ConfigError(
            "zookeeper.ssl.trustStore.location", f"zookeeper.ssl: {files}: {error}"
        ) from error
    return tls
