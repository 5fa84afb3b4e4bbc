"""TLS of the listeners, followed: files and settings that change while the broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.config_listener import ListenerSettings
from broker.security.tls.server import TlsServer
from runtime.running import running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack

    from broker.cluster.config_file import NodeConfig
    from broker.cluster.registry import ConfigRegistry
    from broker.security.listener import ListenerSecurity
    from broker.security.tls.reload import TlsReloads
    from runtime.env import Env


async def start_tls_reloads(
    config: NodeConfig,
    security: Mapping[str, ListenerSecurity],
    registry: ConfigRegistry,
    env: Env,
    stack: AsyncExitStack,
    *,
    in_cluster: bool,
) -> TlsReloads | None:
    """None: no listener has TLS."""
    encrypted = {name: one for name, one in security.items() if one.tls is not None}
    if not encrypted:
        return None
    from broker.security.tls.reload import TlsReloads, Watched  # with X.509, for TLS only

    met_at = config.broker.listener_for_brokers if in_cluster else None
    watched = [
        Watched(one.tls, _settings_of(name, config), one.protocol.has_sasl, name == met_at)
        for name, one in encrypted.items()
        if isinstance(one.tls, TlsServer)
    ]
    check_ms = config.broker.quire_ssl_reload_check_ms
    reloads = TlsReloads(
        watched, lambda: registry.listener_texts, env.disk.run, env.clock, check_ms
    )
    registry.subscribe(reloads.settings_changed)
    registry.check_listeners = reloads.check
    await stack.enter_async_context(running(reloads.run))
    return reloads


def _settings_of(
    listener: str, config: NodeConfig
) -> Callable[[Mapping[str, str]], ListenerSettings]:
    static = {**config.broker_texts, **config.listener_texts}
    return lambda dynamic: ListenerSettings(listener, {**static, **dynamic})
