"""The metadata store that `metadataServiceUri` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.server.config import MetadataSettings, metadata_service_uri
from metadata.remote import RemoteOptions, RemoteStore
from metadata.service_uri import ServiceUri, parse_service_uri
from metadata.zookeeper_config import zookeeper_security
from runtime.config import ConfigError
from runtime.settings import of_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metadata.store import MetadataStore
    from metadata.zookeeper import ZooKeeperStore
    from runtime.config import ConfigValue
    from runtime.env import Env


def metadata_store(
    values: Mapping[str, ConfigValue], env: Env, *, name: str = ""
) -> tuple[MetadataStore, str]:
    """The store, not started, and the root of the ledgers in it; `values` by BookKeeper's names,
    only what is set. `name` is for the server's log, where there is one of ours. ConfigError."""
    uri, timeout_ms = _service(values)
    if uri.socket_path is not None:
        options = RemoteOptions(uri.socket_path, session_timeout_ms=timeout_ms, name=name)
        return RemoteStore(env, options), uri.ledgers_root
    return zookeeper_store(values)


def zookeeper_store(values: Mapping[str, ConfigValue]) -> tuple[ZooKeeperStore, str]:
    """As `metadata_store`, where it must be a ZooKeeper. ConfigError."""
    # kazoo is slow to import, and of no use to the children of `quire standalone`
    from metadata.zookeeper import ZooKeeperStore
    from metadata.zookeeper_session import ZooKeeperOptions

    uri, timeout_ms = _service(values)
    if uri.socket_path is not None:
        raise ConfigError("metadataServiceUri", "metadataServiceUri: it must name a ZooKeeper")
    options = ZooKeeperOptions(
        hosts=uri.hosts, session_timeout_ms=timeout_ms, **zookeeper_security(values)
    )
    return ZooKeeperStore(options), uri.ledgers_root


def _service(values: Mapping[str, ConfigValue]) -> tuple[ServiceUri, int]:
    """And the session's time-out, in ms."""
    try:
        uri = parse_service_uri(metadata_service_uri(values))
    except ValueError as error:
        raise ConfigError("metadataServiceUri", str(error)) from error
    return uri, of_values(MetadataSettings, values).session_timeout_ms
