"""Credentials of users in metadata: one document for a user, with all mechanisms that he has.

    /quire/users/<hex of the name's UTF-8>    {"SCRAM-SHA-256": {"iterations", "salt",
                                              "stored_key", "server_key"}, ...}

Every broker has all of them in memory; a login reads nothing. In a cluster the others follow within
moments: a session that began with a credential is not ended by its removal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.watched_documents import WatchedDocuments
from broker.security.sasl.scram.credentials import from_bytes, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import trio

    from broker.security.sasl.scram.credentials import Credential, Credentials
    from metadata.store import MetadataStore

USERS_PATH = "/quire/users"
#: Longer ones have no place in a node's name.
NAME_BYTES_MAX = 1024


def user_path(name: str) -> str:
    return f"{USERS_PATH}/{name.encode().hex()}"


class ScramUsers:
    def __init__(self, store: MetadataStore) -> None:
        self._documents: WatchedDocuments[Credentials] = WatchedDocuments(
            store, USERS_PATH, from_bytes
        )

    async def load(self) -> None:
        """MetadataError."""
        await self._documents.load()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._documents.run(task_status=task_status)

    def credentials(self, name: str) -> Mapping[str, Credential]:
        """By mechanism; empty of a name that nobody has."""
        return self._documents.get(name) or {}

    def names(self) -> list[str]:
        """Of those who have any."""
        return [name for name, credentials in self._documents.items() if credentials]

    async def change(
        self, name: str, change: Callable[[Mapping[str, Credential]], Credentials]
    ) -> None:
        """Stores `change(what is stored)`; it may be asked again, and may raise, which changes
        nothing. MetadataError."""
        await self._documents.change(name, lambda before: to_bytes(change(before or {})))
