"""The cluster's own secret: 32 random bytes in metadata, made by whichever broker comes first.

Made of it is what names that nobody has are answered (broker/security/sasl/scram/mechanism.py), the
same by all brokers. Who reads it can tell such names from users, and nothing more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from metadata.store import NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from metadata.store import MetadataStore
    from runtime.env import Rng

SECRET_PATH = "/quire/secret"
_BYTES = 32


async def ensure_secret(store: MetadataStore, rng: Rng) -> bytes:
    """MetadataError."""
    with suppress(NoNodeError):
        return (await store.get(SECRET_PATH)).data
    with suppress(NodeExistsError):
        await store.create(SECRET_PATH, rng.randbytes(_BYTES), make_parents=True)
    return (await store.get(SECRET_PATH)).data
