"""Who may log in by SCRAM, started with the broker: users, and delegation tokens."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from broker.cluster.config_forms import parse_protocol_map
from broker.security.sasl.scram.composition import scram_mechanism
from broker.security.sasl.scram.hashes import BY_NAME
from broker.security.tokens.store import DelegationTokens
from broker.security.tokens.token_core import Lifetimes
from broker.security.users.secret import ensure_secret
from broker.security.users.store import ScramUsers
from runtime.running import running
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from broker.cluster.config import BrokerConfig
    from broker.security.sasl.composition import MakeMechanism
    from metadata.store import MetadataStore
    from runtime.env import Env, Rng


@dataclass(frozen=True, slots=True)
class Identities:
    users: ScramUsers
    #: None without a secret.
    tokens: DelegationTokens | None
    #: Of the listeners, by name.
    protocols: Mapping[str, str]
    rng: Rng
    secret: bytes = field(repr=False)

    def mechanisms(self) -> Mapping[str, MakeMechanism]:
        """What makes them for a listener, by name."""
        return {
            name: scram_mechanism(kind, self.users, self.tokens, self.secret, self.rng)
            for name, kind in BY_NAME.items()
        }


async def start_identities(
    store: MetadataStore, env: Env, broker: BrokerConfig, stack: AsyncExitStack, *, in_cluster: bool
) -> Identities:
    """Loaded, and in a cluster following what other brokers change. MetadataError."""
    secret = await ensure_secret(store, env.rng)
    users = ScramUsers(store)
    await users.load()
    if in_cluster:
        await stack.enter_async_context(running(users.run))
    tokens = None
    if broker.delegation_token_secret_key:
        lifetimes = Lifetimes(
            broker.delegation_token_max_lifetime_ms, broker.delegation_token_expiry_time_ms
        )
        key = broker.delegation_token_secret_key
        tokens = DelegationTokens(store, env, key, secret, lifetimes)
        await tokens.load()
        if in_cluster:
            await stack.enter_async_context(running(tokens.run))
        seconds = broker.delegation_token_expiry_check_interval_ms / 1000
        sweep = partial(tokens.sweep, seconds)
        await stack.enter_async_context(running(sweep, needs_start=False))
    protocols = parse_protocol_map(broker.listener_security_protocol_map)
    return Identities(users, tokens, protocols, env.rng, secret)
