"""StandardAuthorizer: what a broker asks, by the ACLs of the index; and what it tells of it.

The logger `kafka.authorizer.logger` has a line for each refusal at INFO and for each permission at
DEBUG, in Kafka's words: who, what, from where, on which resource, for which request, and the rule
that decided.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from broker.authorization import Extent
from broker.security.acls.bindings import AclBinding
from broker.security.acls.decisions_core import Decisions
from runtime.logs import kv

if TYPE_CHECKING:
    from uuid import UUID

    from broker.authorization import AclOperation, ResourceType
    from broker.security.acls.index_core import AclIndex, Decision
    from broker.security.principal import Principal

audit = logging.getLogger("kafka.authorizer.logger")
#: Of a resource's name, in the log: a client may name what nobody could have. A topic has as many.
NAME_CHARACTERS_TOLD_MAX = 249


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Topics(Protocol):
    """The catalog, to whoever has a topic's id."""

    def get(self, name: str) -> Named | None: ...
    def get_by_id(self, topic_id: UUID) -> Named | None: ...


class StandardAuthorizer:
    """A `broker.rights.Authorizer`."""

    def __init__(self, index: AclIndex, topics: Topics) -> None:
        self.index = index
        self.topics = topics
        self._decisions = Decisions(index)
        #: Asked for each name of each request.
        self.decide = self._decisions.of
        self.is_super_user = index.is_super_user

    @property
    def generation(self) -> int:
        return self.index.generation

    def tell(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | Extent,
        request: str,
        decision: Decision,
    ) -> None:
        """To the log."""
        level = logging.DEBUG if decision.is_allowed else logging.INFO
        if not audit.isEnabledFor(level):
            return
        rule = decision.rule
        shown = "*" if isinstance(name, Extent) else _shown(name)
        audit.log(
            level,
            "Allowed" if decision.is_allowed else "Denied",
            kv(
                principal=principal,
                operation=operation.name,
                host=host,
                resource=f"{_type_name(resource_type)}:LITERAL:{shown}",
                request=request,
                rule=rule.describe() if isinstance(rule, AclBinding) else rule.value,
            ),
        )


def _shown(name: str) -> str:
    if len(name) <= NAME_CHARACTERS_TOLD_MAX:
        return name
    return f"{name[:NAME_CHARACTERS_TOLD_MAX]}... ({len(name)} characters)"


def _type_name(resource_type: ResourceType) -> str:
    """`SecurityUtils.resourceTypeName`: TransactionalId."""
    return "".join(word.capitalize() for word in resource_type.name.split("_"))
