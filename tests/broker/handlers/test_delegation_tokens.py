"""Delegation tokens asked for over the wire: who may, Kafka's errors, and logins by them."""

import base64

import pytest

from broker.api import ConnectionInfo, Request, all_steps
from broker.authorization import AclOperation, ResourceType
from broker.handlers.delegation_tokens import DelegationTokensHandler
from broker.security.principal import Principal
from broker.security.sasl.scram.hashes import SCRAM_SHA_512
from broker.security.tokens.token_core import RENEWERS_MAX, Token
from tests.broker import driven
from tests.broker.security.sasl.conftest import JAAS, Speaker
from tests.broker.security.sasl.scram.test_scram_core import final
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode, encode
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AlterUserScramCredentialsRequest,
    CreateDelegationTokenRequest,
    DescribeConfigsRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
)
from wire.kafka.messages.configs import DescribeConfigsResource
from wire.kafka.messages.security import (
    CreatableRenewers,
    DescribeDelegationTokenOwner,
    ScramCredentialUpsertion,
)

SECRET = "the brokers' own"
LISTENER = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "delegation.token.secret.key": SECRET,
    "delegation.token.expiry.time.ms": "60000",
}


@pytest.fixture
def start(start_server):
    async def start(**settings):
        given = {name.replace("_", "."): text for name, text in settings.items()}
        merged = {name: text for name, text in (LISTENER | given).items() if text is not None}
        return Asking(await start_server(merged))

    return start


class Asking:
    def __init__(self, server):
        self.server = server

    async def log_in(self, user="alice", password="wonder"):
        speaker = Speaker(await self.server.connect())
        assert (await speaker.login(user, password)).error_code == 0
        return Client(speaker.client)

    async def by_token(self, token_id, token_hmac, more=",tokenauth=true"):
        """(the client, the answer to its last message)"""
        return await self.by_password(token_id, base64.b64encode(token_hmac).decode(), more)

    async def by_password(self, name, password, more=""):
        speaker = Speaker(await self.server.connect())
        assert (await speaker.handshake(SCRAM_SHA_512.name)).error_code == 0
        first = f"n,,n={name},r=nonce{more}".encode()
        answer = await speaker.authenticate(first)
        assert answer.error_code == 0
        last = final(answer.auth_bytes, first, password, SCRAM_SHA_512)
        return Client(speaker.client), await speaker.authenticate(last)


class Client:
    """Answers as (error's name, answer)."""

    def __init__(self, client):
        self.client = client

    async def ask(self, body, version=None):
        answer = await self.client.call(body, version)
        return ErrorCode(answer.error_code).name, answer

    async def create(self, *renewers, owner=None, lifetime_ms=-1, version=None):
        kind, name = owner or (None, None)
        wanted = [CreatableRenewers(*one) for one in renewers]
        return await self.ask(
            CreateDelegationTokenRequest(kind, name, wanted, lifetime_ms), version
        )

    async def renew(self, token_hmac, period_ms=-1, version=None):
        return await self.ask(RenewDelegationTokenRequest(token_hmac, period_ms), version)

    async def expire(self, token_hmac, period_ms=-1, version=None):
        return await self.ask(ExpireDelegationTokenRequest(token_hmac, period_ms), version)

    async def describe(self, *owners, version=None):
        """Of all without an owner."""
        wanted = [DescribeDelegationTokenOwner(*one) for one in owners] or None
        return await self.ask(DescribeDelegationTokenRequest(wanted), version)


BOB = ("User", "bob")
OTHER = ("User", "other")


async def test_a_token_from_its_making_to_its_end(start):
    asking = await start()
    alice = await asking.log_in()
    error, made = await alice.create(BOB)
    assert error == "NONE"
    assert (made.principal_type, made.principal_name) == ("User", "alice")
    assert made.token_requester_principal_name == "alice"
    assert made.expiry_timestamp_ms == made.issue_timestamp_ms + 60_000
    assert made.max_timestamp_ms == made.issue_timestamp_ms + 604_800_000
    assert len(made.hmac) == 64
    error, told = await alice.describe()
    assert error == "NONE"
    [token] = told.tokens
    assert (token.token_id, bytes(token.hmac)) == (made.token_id, bytes(made.hmac))
    assert [(one.principal_type, one.principal_name) for one in token.renewers] == [BOB]
    bob = await asking.log_in("bob", "builder")
    error, renewed = await bob.renew(made.hmac, 30_000)
    assert error == "NONE"
    assert renewed.expiry_timestamp_ms < made.expiry_timestamp_ms
    error, left = await bob.expire(made.hmac)
    assert error == "NONE"
    assert left.expiry_timestamp_ms >= made.issue_timestamp_ms
    assert (await alice.describe())[1].tokens == []
    assert (await alice.renew(made.hmac))[0] == "DELEGATION_TOKEN_NOT_FOUND"


@pytest.mark.parametrize("version", [1, 2])
async def test_by_each_version(start, version):
    alice = await (await start()).log_in()
    error, made = await alice.create(version=version)
    assert (error, made.principal_name) == ("NONE", "alice")
    assert (await alice.renew(made.hmac, version=version))[0] == "NONE"
    assert len((await alice.describe(version=version))[1].tokens) == 1
    assert (await alice.expire(made.hmac, version=version))[0] == "NONE"


async def test_who_logs_in_by_it_is_its_owner_and_asks_for_no_more(start):
    """Attack 33; the session ends with the token."""
    asking = await start()
    alice = await asking.log_in()
    _, made = await alice.create(lifetime_ms=20_000)
    client, answer = await asking.by_token(made.token_id, made.hmac)
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime_ms <= 20_000
    assert (await client.client.call(MetadataRequest(topics=[]))).cluster_id
    refused = "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
    error, none = await client.create()
    assert (error, none.principal_name, none.token_id, none.hmac) == (refused, "alice", "", b"")
    assert (await client.renew(made.hmac))[0] == refused
    assert (await client.expire(made.hmac))[0] == refused
    assert (await client.describe())[0] == refused
    _, other = await alice.create()
    for token_id, token_hmac, more in (
        (made.token_id, other.hmac, ",tokenauth=true"),
        ("alice", made.hmac, ",tokenauth=true"),
        (made.token_id, made.hmac, ""),
        (made.token_id, made.hmac[:-1] + b"x", ",tokenauth=true"),
    ):
        _, answer = await asking.by_token(token_id, token_hmac, more)
        assert ErrorCode(answer.error_code) is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (await alice.expire(made.hmac))[0] == "NONE"
    _, answer = await asking.by_token(made.token_id, made.hmac)
    assert ErrorCode(answer.error_code) is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_attack_17_a_user_who_is_called_as_a_token_is(start):
    """His password is no token's, and a token's is not his: tokenauth says which is asked for."""
    asking = await start()
    alice = await asking.log_in()
    _, made = await alice.create()
    salted = SCRAM_SHA_512.salted(b"his own", b"salt", 4096)
    user = ScramCredentialUpsertion(made.token_id, 2, 4096, b"salt", salted)
    answer = await alice.client.call(AlterUserScramCredentialsRequest([], [user]))
    assert answer.results[0].error_code == 0
    his, its = b"his own", base64.b64encode(made.hmac)
    for password, more, who in (
        (his, "", made.token_id),
        (its, ",tokenauth=true", "alice"),
        (its, "", None),
        (his, ",tokenauth=true", None),
    ):
        client, answer = await asking.by_password(made.token_id, password.decode(), more)
        assert (answer.error_code == 0) == (who is not None)
        if who is not None:
            _, own = await client.create()
            assert own.token_requester_principal_name == who


async def test_for_another_owner(start):
    """Without an authorizer everybody may."""
    asking = await start()
    alice = await asking.log_in()
    error, made = await alice.create(owner=OTHER)
    assert (error, made.principal_name, made.token_requester_principal_name) == (
        "NONE", "other", "alice",
    )  # fmt: skip
    assert (await alice.renew(made.hmac))[0] == "DELEGATION_TOKEN_OWNER_MISMATCH"
    assert (await alice.expire(made.hmac))[0] == "DELEGATION_TOKEN_OWNER_MISMATCH"
    own = (await alice.create(BOB))[1].token_id
    assert [one.token_id for one in (await alice.describe(OTHER))[1].tokens] == [made.token_id]
    assert [one.token_id for one in (await alice.describe(BOB))[1].tokens] == [own]
    assert (await alice.describe(("User", "nobody")))[1].tokens == []
    assert len((await alice.describe(OTHER, ("User", "alice")))[1].tokens) == 2
    assert (await alice.ask(DescribeDelegationTokenRequest([])))[1].tokens == []


async def test_what_is_refused(start):
    asking = await start()
    alice = await asking.log_in()
    assert (await alice.create(("Group", "x")))[0] == "INVALID_PRINCIPAL_TYPE"
    assert (await alice.create(owner=("Group", "x")))[0] == "INVALID_PRINCIPAL_TYPE"
    assert (await alice.create(*[BOB] * (RENEWERS_MAX + 1)))[0] == "INVALID_REQUEST"
    assert (await alice.renew(b""))[0] == "DELEGATION_TOKEN_NOT_FOUND"
    assert (await alice.expire(b"x" * 64))[0] == "DELEGATION_TOKEN_NOT_FOUND"
    _, made = await alice.create(lifetime_ms=1)
    while (await alice.renew(made.hmac))[0] == "NONE":
        pass
    assert (await alice.renew(made.hmac))[0] == "DELEGATION_TOKEN_EXPIRED"
    assert (await alice.expire(made.hmac, 5))[0] == "DELEGATION_TOKEN_EXPIRED"
    assert (await alice.expire(made.hmac))[0] == "NONE"


async def test_without_a_secret_there_are_none(start):
    alice = await (await start(delegation_token_secret_key=None)).log_in()
    disabled = "DELEGATION_TOKEN_AUTH_DISABLED"
    error, made = await alice.create(("Group", "x"))
    assert (error, made.principal_name, made.issue_timestamp_ms) == (disabled, "alice", -1)
    assert (await alice.renew(b"x"))[0] == disabled
    assert (await alice.expire(b"x"))[0] == disabled
    assert (await alice.describe())[0] == disabled


async def test_tokens_outlive_a_restart_and_neither_they_nor_the_secret_are_shown(
    start, caplog, tmp_path
):
    asking = await start()
    alice = await asking.log_in()
    _, made = await alice.create()
    resource = DescribeConfigsResource(4, "0", None)
    answer = await alice.client.call(DescribeConfigsRequest(resources=[resource]))
    settings = {one.name: one.value for one in answer.results[0].configs}
    assert settings["delegation.token.secret.key"] is None
    assert settings["delegation.token.expiry.time.ms"] == "60000"
    await asking.server.stop()
    again = await start()
    _, answer = await again.by_token(made.token_id, made.hmac)
    assert answer.error_code == 0
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("metadata.db*"))
    assert made.token_id.encode().hex().encode() in stored
    for shown in (caplog.text.encode(), stored):
        for secret in (bytes(made.hmac), base64.b64encode(made.hmac), SECRET.encode()):
            assert secret not in shown


# -- with an authorizer ---------------------------------------------------------------------------


class Allowing:
    """Of a request's rights, what it has been told to allow, and over whom not."""

    def __init__(self, *allowed, super_user=None):
        self.allowed = allowed
        self.super_user = super_user

    def allows(self, operation, resource, name, *, is_told=True):
        return (operation, resource, name) in self.allowed

    def is_over(self, principal):
        return principal != self.super_user


class Tokens:
    """Of a store of tokens, that it has one."""

    def items(self):
        owner = Principal(*OTHER)
        yield "an id", Token(owner, owner, (Principal(*BOB),), 1, 2, 3, "", {})

    def hmac(self, token_id):
        return b"its hmac"


def asked(body, authorizer, user="alice", protocol="SASL_SSL", **of_principal):
    """The answer of a handler, through the codec."""
    handler = DelegationTokensHandler(Tokens(), {"L": protocol})
    connection = ConnectionInfo("1", "::1", "L", principal=Principal("User", user, **of_principal))
    key, version = body.INFO.key, max(body.INFO.versions)
    request = Request(key, version, 1, "test", connection, body)
    request.rights = authorizer
    return key, version, handler, request


def described(authorizer, user="alice", **options):
    key, version, handler, request = asked(
        DescribeDelegationTokenRequest(None), authorizer, user, **options
    )
    answer = all_steps(handler.describe(request))
    answer, _ = decode(type(answer), version, encode(answer, version))
    driven.note(key, version, answer, on_wire=False)
    return ErrorCode(answer.error_code).name, [one.token_id for one in answer.tokens]


def test_others_tokens_are_told_to_those_alone_who_may_be():
    of_token = (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "an id")
    of_owner = (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:other")
    assert described(Allowing()) == ("NONE", [])
    assert described(Allowing((*of_token[:2], "another id"))) == ("NONE", [])
    assert described(Allowing((*of_owner[:2], "other"))) == ("NONE", [])
    for allowed in (Allowing(of_token), Allowing(of_owner), None):
        assert described(allowed) == ("NONE", ["an id"])
    for user in ("other", "bob"):
        assert described(Allowing(), user) == ("NONE", ["an id"])
    over_none = Allowing(of_token, of_owner, super_user="User:other")
    assert described(over_none) == ("NONE", [])
    assert described(over_none, "bob") == ("NONE", ["an id"])


@pytest.mark.parametrize(
    ("protocol", "options", "is_allowed"),
    [
        ("PLAINTEXT", {}, False),
        ("SSL", {"user": "ANONYMOUS"}, False),
        ("SSL", {"user": "CN=alice"}, True),
        ("SASL_SSL", {"is_by_token": True}, False),
        ("SASL_PLAINTEXT", {}, True),
    ],
)
def test_who_may_ask(protocol, options, is_allowed):
    error, _ = described(None, protocol=protocol, **options)
    assert error == ("NONE" if is_allowed else "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED")


async def test_another_owners_needs_create_tokens_of_him():
    body = CreateDelegationTokenRequest(*OTHER, [], -1)
    of_another = (AclOperation.CREATE_TOKENS, ResourceType.USER, "User:alice")
    _, version, handler, request = asked(body, Allowing(of_another))
    answer = await handler.create(request)
    driven.note(ApiKey.CREATE_DELEGATION_TOKEN, version, answer, on_wire=False)
    assert ErrorCode(answer.error_code) is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (answer.principal_name, answer.token_id, answer.hmac) == ("other", "", b"")
