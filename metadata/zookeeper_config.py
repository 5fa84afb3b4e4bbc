"""How ZooKeeper is reached, by names in bk_server.conf and server.properties: zkTimeout and
zkEnableSecurity are BookKeeper's, `zookeeper.ssl...` are ZooKeeper's own (its client's system
properties, which a Java process has to be given beside its configuration).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metadata.zookeeper_tls import ZooKeeperTls
from runtime.config import ConfigError, ConfigKey, ConfigType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

STRING = ConfigType.STRING
BOOLEAN = ConfigType.BOOLEAN
DIGEST_PATH = "quire.zookeeper.digest.path"

ZOOKEEPER_KEYS = (
    ConfigKey("zkEnableSecurity", BOOLEAN, "false", "Nodes are their creator's alone."),
    ConfigKey(DIGEST_PATH, STRING, None, "A file with user:password; a name of ours."),
    ConfigKey("zookeeper.client.secure", BOOLEAN, "false", "TLS to ZooKeeper's secure port."),
    ConfigKey("zookeeper.ssl.trustStore.location", STRING, None, "Who signs servers', PEM."),
    ConfigKey("zookeeper.ssl.trustStore.type", STRING, "PEM", "Only PEM."),
    ConfigKey("zookeeper.ssl.keyStore.location", STRING, None, "Own key and certificates, PEM."),
    ConfigKey("zookeeper.ssl.keyStore.type", STRING, "PEM", "Only PEM."),
    ConfigKey("zookeeper.ssl.keyStore.passwordPath", STRING, None, "File with its password."),
    ConfigKey("zookeeper.ssl.hostnameVerification", BOOLEAN, "true", "Certificates name hosts."),
)


def zookeeper_security(values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """The fields of ZooKeeperOptions that have to do with it. ConfigError, also for files that
    cannot be used: kazoo would try them for ever."""
    found: dict[str, Any] = {key.name: key.parse_default() for key in ZOOKEEPER_KEYS}
    found |= {name: value for name, value in values.items() if name in found and value is not None}
    digest = _secret(found, DIGEST_PATH)
    if digest is not None and (":" not in digest or digest.startswith(":")):
        raise ConfigError(DIGEST_PATH, f"{DIGEST_PATH}: the file must have user:password")
    if found["zkEnableSecurity"] and digest is None:
        raise ConfigError("zkEnableSecurity", f"zkEnableSecurity: {DIGEST_PATH} must be set, too")
    return {
        "creator_all_acl": found["zkEnableSecurity"],
        "digest": digest,
        "tls": _tls(found) if found["zookeeper.client.secure"] else None,
    }


def _secret(found: Mapping[str, Any], name: str) -> str | None:
    if not found[name]:
        return None
    try:
        with open(found[name], encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(name, f"{name}: {error}") from error


def _tls(found: Mapping[str, Any]) -> ZooKeeperTls:
    for name in ("zookeeper.ssl.trustStore.type", "zookeeper.ssl.keyStore.type"):
        if found[name].upper() != "PEM":
            raise ConfigError(name, f"{name}: {found[name]} cannot be read here, PEM can")
    tls = ZooKeeperTls(
        ca_file=found["zookeeper.ssl.trustStore.location"],
        certificate_file=found["zookeeper.ssl.keyStore.location"],
        key_password=_secret(found, "zookeeper.ssl.keyStore.passwordPath"),
        verify_hostname=found["zookeeper.ssl.hostnameVerification"],
    )
    try:
        tls.context()
    except OSError as error:
        files = f"{tls.ca_file or 'the system'}, {tls.certificate_file or 'no certificate'}"
        raise ConfigError(
            "zookeeper.ssl.trustStore.location", f"zookeeper.ssl: {files}: {error}"
        ) from error
    return tls
