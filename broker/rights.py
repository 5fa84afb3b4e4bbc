"""What the client of one request may: asked by the guards of APIs (broker/guards/), and by handlers
for what is not in the request.

A request has `Rights` if the broker has an authorizer; without one everybody may do everything, and
nothing is asked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from broker.authorization import (
    ALL_OPERATIONS,
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    Extent,
    ResourceType,
)

if TYPE_CHECKING:
    from uuid import UUID

    from broker.security.acls.index_core import Decision
    from broker.security.principal import Principal

audit = logging.getLogger("kafka.authorizer.logger")
#: Of one request: a client may name very many that it may not, and a line takes 0.1 ms.
DENIALS_TOLD_MAX = 25


class Who(Protocol):
    """A connection."""

    @property
    def principal(self) -> Principal: ...
    @property
    def peer_host(self) -> str: ...


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class Topics(Protocol):
    def get(self, name: str) -> _Named | None: ...
    def get_by_id(self, topic_id: UUID) -> _Named | None: ...


class Authorizer(Protocol):
    """Who may do what (Kafka's `Authorizer`)."""

    @property
    def topics(self) -> Topics: ...
    @property
    def generation(self) -> int:
        """Another one after each change of what is decided."""

    def decide(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | Extent,
        /,
    ) -> Decision:
        """Asked on the loop for each name of each request: from memory, within microseconds."""

    def is_super_user(self, principal: str, /) -> bool: ...

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
        """To the audit log."""


class Rights:
    __slots__ = ("_authorizer", "_denials", "_request", "_who")

    def __init__(self, authorizer: Authorizer, who: Who, request: str) -> None:
        """`request`: its API's name, for the audit log."""
        self._authorizer = authorizer
        self._who = who
        self._request = request
        self._denials = 0

    @property
    def state(self) -> tuple[object, ...]:
        """What was decided holds as long as this is the same."""
        who = self._who
        return (who.principal, who.peer_host, self._authorizer.generation)

    @property
    def who(self) -> tuple[Principal, str]:
        """Whose rights these are: two of the same may the same."""
        return self._who.principal, self._who.peer_host

    def allows(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | Extent,
        *,
        is_told: bool = True,
    ) -> bool:
        """`is_told`: to the audit log, if it is refused: not of what the client did not name."""
        who, authorizer = self._who, self._authorizer
        decision = authorizer.decide(who.principal, who.peer_host, operation, resource_type, name)
        if decision.is_allowed:
            if audit.isEnabledFor(logging.DEBUG):
                self._tell(operation, resource_type, name, decision)
            return True
        if is_told:
            self._denials += 1
            if self._denials <= DENIALS_TOLD_MAX:
                self._tell(operation, resource_type, name, decision)
        return False

    def allows_cluster(self, operation: AclOperation, *, is_told: bool = True) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME, is_told=is_told)

    def describes_topic(self, name: str) -> bool:
        """Of a topic that the client did not name: whether it may see it."""
        return self.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_told=False)

    def reads_topic(self, topic_id: UUID) -> bool:
        """True of one that is not there: whoever looks for it says so."""
        name = self.topic_name(topic_id)
        return name is None or self.allows(AclOperation.READ, ResourceType.TOPIC, name)

    def is_over(self, principal: str) -> bool:
        """Whether he may do in the other one's name: a super user's password is for super users."""
        is_super_user = self._authorizer.is_super_user
        return not is_super_user(principal) or is_super_user(str(self._who.principal))

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """`authorized_operations`: a bit for each, and no word in the log."""
        who, decide = self._who, self._authorizer.decide
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if decide(who.principal, who.peer_host, operation, resource_type, name).is_allowed
        )

    def topic_name(self, topic_id: UUID) -> str | None:
        """None: there is no topic of that id."""
        topic = self._authorizer.topics.get_by_id(topic_id)
        return None if topic is None else topic.name

    def has_topic(self, name: str) -> bool:
        return self._authorizer.topics.get(name) is not None

    def _tell(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | Extent,
        decision: Decision,
    ) -> None:
        who = self._who
        self._authorizer.tell(
            who.principal, who.peer_host, operation, resource_type, name, self._request, decision
        )


def operations_of_cluster(rights: Rights | None) -> int:
    """`cluster_authorized_operations`, which somebody asked for; 0 for who may not describe it."""
    if rights is None:
        return ALL_OPERATIONS[ResourceType.CLUSTER]
    if not rights.allows_cluster(AclOperation.DESCRIBE):
        return 0
    return rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def operations_of_topic(rights: Rights | None, name: str) -> int:
    if rights is None:
        return ALL_OPERATIONS[ResourceType.TOPIC]
    return rights.operations(ResourceType.TOPIC, name)
