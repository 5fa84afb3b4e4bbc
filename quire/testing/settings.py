"""The settings of a server for tests: Kafka's and BookKeeper's names, small and quick, all of them
still durable. Whatever the user sets wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PRESET: Mapping[str, str] = {
    # As small as it may be: each journal file is written once, whole, before use.
    "journalMaxSizeMB": "14",
    "journalMaxMemorySizeMb": "16",
    "journalMaxBackups": "1",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(4 << 20),
    "logSizeLimit": str(64 << 20),
    "queued.max.request.bytes": str(32 << 20),
    # A test has few groups, and should not wait for members that will not come.
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}

#: Settings that `Server` answers for by itself: how to say it instead.
_OURS: Mapping[str, str] = {"listeners": "port=", "listener.security.protocol.map": "port="}


def overrides(config: Mapping[str, object] | None) -> dict[str, str]:
    """The preset with the user's settings over it, as texts. ValueError for one that is ours."""
    texts = dict(PRESET)
    for name, value in (config or {}).items():
        if name in _OURS:
            raise ValueError(f"config: {name!r} is the test server's own; use {_OURS[name]}")
        texts[name] = text_of(value)
    return texts


def text_of(value: object) -> str:
    """As it stands in a properties file: `true`, `a,b`, `5`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(text_of, value))
    return str(value)
