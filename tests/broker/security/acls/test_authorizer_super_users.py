"""Attack 18: who may alter users makes no super user of himself."""

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AlterUserScramCredentialsRequest,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
)
from wire.kafka.messages.security import ScramCredentialDeletion, ScramCredentialUpsertion

SHA_256 = 1


async def altered(client, *names, is_gone=False):
    """{user: the error's name}"""
    sides = (
        [],
        [ScramCredentialUpsertion(one, SHA_256, 4096, b"salt", bytes(32)) for one in names],
    )
    if is_gone:
        sides = ([ScramCredentialDeletion(one, SHA_256) for one in names], [])
    answer = await client.call(AlterUserScramCredentialsRequest(*sides))
    return {one.user: ErrorCode(one.error_code).name for one in answer.results}


async def names(client):
    answer = await client.call(DescribeUserScramCredentialsRequest(None))
    return [one.user for one in answer.results]


async def test_attack_18_a_super_users_password_is_set_by_super_users(guarded):
    alice = await guarded.login("alice")
    refused = "CLUSTER_AUTHORIZATION_FAILED"
    everybody = ("root", "bob", "alice")
    assert await altered(alice, *everybody) == dict.fromkeys(everybody, refused)
    await guarded.allow("alice ALTER CLUSTER")
    assert await altered(alice, *everybody) == {"root": refused, "bob": "NONE", "alice": "NONE"}
    assert await names(guarded.admin) == ["alice", "bob"]
    assert await altered(guarded.admin, "root", "admin") == {"root": "NONE", "admin": "NONE"}
    assert await altered(alice, "admin", "bob", is_gone=True) == {"admin": refused, "bob": "NONE"}
    assert await names(guarded.admin) == ["admin", "alice", "root"]
    assert await altered(guarded.admin, "root", is_gone=True) == {"root": "NONE"}


@pytest.mark.parametrize(("owner", "may"), [("bob", True), ("root", False)])
async def test_attack_18_nor_does_he_get_a_token_in_his_name(start_guarded, owner, may):
    guarded = await start_guarded(delegation_token_secret_key="the brokers' own")
    # What alice could give herself.
    await guarded.allow("alice ALTER CLUSTER", f"alice CREATE_TOKENS USER User:{owner}")
    alice = await guarded.login("alice")
    for asking, error in (
        (alice, "NONE" if may else "DELEGATION_TOKEN_AUTHORIZATION_FAILED"),
        (guarded.admin, "NONE"),
    ):
        answer = await asking.call(CreateDelegationTokenRequest("User", owner, [], -1))
        assert ErrorCode(answer.error_code).name == error
        assert bool(answer.hmac) == (error == "NONE")


@pytest.mark.parametrize(("owner", "may"), [("bob", True), ("root", False)])
async def test_attack_18_nor_is_one_of_his_shown_to_him(start_guarded, owner, may):
    """Its hmac is a login."""
    guarded = await start_guarded(delegation_token_secret_key="the brokers' own")
    made = await guarded.admin.call(CreateDelegationTokenRequest("User", owner, [], -1))
    await guarded.allow(
        f"alice DESCRIBE_TOKENS USER User:{owner}",
        f"alice DESCRIBE DELEGATION_TOKEN {made.token_id}",
    )
    alice = await guarded.login("alice")
    for asking, is_shown in ((alice, may), (guarded.admin, True)):
        answer = await asking.call(DescribeDelegationTokenRequest(None))
        assert [one.hmac for one in answer.tokens] == [made.hmac] * is_shown
