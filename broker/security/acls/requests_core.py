"""What clients may ask of ACLs: their messages as bindings and filters, and what is wrong with them
(Kafka's `AclApis`, `AclControlManager`). Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from broker.authorization import CLUSTER_NAME, AclOperation, ResourceType
from broker.security.acls.bindings import (
    ANY,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
)
from broker.security.acls.index_core import NAME_CHARACTERS_MAX
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from wire.kafka.messages.acls import AclCreation, DeleteAclsFilter, DescribeAclsRequest

E = TypeVar("E", bound=IntEnum)

#: Of one request, deleted (`QuorumController.MAX_RECORDS_PER_USER_OP`).
DELETIONS_MAX = 10_000
#: Of a principal and of a host, so that an ACL fits its document.
CHARACTERS_MAX = 2048
_FOR_FILTERS = {0: "UNKNOWN", 1: "ANY", 2: "MATCH"}


def binding_of(asked: AclCreation) -> AclBinding:
    """KafkaError INVALID_REQUEST."""
    resource_type = _known(ResourceType, asked.resource_type, "resourceType")
    pattern_type = _known(PatternType, asked.resource_pattern_type, "patternType")
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {pattern_type.name}")
    operation = _known(AclOperation, asked.operation, "operation")
    permission = _known(Permission, asked.permission_type, "permissionType")
    name = asked.resource_name
    if resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise _invalid("Resource name should not be empty")
    if len(name) > NAME_CHARACTERS_MAX:
        raise _invalid(f"Resource name is longer than {NAME_CHARACTERS_MAX} characters")
    kind, colon, who = asked.principal.partition(":")
    if not (kind and colon and who):
        raise _invalid("Could not parse principal: expected a type and a name, as User:name")
    if not asked.host:
        raise _invalid("Host should not be empty")
    if max(len(asked.principal), len(asked.host)) > CHARACTERS_MAX:
        raise _invalid(f"Principal or host is longer than {CHARACTERS_MAX} characters")
    return AclBinding(
        resource_type, name, pattern_type, asked.principal, asked.host, operation, permission
    )


def filter_of(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """KafkaError INVALID_REQUEST: of a code that nothing has."""
    _check(ResourceType, asked.resource_type_filter, "resourceType")
    _check(AclOperation, asked.operation, "operation")
    _check(Permission, asked.permission_type, "permissionType")
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        _known(PatternType, asked.pattern_type_filter, "patternType"),
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _check(kind: type[IntEnum], code: int, what: str) -> None:
    if code != ANY:
        _known(kind, code, what)


def _known(kind: type[E], code: int, what: str) -> E:
    try:
        return kind(code)
    except ValueError:
        raise _invalid(f"Invalid {what} {_FOR_FILTERS.get(code, code)}") from None


def _invalid(words: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, words)
