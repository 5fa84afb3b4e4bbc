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
from broker.security.listener import ListenerSecurity, SecurityProtocol
from broker.security.sasl.composition import SaslServices, sasl_layer
from broker.security.sasl.oauth.composition import OAuthParts
from broker.security.sasl.oauth.mechanism import OAUTHBEARER
from broker.security.sasl.plain import PLAIN
from runtime.config import ConfigError
from runtime.logs import kv

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_file import NodeConfig
    from metadata.store import MetadataStore
    from runtime.env import Env
    from runtime.timers import Timers

logger = logging.getLogger(__name__)

#: What a broker's listener has if nothing is said.
PLAINTEXT = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Security:
    identities: Identities
    #: By listener; of others, PLAINTEXT.
    listeners: dict[str, ListenerSecurity]
    #: None: without an authorizer everybody may do everything.
    acls: Acls | None


def check_listeners(config: NodeConfig) -> None:
    """ConfigError if a listener asks for what is not served; notes go to the log."""
    protocols = parse_protocol_map(config.broker.listener_security_protocol_map)
    for listener in config.broker.parsed_listeners():
        if SecurityProtocol(protocols[listener.name]).has_tls:
            raise ConfigError(
                "listeners",
                f"listeners: {listener.name} asks for {protocols[listener.name]};"
                f" only {PLAINTEXT} and SASL_PLAINTEXT are served",
            )
    for note in config.notes:
        logger.warning("setting_without_effect", kv(note=note))


def check_between_brokers(broker: BrokerConfig) -> None:
    """ConfigError: brokers do not log in to each other."""
    name = broker.listener_for_brokers
    protocols = parse_protocol_map(broker.listener_security_protocol_map)
    if SecurityProtocol(protocols[name]).has_sasl:
        raise ConfigError(
            "inter.broker.listener.name",
            f"inter.broker.listener.name: {name} asks for {protocols[name]}, and brokers do not log"
            f" in to each other: add a {PLAINTEXT} listener for them",
        )


async def start_security(
    store: MetadataStore,
    env: Env,
    config: NodeConfig,
    broker: BrokerConfig,
    topics: TopicCatalog,
    timers: Timers,
    stack: AsyncExitStack,
    *,
    in_cluster: bool,
) -> Security:
    """`broker`: with what was changed while brokers ran. ConfigError, MetadataError."""
    if in_cluster:
        check_between_brokers(config.broker)
    identities = await start_identities(store, env, stack, in_cluster=in_cluster)
    oauth = OAuthParts(broker, env.clock)
    makers = {**identities.mechanisms(), OAUTHBEARER: oauth.make}
    listeners = _listeners(config, SaslServices(broker, timers, env.clock, makers))
    await oauth.start(stack)
    acls = await start_acls(store, broker, topics, stack, in_cluster=in_cluster)
    return Security(identities, listeners, acls)


def _listeners(config: NodeConfig, services: SaslServices) -> dict[str, ListenerSecurity]:
    """Of those that are not PLAINTEXT. ConfigError."""
    protocols = parse_protocol_map(config.broker.listener_security_protocol_map)
    texts = {**config.broker_texts, **config.listener_texts}
    made = {}
    for listener in config.broker.parsed_listeners():
        protocol = SecurityProtocol(protocols[listener.name])
        if protocol.has_sasl:
            layer = sasl_layer(ListenerSettings(listener.name, texts), services)
            if PLAIN in layer.mechanisms and not protocol.has_tls:
                logger.warning("passwords_in_clear", kv(listener=listener.name))
            if OAUTHBEARER in layer.mechanisms and not protocol.has_tls:
                logger.warning("tokens_in_clear", kv(listener=listener.name))
            made[listener.name] = ListenerSecurity(protocol, sasl=layer)
    return made
