"""The rules of StandardAuthorizer one by one over a list: slow, and to be compared with."""

import ipaddress

from broker.authorization import AclOperation as Op
from broker.security.acls.bindings import PatternType, Permission

IMPLIES = {
    Op.DESCRIBE: {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER},
    Op.DESCRIBE_CONFIGS: {Op.ALTER_CONFIGS},
}


def same_address(one, other):
    def of(text):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        return getattr(address, "ipv4_mapped", None) or address

    return of(one) == of(other)


def is_about(acl, resource_type, name):
    if acl.resource_type != resource_type:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def fits(acl, principal, host):
    is_principal = acl.principal in (principal, "User:*")
    return is_principal and (acl.host == "*" or same_address(acl.host, host))


def is_of(acl, operation, *, implied=True):
    if acl.operation in (operation, Op.ALL):
        return True
    allows = acl.permission is Permission.ALLOW
    return implied and allows and acl.operation in IMPLIES.get(operation, ())


class Naive:
    def __init__(self, super_users=(), *, allow_everyone=False):
        self.super_users, self.allow_everyone = super_users, allow_everyone
        self.acls = []

    def decide(self, principal, host, operation, resource_type, name):
        if principal in self.super_users:
            return True
        about = [acl for acl in self.acls if is_about(acl, resource_type, name)]
        said = {
            acl.permission for acl in about if fits(acl, principal, host) and is_of(acl, operation)
        }
        if Permission.DENY in said:
            return False
        if Permission.ALLOW in said:
            return True
        return self.allow_everyone and not about

    def decide_any(self, principal, host, operation, resource_type):
        """`Authorizer.authorizeByResourceType`, as its default method has it."""
        if self.decide(principal, host, operation, resource_type, "hardcode"):
            return True
        own = [
            acl
            for acl in self.acls
            if acl.resource_type == resource_type
            and fits(acl, principal, host)
            and is_of(acl, operation, implied=False)
        ]
        denials = [acl for acl in own if acl.permission is Permission.DENY]
        if any((d.pattern_type, d.name) == (PatternType.LITERAL, "*") for d in denials):
            return False
        for acl in own:
            if acl.permission is Permission.DENY:
                continue
            if (acl.pattern_type, acl.name) == (PatternType.LITERAL, "*"):
                return True
            if not any(self._dominates(denial, acl) for denial in denials):
                return True
        return False

    @staticmethod
    def _dominates(denial, acl):
        if denial.pattern_type is PatternType.PREFIXED:
            # Kafka tries the prefixes of one character and more.
            return denial.name != "" and acl.name.startswith(denial.name)
        return acl.pattern_type is PatternType.LITERAL and denial.name == acl.name

    def decide_all(self, principal, host, operation, resource_type):
        if principal in self.super_users:
            return True
        of_type = [acl for acl in self.acls if acl.resource_type == resource_type]
        own = [acl for acl in of_type if fits(acl, principal, host) and is_of(acl, operation)]
        if any(acl.permission is Permission.DENY for acl in own):
            return False
        if any((acl.pattern_type, acl.name) == (PatternType.LITERAL, "*") for acl in own):
            return True
        return self.allow_everyone and not of_type
