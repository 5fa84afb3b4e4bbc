"""ACLs as documents in metadata. Pure.

    /quire/acls/<00-ff>    a JSON list of [resource type, name, pattern type, principal, host,
                           operation, permission], the codes as numbers, in order

An ACL is in the document that a hash of all its parts says. So 100,000 of them are some 400 a
document, whatever they are about, and a change rewrites one document of some 50 KB. A document has
DOCUMENT_BYTES_MAX at most: it is one request to metadata. Who chooses ACLs can fill one document
with thousands: reading and writing one goes in steps.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from broker.authorization import AclOperation, ResourceType
from broker.security.acls.bindings import AclBinding, PatternType, Permission

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import TypeVar

    T = TypeVar("T")
    #: As `broker.api.Steps`: each yields its cost, in units of about a microsecond.
    Steps = Generator[int, None, T]

ACLS_PATH = "/quire/acls"
#: The JSON of one is parsed at once.
DOCUMENT_BYTES_MAX = 128 << 10
#: Of an ACL, read or written.
ACL_UNITS = 10


def document_of(acl: AclBinding) -> str:
    """The name of the document that has it."""
    return hashlib.sha256(_line(acl).encode()).hexdigest()[:2]


def encoding(acls: Iterable[AclBinding]) -> Steps[bytes]:
    lines = []
    for acl in acls:
        yield ACL_UNITS
        lines.append(_line(acl))
    lines.sort()
    return f"[{','.join(lines)}]".encode()


def decoding(data: bytes) -> Steps[frozenset[AclBinding]]:
    """ValueError, TypeError: it is not understood."""
    acls = set()
    for kind, name, pattern, principal, host, operation, permission in json.loads(data or "[]"):
        yield ACL_UNITS
        acls.add(
            AclBinding(
                ResourceType(kind),
                name,
                PatternType(pattern),
                principal,
                host,
                AclOperation(operation),
                Permission(permission),
            )
        )
    return frozenset(acls)


def _line(acl: AclBinding) -> str:
    parts = (
        int(acl.resource_type),
        acl.name,
        int(acl.pattern_type),
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )
    return json.dumps(parts, separators=(",", ":"))
