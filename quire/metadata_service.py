"""The metadata store that `metadataServiceUri` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.server.config import metadata_service_uri
from metadata.service_uri import parse_service_uri
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions
from runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

ZK_TIMEOUT_DEFAULT_MS = 10_000


def zookeeper_store(values: Mapping[str, ConfigValue]) -> tuple[ZooKeeperStore, str]:
    """The store, not started, and the root of the ledgers in it; `values` by BookKeeper's names,
    only what is set. ConfigError."""
    try:
        uri = parse_service_uri(metadata_service_uri(values))
    except ValueError as error:
        raise ConfigError("metadataServiceUri", str(error)) from error
    timeout_ms = values.get("zkTimeout")
    assert timeout_ms is None or isinstance(timeout_ms, int)
    options = ZooKeeperOptions(
        hosts=uri.hosts, session_timeout_ms=timeout_ms or ZK_TIMEOUT_DEFAULT_MS
    )
    return ZooKeeperStore(options), uri.ledgers_root
