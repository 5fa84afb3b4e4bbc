"""The first user of a cluster, and a way back in for whoever has locked himself out.

As `kafka-storage format --add-scram` (KIP-900) makes one before a cluster's first start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.security.sasl.scram.credentials import SALT_BITS, Credential, salt_text, to_bytes
from broker.security.sasl.scram.hashes import BY_NAME
from broker.security.users.store import NAME_BYTES_MAX, ScramUsers, user_path
from metadata.store import NodeExistsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.security.sasl.scram.credentials import Credentials
    from metadata.store import MetadataStore
    from runtime.env import Rng


def parse_user(text: str) -> tuple[str, tuple[str, ...]]:
    """NAME[:MECHANISM] -> name and mechanisms, both without one. ValueError."""
    name, colon, mechanism = text.partition(":")
    if colon and mechanism not in BY_NAME:
        raise ValueError(f"{mechanism!r} is none of {', '.join(BY_NAME)}")
    if not name or len(name.encode()) > NAME_BYTES_MAX or "\0" in name:
        raise ValueError(f"{text!r}: a name has 1 to {NAME_BYTES_MAX} bytes")
    return name, (mechanism,) if colon else tuple(BY_NAME)


def credentials_of(password: str, mechanisms: Sequence[str], rng: Rng) -> Credentials:
    """Takes milliseconds."""
    return {
        name: Credential.of_password(BY_NAME[name], password, salt_text(rng.getrandbits(SALT_BITS)))
        for name in mechanisms
    }


async def was_there(store: MetadataStore, name: str) -> bool:
    """Whether anybody has or had that name. MetadataError."""
    return await store.exists(user_path(name))


async def create_if_absent(store: MetadataStore, name: str, credentials: Credentials) -> bool:
    """Whether it was made: not if anybody has or had that name; who was removed stays removed.
    MetadataError."""
    try:
        await store.create(user_path(name), to_bytes(credentials), make_parents=True)
    except NodeExistsError:
        return False
    return True


async def put(store: MetadataStore, name: str, credentials: Credentials) -> None:
    """In place of what there is of these mechanisms. MetadataError."""
    await ScramUsers(store).change(name, lambda before: {**before, **credentials})
