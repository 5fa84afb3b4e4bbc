"""The broker's authorizer, composed and started: ACLs loaded before any client is heard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.authorization import CLUSTER_NAME, AclOperation, ResourceType
from broker.cluster.config_acls import parse_super_users
from broker.security.acls.authorizer import StandardAuthorizer
from broker.security.acls.index_core import AclIndex
from broker.security.acls.store import AclStore
from broker.security.principal import ANONYMOUS
from runtime.logs import kv
from runtime.running import running
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from broker.cluster.config import BrokerConfig
    from broker.security.acls.authorizer import Topics
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acls:
    store: AclStore
    authorizer: StandardAuthorizer


async def start_acls(
    store: MetadataStore,
    broker: BrokerConfig,
    topics: Topics,
    stack: AsyncExitStack,
    *,
    in_cluster: bool,
    brokers_principal: str | None = None,
) -> Acls | None:
    """None: there is no authorizer. `brokers_principal`: who brokers are to one another, if it is
    known. MetadataError, ConfigError."""
    if not broker.authorizer_class_name:
        for name, value in (
            ("super.users", broker.super_users),
            ("allow.everyone.if.no.acl.found", broker.allow_everyone_if_no_acl_found),
        ):
            if value:
                note = f"{name} has no effect without authorizer.class.name"
                logger.warning("setting_without_effect", kv(note=note))
        return None
    index = AclIndex(
        parse_super_users(broker.super_users),
        allow_everyone_if_no_acl_found=broker.allow_everyone_if_no_acl_found,
    )
    acls = AclStore(store, index)
    await acls.load()
    if in_cluster:
        await stack.enter_async_context(running(acls.run))
    _note(index, brokers_principal)
    return Acls(acls, StandardAuthorizer(index, topics))


def _note(index: AclIndex, brokers_principal: str | None) -> None:
    """What an operator is to know: whoever reaches a listener without a login is User:ANONYMOUS,
    and brokers have to be allowed what they ask of one another."""
    if index.is_super_user(str(ANONYMOUS)):
        logger.warning(
            "anonymous_is_super_user",
            kv(reason="whoever reaches a listener without a login may do everything"),
        )
    if brokers_principal is None or index.is_super_user(brokers_principal):
        return
    cluster, action = ResourceType.CLUSTER, AclOperation.CLUSTER_ACTION
    # From some host: which they come from is not known here.
    if not index.may_from_somewhere(brokers_principal, action, cluster, CLUSTER_NAME):
        logger.warning(
            "brokers_refuse_each_other",
            kv(
                principal=brokers_principal,
                reason="it is no super user and has no ACL that allows CLUSTER_ACTION",
            ),
        )
