"""Decisions: what the index decided, remembered until an ACL changes. Pure.

A decision costs some microseconds and is made for each name of each request; looking up what was
decided before costs one. What is remembered is of one generation of the index, so that a change of
an ACL counts for the next request, and bounded in number and by the lengths of names: both are the
clients'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.authorization import Extent

if TYPE_CHECKING:
    from broker.authorization import AclOperation, ResourceType
    from broker.security.acls.index_core import AclIndex, Decision
    from broker.security.principal import Principal

#: Some 4 MB.
DECISIONS_MAX = 10_000
#: Of a resource's name and of a host; the longest name of a topic has as many.
CHARACTERS_MAX = 249


#: Room for a type of resources beside an operation.
_TYPE_BITS = 4


class Decisions:
    def __init__(self, index: AclIndex, decisions_max: int = DECISIONS_MAX) -> None:
        self._index = index
        self._decisions_max = decisions_max
        self._generation = index.generation
        self._kept: dict[tuple[object, ...], Decision] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | Extent,
    ) -> Decision:
        """As `AclIndex.decide`, `decide_any` and `decide_all` have it."""
        if self._generation != self._index.generation:
            self._kept.clear()
            self._generation = self._index.generation
        # Numbers and texts: the hash of an enum's member, or of a dataclass, is a call of Python's.
        what = operation << _TYPE_BITS | resource_type
        key = (principal.name, principal.type, host, what, name)
        found = self._kept.get(key)
        if found is not None:
            return found
        index, who = self._index, str(principal)
        if name is Extent.ANY:
            made = index.decide_any(who, host, operation, resource_type)
        elif name is Extent.ALL:
            made = index.decide_all(who, host, operation, resource_type)
        else:
            assert isinstance(name, str)
            made = index.decide(who, host, operation, resource_type, name)
            if len(name) > CHARACTERS_MAX:
                return made
        if len(self._kept) >= self._decisions_max:
            self._kept.clear()
        self._kept[key] = made
        return made
