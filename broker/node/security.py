"""Who may come, and who may do what: what the settings of security say, composed and started.

All of it is loaded before a listener opens: the users of SCRAM, the keys of tokens, the ACLs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.cluster.config_forms import parse_protocol_map
from broker.cluster.config_listener import ListenerSettings
from broker.node.acls import Acls, start_acls
from broker.node.identities import Identities, start_identities
from broker.node.tls import start_tls_reloads
from broker.security.listener import ListenerSecurity, SecurityProtocol
from broker.security.principal import ANONYMOUS
from broker.security.sasl.composition import SaslServices, sasl_layer
from broker.security.sasl.oauth.composition import OAuthParts
from broker.security.sasl.oauth.mechanism import OAUTHBEARER
from broker.security.sasl.outgoing import BrokerLogin, account_of
from broker.security.sasl.plain import PLAIN
from broker.security.tls.composition import tls_server
from broker.security.tls.server import TlsServer
from runtime.logs import kv
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from contextlib import AsyncExitStack

    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_file import NodeConfig
    from broker.cluster.registry import ConfigRegistry
    from broker.security.sasl.outgoing import Account
    from broker.security.tls.reload import TlsReloads
    from metadata.store import MetadataStore
    from runtime.env import Env
    from runtime.timers import Timers
    from runtime.turn import Turn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Security:
    identities: Identities
    #: By listener; of others, PLAINTEXT.
    listeners: dict[str, ListenerSecurity]
    #: None: no listener has TLS.
    tls: TlsReloads | None
    #: None: without an authorizer everybody may do everything.
    acls: Acls | None
    #: At the other brokers; None: they meet without SASL, or there are none.
    login: BrokerLogin | None = None


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
    identities = await start_identities(store, env, broker, stack, in_cluster=in_cluster)
    oauth = OAuthParts(broker, env.clock)
    makers = {**identities.mechanisms(), OAUTHBEARER: oauth.make}
    logins = SaslServices(broker, timers, env.clock, makers)
    texts = {**config.broker_texts, **config.listener_texts, **registry.listener_texts}
    listeners = _listeners(config.broker, texts, logins, env.turn)
    account = who = None
    if in_cluster:
        account = _towards_brokers(config.broker, texts, listeners)
        who = _principal_between(listeners[config.broker.listener_for_brokers], account)
    await oauth.start(stack)
    tls = await start_tls_reloads(config, listeners, registry, env, stack, in_cluster=in_cluster)
    acls = await start_acls(
        store, broker, topics, stack, in_cluster=in_cluster, brokers_principal=who
    )
    login = None if account is None else BrokerLogin(account, env, env.disk.run)
    return Security(identities, listeners, tls, acls, login)


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


def _towards_brokers(
    broker: BrokerConfig, texts: Mapping[str, str], listeners: Mapping[str, ListenerSecurity]
) -> Account | None:
    """By what this broker logs in at the others; None: they meet without SASL. ConfigError: they
    could not be asked over the listener for them."""
    name = broker.listener_for_brokers
    settings, met_at = ListenerSettings(name, texts), listeners[name]
    if isinstance(met_at.tls, TlsServer):
        met_at.tls.check_client(settings)
    return account_of(settings, broker) if met_at.protocol.has_sasl else None


def _principal_between(met_at: ListenerSecurity, account: Account | None) -> str | None:
    """Who this broker is to the others; None: whoever its certificate says, as the others read
    it."""
    if account is not None:
        return account.principal
    return None if met_at.protocol.has_tls else str(ANONYMOUS)


def _warn_in_clear(listener: str, mechanisms: Container[str]) -> None:
    if PLAIN in mechanisms:
        logger.warning("passwords_in_clear", kv(listener=listener))
    if OAUTHBEARER in mechanisms:
        logger.warning("tokens_in_clear", kv(listener=listener))
