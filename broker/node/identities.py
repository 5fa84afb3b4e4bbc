"""Who may log in by SCRAM, started with the broker: users and what stands for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.security.sasl.scram.composition import scram_mechanism
from broker.security.sasl.scram.hashes import BY_NAME
from broker.security.users.secret import ensure_secret
from broker.security.users.store import ScramUsers
from runtime.running import running

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from broker.security.sasl.composition import MakeMechanism
    from metadata.store import MetadataStore
    from runtime.env import Env, Rng


@dataclass(frozen=True, slots=True)
class Identities:
    users: ScramUsers
    rng: Rng
    secret: bytes = field(repr=False)

    def mechanisms(self) -> Mapping[str, MakeMechanism]:
        """What makes them for a listener, by name."""
        return {
            name: scram_mechanism(kind, self.users, None, self.secret, self.rng)
            for name, kind in BY_NAME.items()
        }


async def start_identities(
    store: MetadataStore, env: Env, stack: AsyncExitStack, *, in_cluster: bool
) -> Identities:
    """Loaded, and in a cluster following what other brokers change. MetadataError."""
    users = ScramUsers(store)
    await users.load()
    if in_cluster:
        await stack.enter_async_context(running(users.run))
    return Identities(users, env.rng, await ensure_secret(store, env.rng))
