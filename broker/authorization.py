"""What a request needs authorised: Kafka's resources and operations.

A `Need` is data: an operation on a kind of resource, and where the request names the resources.
broker/authorised.py has those of every API that is served, as docs/apis.md shows them. Whoever asks
is broker/guards/; tests compare what it asks with the needs.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Any

from wire.dataclass import dataclass
from wire.kafka.message import ZERO_UUID, Array, fields_of
from wire.kafka.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from uuid import UUID

    from wire.kafka.message import Message

#: The one resource of the type CLUSTER (`Resource.CLUSTER_NAME`).
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    """Kafka's `org.apache.kafka.common.resource.ResourceType`."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(IntEnum):
    """Kafka's `org.apache.kafka.common.acl.AclOperation`: what may be done to a resource.
    ALL is what an ACL may be about, and no request."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


#: `AclEntry.supportedOperations`: what each kind of resource knows.
OPERATIONS = {
    ResourceType.TOPIC: tuple(map(AclOperation, (3, 4, 5, 6, 7, 8, 10, 11))),
    ResourceType.GROUP: tuple(map(AclOperation, (3, 6, 8, 10, 11))),
    ResourceType.CLUSTER: tuple(map(AclOperation, (5, 7, 8, 9, 10, 11, 12))),
}

#: The same as the bits that responses have (`authorized_operations`, KIP-430): all are allowed.
ALL_OPERATIONS = {
    resource: sum(1 << code for code in codes) for resource, codes in OPERATIONS.items()
}


class Extent(Enum):
    """What a need is about that is not about names. No string: a group may be called «*»."""

    ALL = auto()  #: every resource of the type that there is
    ANY = auto()  #: one is enough, whichever (`Authorizer.authorizeByResourceType`)


@dataclass(slots=True, frozen=True)
class Where:
    """The need is there only where `field` has one of `values`: a field beside the name, or of
    the request itself, as a path («replica_state.replica_id»)."""

    field: str
    values: Container[object]

    def holds(self, beside: object) -> bool:
        value: Any = beside
        for name in self.field.split("."):
            if value is None:
                return False
            value = getattr(value, name)
        return value in self.values


@dataclass(slots=True, frozen=True)
class Need:
    """`operation` on each resource that a request names.

    `names`: paths into the request («topics.name» walks the list `topics`); what a version does not
    carry is not looked at. A null list means all resources there are, and so does an empty one up
    to version `empty_is_all_until`. A null name and a zero topic id are none. Without paths the
    need is about `whole`; and the cluster has one name: with paths it is asked about wherever they
    lead. `instead`: the one other need that is as good as this one."""

    resource: ResourceType
    operation: AclOperation
    names: tuple[str, ...] = ()
    whole: str | Extent = CLUSTER_NAME
    where: Where | None = None
    empty_is_all_until: int = -1
    instead: Need | None = None

    def in_version(self, request: type[Struct], version: int) -> Need | None:
        """The need as requests of `version` have it; None if that has none of its fields."""
        instead = self.instead and self.instead.in_version(request, version)
        if not self.names:
            return replace(self, instead=instead)
        names = tuple(path for path in self.names if is_carried(request, path, version))
        if not names:
            return None
        until = self.empty_is_all_until - version
        return replace(self, names=names, empty_is_all_until=until, instead=instead)

    def named_in(self, body: Message) -> Iterator[str | UUID | Extent]:
        """What `body` needs it for; a topic by its id, where the request has that. Of a need that
        `in_version` gave. For tests, which compare with it what guards ask."""
        if not self.names:
            if self.where is None or self.where.holds(body):
                yield self.whole
            return
        for path in self.names:
            yield from self._walk(body, path.split("."))

    def _walk(self, value: Any, path: list[str]) -> Iterator[str | UUID | Extent]:  # noqa: ANN401
        """`value`: a struct, by the types of the message."""
        if len(path) == 1 and self.where is not None and not self.where.holds(value):
            return
        found = getattr(value, path[0])
        is_list = isinstance(found, list)
        if found is None:
            is_list = isinstance(dict(fields_of(type(value)))[path[0]].kind, Array)
            if is_list and len(path) > 1:
                yield Extent.ALL
        elif isinstance(found, Struct):
            yield from self._walk(found, path[1:])
        elif is_list and not found:
            if self.empty_is_all_until >= 0:
                yield Extent.ALL
        elif len(path) > 1:
            for element in found:
                yield from self._walk(element, path[1:])
        elif self.resource is ResourceType.CLUSTER:
            yield self.whole
        elif is_list:
            yield from found
        elif found != ZERO_UUID:
            yield found


def is_carried(request: type[Struct], path: str, version: int) -> bool:
    """Whether requests of `version` have this field. KeyError if no version has."""
    kind: Any = request
    is_there = True
    for name in path.split("."):
        spec = dict(fields_of(kind))[name]
        is_there = is_there and spec.versions.covers(version)
        kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
    return is_there
