"""Settings of rights: who is asked whether a client may, and what is true without an ACL (Kafka's
`ServerConfigs` and `StandardAuthorizer`).

Deviation: super.users is read at the start only, and so is the rest, as in Kafka.
"""

from __future__ import annotations

from broker.cluster.config_ssl import SslConfig
from runtime.config import ConfigError, ConfigType, ConfigValue
from runtime.settings import setting, settings_part

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)


def _check_class(value: ConfigValue) -> str | None:
    if value in ("", STANDARD_AUTHORIZER):
        return None
    if value in _OF_ZOOKEEPER:
        return f"its successor is served, and knows nothing of its ACLs: {STANDARD_AUTHORIZER}"
    return f"no other class can be asked than {STANDARD_AUTHORIZER}"


def parse_super_users(text: str) -> tuple[str, ...]:
    """`User:a;User:b` as principals, each as it reads (Kafka's `StandardAuthorizer`). ConfigError:
    one that has no type."""
    users = tuple(part.strip() for part in text.split(";") if part.strip())
    for user in users:
        kind, colon, name = user.partition(":")
        if not (kind and colon and name):
            raise ConfigError("super.users", f"{user!r} is no principal, as User:name would be")
    return users


def _check_super_users(value: ConfigValue) -> str | None:
    try:
        parse_super_users(str(value))
    except ConfigError as error:
        return str(error)
    return None


@settings_part
class AclConfig(SslConfig):
    """The broker's part. A chain of classes, as one with slots has one base."""

    authorizer_class_name: str = setting(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        _check_class,
        doc=f"Who is asked whether a client may: {STANDARD_AUTHORIZER}. Empty: everybody may do"
        " everything.",
    )
    super_users: str = setting(
        "super.users",
        ConfigType.STRING,
        "",
        _check_super_users,
        doc="Principals that may do everything, whatever an ACL denies: User:a;User:b.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        "false",
        doc="Whether everybody may do everything with a resource that no ACL is about.",
    )
