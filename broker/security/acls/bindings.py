"""An ACL (Kafka's `AclBinding`) and a filter of them (`AclBindingFilter`), KIP-11, KIP-290. Pure.

An ACL allows or denies one operation on a pattern's resources to one principal from one host.

| pattern | whose resources |
|--|--|
| LITERAL `*` | all of the type |
| LITERAL, any other name | the one of that name |
| PREFIXED | those whose names begin so; `*` is the character |

A principal is matched as text («User:alice»); `User:*` is everybody's. A host is `*` or an address.
Addresses are compared, not their spellings: Kafka compares with Java's spelling of the peer's, so
an IPv6 address written in another way never matches there. Names of hosts, masks and decimal
numbers with leading zeros match nobody.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.authorization import AclOperation, ResourceType

#: Of names, hosts, and of the name of a principal.
WILDCARD = "*"
EVERYBODY = "User:*"
#: What fits every type, operation or permission, in a filter.
ANY = 1
#: Spellings of hosts whose addresses are remembered.
_HOSTS_KEPT = 4096


class PatternType(IntEnum):
    """Kafka's `org.apache.kafka.common.resource.PatternType`. ANY and MATCH are for filters."""

    ANY = 1
    #: Whatever applies to the resource of the filter's name.
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's `org.apache.kafka.common.acl.AclPermissionType`."""

    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    #: «Type:name».
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    def describe(self) -> str:
        """As the rule of a decision is logged, in Kafka's words."""
        return (
            f"StandardAcl(resourceType={self.resource_type.name}, resourceName={self.name},"
            f" patternType={self.pattern_type.name}, principal={self.principal}, host={self.host},"
            f" operation={self.operation.name}, permissionType={self.permission.name})"
        )


class AclFilter(NamedTuple):
    """`resource_type`, `operation` and `permission` are the codes on the wire: one that nothing
    has, such as that of a later version, matches nothing. None: any."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches(self, acl: AclBinding) -> bool:
        """Texts are compared as they are written, hosts too."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        wanted, name = self.pattern_type, self.name
        if wanted not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if wanted != PatternType.MATCH:
            return name == acl.name
        if acl.pattern_type is PatternType.LITERAL:
            return acl.name in (name, WILDCARD)
        return name.startswith(acl.name)


@lru_cache(maxsize=_HOSTS_KEPT)
def canonical_host(text: str) -> str:
    """One spelling of each address; an IPv4 one that is mapped to IPv6 is the IPv4 one. What is no
    address stays as it is."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
