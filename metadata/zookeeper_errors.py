"""ZooKeeper's errors as the store's."""

from __future__ import annotations

from kazoo import exceptions as kazoo_errors  # type: ignore[import-untyped]

from metadata.store import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

_ERRORS: dict[type[Exception], tuple[type[MetadataError], str]] = {
    kazoo_errors.NoNodeError: (NoNodeError, "no such node, or no parent for it"),
    kazoo_errors.NodeExistsError: (NodeExistsError, "the node exists"),
    kazoo_errors.NotEmptyError: (NotEmptyError, "the node has children"),
    kazoo_errors.NoChildrenForEphemeralsError: (
        MetadataError,
        "its parent is ephemeral and can have no children",
    ),
    kazoo_errors.NoAuthError: (MetadataError, "this login has no permission (ACL)"),
    kazoo_errors.InvalidACLError: (MetadataError, "ZooKeeper knows no login for the ACL"),
    kazoo_errors.BadArgumentsError: (MetadataError, "ZooKeeper takes no such path"),
    kazoo_errors.QuotaExceededError: (MetadataUnavailableError, "ZooKeeper's quota is used up"),
    kazoo_errors.ThrottledOpError: (MetadataUnavailableError, "ZooKeeper is overloaded"),
    kazoo_errors.AuthFailedError: (MetadataUnavailableError, "ZooKeeper refuses the login"),
}


def translated(path: str, error: Exception, version: int | None = None) -> MetadataError:
    """`version` is what was expected, for the words of a conflict."""
    if isinstance(error, kazoo_errors.BadVersionError):
        return BadVersionError(path, f"version is not {version}")
    kind, words = _ERRORS.get(type(error), (MetadataError, f"ZooKeeper failed: {error!r}"))
    return kind(path, words)
