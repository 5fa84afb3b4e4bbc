"""AclIndex: the ACLs in memory, and what they say of a request, as `StandardAuthorizerData` has it.

The order of a decision:

1. A super user may, whatever is denied.
2. A DENY that applies refuses: of the resource's literal name, of a prefix of it, or of `*`.
3. An ALLOW that applies allows. READ, WRITE, DELETE and ALTER allow DESCRIBE, too, and
   ALTER_CONFIGS allows DESCRIBE_CONFIGS; they do not deny it.
4. If any ACL is about the resource, whoever it is about: no.
5. `allow.everyone.if.no.acl.found`.

The cost of a decision does not grow with the ACLs: one look-up for the literal name, one for `*`,
and those of `Prefixes`; in each pattern that was found four, for the principal or everybody, from
the host or anywhere. NAME_CHARACTERS_MAX bounds how many prefixes may fit a name.
`decide_any` walks over the patterns of a principal only if an operation is both allowed and denied
to it.

Pure; one owner, no waiting in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from broker.authorization import AclOperation, ResourceType
from broker.security.acls.bindings import (
    ANY,
    EVERYBODY,
    WILDCARD,
    AclBinding,
    PatternType,
    Permission,
    canonical_host,
)
from broker.security.acls.prefixes_core import Prefixes
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.security.acls.bindings import AclFilter

#: Of the resource of an ACL: lengths of prefixes that one decision looks up are bounded by it.
NAME_CHARACTERS_MAX = 2048
#: What `Authorizer.authorizeByResourceType` asks first, so that super users and ACLs of `*` count.
_PROBE = "hardcode"


class Reason(Enum):
    """What decided, where no ACL did; as Kafka's audit log calls it."""

    SUPER_USER = "SuperUser"
    DEFAULT_ALLOW = "DefaultAllow"
    DEFAULT_DENY = "DefaultDeny"
    #: Of `decide_any`: of all ACLs together.
    SOME_RESOURCE = "SomeResource"
    NOT_LOADED = "NotLoaded"


@dataclass(slots=True, frozen=True)
class Decision:
    is_allowed: bool
    rule: AclBinding | Reason


_SUPER_USER = Decision(is_allowed=True, rule=Reason.SUPER_USER)
_DEFAULT_ALLOW = Decision(is_allowed=True, rule=Reason.DEFAULT_ALLOW)
_DEFAULT_DENY = Decision(is_allowed=False, rule=Reason.DEFAULT_DENY)
_SOME_RESOURCE = Decision(is_allowed=True, rule=Reason.SOME_RESOURCE)


def _bit(operation: AclOperation) -> int:
    return 1 << operation


#: Which operations of an ACL are about an operation, as bits.
_DENYING = {each: _bit(each) | _bit(AclOperation.ALL) for each in AclOperation}
_ALLOWING = dict(_DENYING)
for _implying in (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER):
    _ALLOWING[AclOperation.DESCRIBE] |= _bit(_implying)
_ALLOWING[AclOperation.DESCRIBE_CONFIGS] |= _bit(AclOperation.ALTER_CONFIGS)

#: Principal and host, which may be EVERYBODY and WILDCARD.
_Who = tuple[str, str]
_Pattern = tuple[PatternType, str]
_EVERYTHING: _Pattern = (PatternType.LITERAL, WILDCARD)
_Said = tuple[Permission, _Who, AclOperation]


class _Grants:
    """What one pattern says of one `_Who`. Several ACLs may be about the same address."""

    __slots__ = ("acls", "allowed", "denied")

    def __init__(self) -> None:
        self.acls: dict[AclBinding, None] = {}
        self.allowed = 0
        self.denied = 0

    def count(self) -> None:
        self.allowed = self.denied = 0
        for acl in self.acls:
            if acl.permission is Permission.ALLOW:
                self.allowed |= _bit(acl.operation)
            else:
                self.denied |= _bit(acl.operation)

    def rule(self, permission: Permission, operations: int) -> AclBinding:
        return next(
            acl
            for acl in self.acls
            if acl.permission is permission and _bit(acl.operation) & operations
        )


@dataclass(slots=True)
class _Patterns:
    """Of one type of resources."""

    literals: dict[str, dict[_Who, _Grants]] = field(default_factory=dict)
    prefixes: dict[str, dict[_Who, _Grants]] = field(default_factory=dict)
    #: The same, to be found by the names they fit.
    beginnings: Prefixes[dict[_Who, _Grants]] = field(default_factory=Prefixes)
    #: The same grants by whom they are of.
    by_who: dict[_Who, dict[_Pattern, _Grants]] = field(default_factory=dict)
    #: Patterns of ACLs of a permission, by whom and what they are about, and how many ACLs say so.
    said: dict[_Said, Counter[_Pattern]] = field(default_factory=dict)

    def of(self, pattern_type: PatternType) -> dict[str, dict[_Who, _Grants]]:
        return self.literals if pattern_type is PatternType.LITERAL else self.prefixes

    def matching(self, name: str) -> Iterator[dict[_Who, _Grants]]:
        """What the patterns that fit `name` say."""
        found = self.literals.get(name)
        if found is not None:
            yield found
        if name != WILDCARD:
            found = self.literals.get(WILDCARD)
            if found is not None:
                yield found
        for _, found in self.beginnings.beginning(name):
            yield found

    def has(self, permission: Permission, whose: Iterable[_Who], operation: AclOperation) -> bool:
        """Whether any pattern says so; nothing is implied."""
        return bool(self.patterns(permission, whose, operation))

    def patterns(
        self, permission: Permission, whose: Iterable[_Who], operation: AclOperation
    ) -> list[Counter[_Pattern]]:
        """Of those that say so, by whom and of which operation."""
        each = (operation, AclOperation.ALL)
        keys = ((permission, who, one) for who in whose for one in each)
        return [self.said[key] for key in keys if key in self.said]

    def has_undenied(self, whose: Iterable[_Who], operation: AclOperation) -> bool:
        """Whether some pattern allows it, and no pattern denies all that it is about. The first one
        is looked for: there may be very many."""
        denied = self.patterns(Permission.DENY, whose, operation)
        if any(_EVERYTHING in some for some in denied):
            return False
        return any(
            pattern == _EVERYTHING or not self._is_dominated(pattern, denied)
            for some in self.patterns(Permission.ALLOW, whose, operation)
            for pattern in some
        )

    def _is_dominated(self, pattern: _Pattern, denied: list[Counter[_Pattern]]) -> bool:
        """Whether all that it is about is denied."""
        kind, name = pattern
        if kind is PatternType.LITERAL and any(pattern in some for some in denied):
            return True
        return any(
            (PatternType.PREFIXED, prefix) in some
            for prefix, _ in self.beginnings.beginning(name)
            for some in denied
        )

    def count_said(self, acl: AclBinding, who: _Who, change: int) -> None:
        key, pattern = (acl.permission, who, acl.operation), (acl.pattern_type, acl.name)
        patterns = self.said.setdefault(key, Counter())
        patterns[pattern] += change
        if not patterns[pattern]:
            del patterns[pattern]
        if not patterns:
            del self.said[key]


class AclIndex:
    def __init__(
        self, super_users: Iterable[str] = (), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        """`super_users`: «Type:name», exactly as the principal reads."""
        self._super_users = frozenset(super_users)
        self._default = _DEFAULT_ALLOW if allow_everyone_if_no_acl_found else _DEFAULT_DENY
        self._types = {each: _Patterns() for each in ResourceType}
        self._acls: dict[AclBinding, None] = {}
        #: Another one after each change.
        self.generation = 0

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: AclBinding) -> bool:
        return acl in self._acls

    # -- changes ----------------------------------------------------------------------------------

    def add(self, acl: AclBinding) -> bool:
        """False: it is there."""
        if acl in self._acls:
            return False
        self._acls[acl] = None
        self.generation += 1
        of_type = self._types[acl.resource_type]
        patterns = of_type.of(acl.pattern_type)
        if acl.name not in patterns:
            patterns[acl.name] = {}
            if acl.pattern_type is PatternType.PREFIXED:
                of_type.beginnings.add(acl.name, patterns[acl.name])
        who = _who(acl)
        grants = patterns[acl.name].get(who)
        if grants is None:
            grants = patterns[acl.name][who] = _Grants()
            of_type.by_who.setdefault(who, {})[acl.pattern_type, acl.name] = grants
        grants.acls[acl] = None
        grants.count()
        of_type.count_said(acl, who, 1)
        return True

    def remove(self, acl: AclBinding) -> bool:
        """False: it is not there."""
        if acl not in self._acls:
            return False
        del self._acls[acl]
        self.generation += 1
        of_type = self._types[acl.resource_type]
        patterns = of_type.of(acl.pattern_type)
        who = _who(acl)
        grants = patterns[acl.name][who]
        del grants.acls[acl]
        grants.count()
        of_type.count_said(acl, who, -1)
        if grants.acls:
            return True
        del patterns[acl.name][who]
        del of_type.by_who[who][acl.pattern_type, acl.name]
        if not of_type.by_who[who]:
            del of_type.by_who[who]
        if not patterns[acl.name]:
            del patterns[acl.name]
            if acl.pattern_type is PatternType.PREFIXED:
                of_type.beginnings.remove(acl.name)
        return True

    # -- look-ups ---------------------------------------------------------------------------------

    def candidates(self, wanted: AclFilter) -> list[AclBinding]:
        """All that `wanted` may match, as of now, and with no name others; some microseconds for
        one that has a name, a millisecond for each 100,000 ACLs otherwise. Whoever walks over them
        asks `wanted.matches` of each, in slices."""
        if wanted.name is None:
            return list(self._acls)
        found: list[AclBinding] = []
        for resource_type, patterns in self._types.items():
            if wanted.resource_type not in (ANY, resource_type):
                continue
            if wanted.pattern_type == PatternType.MATCH:
                entries = list(patterns.matching(wanted.name))
            else:
                both = (patterns.literals, patterns.prefixes)
                entries = [each[wanted.name] for each in both if wanted.name in each]
            for entry in entries:
                for grants in entry.values():
                    found.extend(grants.acls)
        return found

    def may_from_somewhere(
        self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether some ALLOW is about it, from whichever host, and from anywhere no DENY."""
        if self.decide(principal, WILDCARD, operation, resource_type, name).is_allowed:
            return True
        return any(
            grants.allowed & _ALLOWING[operation]
            for entry in self._types[resource_type].matching(name)
            for (who, _), grants in entry.items()
            if who in (principal, EVERYBODY)
        )

    # -- decisions --------------------------------------------------------------------------------

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """Whether `principal` may from `host`, an address."""
        if principal in self._super_users:
            return _SUPER_USER
        whose = _whose(principal, host)
        denying, allowing = _DENYING[operation], _ALLOWING[operation]
        allowed: _Grants | None = None
        has_acls = False
        for entry in self._types[resource_type].matching(name):
            has_acls = True
            for who in whose:
                grants = entry.get(who)
                if grants is None:
                    continue
                if grants.denied & denying:
                    return Decision(is_allowed=False, rule=grants.rule(Permission.DENY, denying))
                if allowed is None and grants.allowed & allowing:
                    allowed = grants
        if allowed is not None:
            return Decision(is_allowed=True, rule=allowed.rule(Permission.ALLOW, allowing))
        return _DEFAULT_DENY if has_acls else self._default

    def decide_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> Decision:
        """Whether it may to some resource (`Authorizer.authorizeByResourceType`): a pattern allows
        it, and none denies all that the pattern is about. Nothing is implied here."""
        probed = self.decide(principal, host, operation, resource_type, _PROBE)
        if probed.is_allowed:
            return probed
        of_type, whose = self._types[resource_type], _whose(principal, host)
        if not of_type.has(Permission.ALLOW, whose, operation):
            return _DEFAULT_DENY
        is_denied = of_type.has(Permission.DENY, whose, operation)
        if is_denied and not of_type.has_undenied(whose, operation):
            return _DEFAULT_DENY
        return _SOME_RESOURCE

    def decide_all(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> Decision:
        """Whether it may to each resource that there may be."""
        if principal in self._super_users:
            return _SUPER_USER
        of_type, whose = self._types[resource_type], _whose(principal, host)
        if of_type.has(Permission.DENY, whose, operation):
            return _DEFAULT_DENY
        entry = of_type.literals.get(WILDCARD, {})
        allowing = _ALLOWING[operation]
        for who in whose:
            grants = entry.get(who)
            if grants is not None and grants.allowed & allowing:
                return Decision(is_allowed=True, rule=grants.rule(Permission.ALLOW, allowing))
        return _DEFAULT_DENY if of_type.by_who else self._default


def _who(acl: AclBinding) -> _Who:
    return acl.principal, canonical_host(acl.host)


def _whose(principal: str, host: str) -> tuple[_Who, ...]:
    address = canonical_host(host)
    return (
        (principal, WILDCARD),
        (principal, address),
        (EVERYBODY, WILDCARD),
        (EVERYBODY, address),
    )
