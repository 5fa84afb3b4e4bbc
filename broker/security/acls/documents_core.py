"""ACLs as documents in metadata. Pure.

    /quire/acls/<00-ff>    a JSON list of [resource type, name, pattern type, principal, host,
                           operation, permission], the codes as numbers, in order

An ACL is in the document that a hash of all its parts says. So 100,000 of them are some 400 a
document, whatever they are about, and a change rewrites one document of some 50 KB. A document has
DOCUMENT_BYTES_MAX at most: reading one is a short turn of the loop, and one request to metadata.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from broker.authorization import AclOperation, ResourceType
from broker.security.acls.bindings import AclBinding, PatternType, Permission

if TYPE_CHECKING:
    from collections.abc import Iterable

ACLS_PATH = "/quire/acls"
DOCUMENT_BYTES_MAX = 256 << 10


def document_of(acl: AclBinding) -> str:
    """The name of the document that has it."""
    return hashlib.sha256(_line(acl).encode()).hexdigest()[:2]


def encode(acls: Iterable[AclBinding]) -> bytes:
    lines = sorted(map(_line, acls))
    return f"[{','.join(lines)}]".encode()


def decode(data: bytes) -> frozenset[AclBinding]:
    """ValueError: it is not understood."""
    return frozenset(
        AclBinding(
            ResourceType(kind),
            name,
            PatternType(pattern),
            principal,
            host,
            AclOperation(operation),
            Permission(permission),
        )
        for kind, name, pattern, principal, host, operation, permission in json.loads(data or "[]")
    )


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
