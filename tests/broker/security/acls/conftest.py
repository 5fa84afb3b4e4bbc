"""A server with an authorizer, users who log in by PLAIN, and ACLs in a line of text.

«alice READ TOPIC a» allows; `-` before it denies; `TOPIC a*` is a prefix, `TOPIC *` is all."""

import dataclasses

import pytest

from broker.authorization import AclOperation, ResourceType
from broker.security.acls.bindings import AclBinding, PatternType, Permission
from wire.kafka.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from wire.kafka.messages.acls import AclCreation, DeleteAclsFilter
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USERS = ("admin", "alice", "bob")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required {};".format(
    " ".join(f'user_{user}="{user}"' for user in USERS)
)
GUARDED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": STANDARD,
    "super.users": "User:root;User:admin",
}


def acl_of(text):
    permission = Permission.DENY if text.startswith("-") else Permission.ALLOW
    who, operation, kind, *name = text.removeprefix("-").split(" ")
    name = " ".join(name) or "kafka-cluster"
    pattern = PatternType.LITERAL
    if name != "*" and name.endswith("*"):
        name, pattern = name[:-1], PatternType.PREFIXED
    who, _, host = who.partition("@")
    return AclBinding(
        ResourceType[kind], name, pattern, f"User:{who}", host or "*", AclOperation[operation],
        permission,
    )  # fmt: skip


def creation(acl):
    return AclCreation(
        int(acl.resource_type), acl.name, int(acl.pattern_type), acl.principal, acl.host,
        int(acl.operation), int(acl.permission),
    )  # fmt: skip


def exactly(acl):
    return DeleteAclsFilter(
        int(acl.resource_type), acl.name, int(acl.pattern_type), acl.principal, acl.host,
        int(acl.operation), int(acl.permission),
    )  # fmt: skip


EVERYTHING = DescribeAclsRequest(1, None, 1, None, None, 1, 1)


@dataclasses.dataclass
class Guarded:
    server: object
    admin: object

    async def login(self, user):
        client = await self.server.connect()
        assert (await client.call(SaslHandshakeRequest("PLAIN"))).error_code == 0
        token = f"\0{user}\0{user}".encode()
        assert (await client.call(SaslAuthenticateRequest(token))).error_code == 0
        return client

    async def allow(self, *texts):
        """By requests, as a tool would."""
        creations = [creation(acl_of(text)) for text in texts]
        answer = await self.admin.call(CreateAclsRequest(creations))
        assert [(one.error_code, one.error_message) for one in answer.results] == [(0, "")] * len(
            texts
        )

    async def take_back(self, *texts):
        filters = [exactly(acl_of(text)) for text in texts]
        answer = await self.admin.call(DeleteAclsRequest(filters))
        assert [len(one.matching_acls) for one in answer.filter_results] == [1] * len(texts)


@pytest.fixture
def start_guarded(start_server):
    async def start(**settings):
        more = {name.replace("_", "."): text for name, text in settings.items()}
        server = await start_server({**GUARDED, **more})
        guarded = Guarded(server, None)
        guarded.admin = await guarded.login("admin")
        return guarded

    return start


@pytest.fixture
async def guarded(start_guarded):
    return await start_guarded()
