"""Who may come, and who may do what: what the settings of security say, composed and started.

All of it is loaded before a listener opens: the users of SCRAM, the keys of tokens, the ACLs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.config_forms import parse_protocol_map
from broker.cluster.config_listener import ListenerSettings
from broker.node.acls import Acls, start_acls
from broker.node.identities import Identities, start_identities
from broker.node.tls import start_tls_reloads
from broker.security.listener import ListenerSecurity, SecurityProtocol
from broker.security.sasl.composition import SaslServices, sasl_layer
from broker.security.sasl.oauth.composition import OAuthParts
from broker.security.sasl.oauth.mechanism import OAUTHBEARER
from broker.security.sasl.plain import PLAIN
from broker.security.tls.composition import tls_server
from broker.security.tls.server import TlsServer
from runtime.config import ConfigError
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from contextlib import AsyncExitStack

    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_file import NodeConfig
    from broker.cluster.registry import ConfigRegistry
    from broker.security.tls.reload import TlsReloads
    from metadata.store import MetadataStore
    from runtime.env import Env
    from runtime.timers import Timers
    from runtime.turn import Turn

logger = logging.getLogger(__name__)

#: What a broker's listener has if nothing is said.
PLAINTEXT = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Security:
    identities: Identities
    #: By listener; of others, PLAINTEXT.
    listeners: dict[str, ListenerSecurity]
    #: None: no listener has TLS.
    tls: TlsReloads | None
    #: None: without an authorizer everybody may do everything.
    acls: Acls | None


def check_between_brokers(broker: BrokerConfig) -> None:
    """ConfigError: brokers do not log in to each other."""
    name = broker.listener_for_brokers
    protocols = parse_protocol_map(broker.listener_security_protocol_map)
    if SecurityProtocol(protocols[name]).has_sasl:
        raise ConfigError(
            "inter.broker.listener.name",
            f"inter.broker.listener.name: {name} asks for {protocols[name]}, and brokers do not log"
            f" in to each other: add a {PLAINTEXT} or SSL listener for them",
        )


async def start_security(
    store: MetadataStore,
    env: Env,
    config: NodeConfig,
    registry: ConfigRegistry,
    topics: TopicCatalog,
    timers: Timers,
    stack: AsyncExitStack,
    *,
    in_cluster: bool,
) -> Security:
    """ConfigError, MetadataError."""
    broker = registry.broker
    if in_cluster:
        check_between_brokers(config.broker)
    identities = await start_identities(store, env, broker, stack, in_cluster=in_cluster)
    oauth = OAuthParts(broker, env.clock)
    makers = {**identities.mechanisms(), OAUTHBEARER: oauth.make}
    logins = SaslServices(broker, timers, env.clock, makers)
    texts = {**config.broker_texts, **config.listener_texts, **registry.listener_texts}
    listeners = _listeners(config.broker, texts, logins, env.turn)
    if in_cluster:
        _check_towards_brokers(config.broker, texts, listeners)
    await oauth.start(stack)
    tls = await start_tls_reloads(config, listeners, registry, env, stack, in_cluster=in_cluster)
    acls = await start_acls(store, broker, topics, stack, in_cluster=in_cluster)
    return Security(identities, listeners, tls, acls)


def _listeners(
    broker: BrokerConfig, texts: Mapping[str, str], services: SaslServices, turn: Turn
) -> dict[str, ListenerSecurity]:
    """`texts`: all that is set, by full names. ConfigError."""
    protocols = parse_protocol_map(broker.listener_security_protocol_map)
    made = {}
    for listener in broker.parsed_listeners():
        protocol = SecurityProtocol(protocols[listener.name])
        settings = ListenerSettings(listener.name, texts)
        sasl = tls = None
        if protocol.has_sasl:
            sasl = sasl_layer(settings, services)
            if not protocol.has_tls:
                _warn_in_clear(listener.name, sasl.mechanisms)
        if protocol.has_tls:
            has_sasl = protocol.has_sasl
            tls = tls_server(settings, broker, turn, services.timers, has_sasl=has_sasl)
        made[listener.name] = ListenerSecurity(protocol, sasl, tls)
    return made


def _check_towards_brokers(
    broker: BrokerConfig, texts: Mapping[str, str], listeners: Mapping[str, ListenerSecurity]
) -> None:
    """ConfigError: other brokers could not be asked over the listener for them."""
    name = broker.listener_for_brokers
    tls = listeners[name].tls
    if isinstance(tls, TlsServer):
        tls.check_client(ListenerSettings(name, texts))


def _warn_in_clear(listener: str, mechanisms: Container[str]) -> None:
    if PLAIN in mechanisms:
        logger.warning("passwords_in_clear", kv(listener=listener))
    if OAUTHBEARER in mechanisms:
        logger.warning("tokens_in_clear", kv(listener=listener))
