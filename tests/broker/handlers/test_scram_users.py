"""SCRAM users described and altered: Kafka's errors, and what is never told."""

import pytest

from broker.handlers.scram_users import SORTED_MAX
from broker.security.users.store import NAME_BYTES_MAX
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from wire.kafka.messages.security import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

SHA_256, SHA_512 = 1, 2
BYTES = {SHA_256: 32, SHA_512: 64}
TWICE = ("DUPLICATE_RESOURCE", "A user credential cannot be altered twice in the same request")
ABSENT = ("RESOURCE_NOT_FOUND", "Attempt to delete a user credential that does not exist")
DONE = ("NONE", None)


def given(name, mechanism=SHA_256, iterations=4096, salt=b"salt", salted=None):
    salted = bytes(BYTES.get(mechanism, 32)) if salted is None else salted
    return ScramCredentialUpsertion(name, mechanism, iterations, salt, salted)


def gone(name, mechanism=SHA_256):
    return ScramCredentialDeletion(name, mechanism)


@pytest.fixture
async def world(server):
    return World(await server.connect())


class World:
    def __init__(self, client):
        self.client = client

    async def alter(self, *changes):
        """{user: (error's name, message)}"""
        sides = [
            [one for one in changes if isinstance(one, kind)]
            for kind in (ScramCredentialDeletion, ScramCredentialUpsertion)
        ]
        answer = await self.client.call(AlterUserScramCredentialsRequest(*sides))
        found = {
            one.user: (ErrorCode(one.error_code).name, one.error_message) for one in answer.results
        }
        assert len(found) == len(answer.results), "a result for each user"
        return found

    async def describe(self, *names):
        """{user: {mechanism: iterations}, or (error's name, message)}"""
        users = [UserName(name) for name in names] if names else None
        answer = await self.client.call(DescribeUserScramCredentialsRequest(users))
        assert answer.error_code == 0
        return {
            one.user: (ErrorCode(one.error_code).name, one.error_message)
            if one.error_code
            else {each.mechanism: each.iterations for each in one.credential_infos}
            for one in answer.results
        }


async def test_credentials_are_set_changed_and_removed(world):
    assert await world.describe() == {}
    assert await world.alter(given("u"), given("v", SHA_512, 16384)) == {"u": DONE, "v": DONE}
    assert await world.describe() == {"u": {SHA_256: 4096}, "v": {SHA_512: 16384}}
    assert await world.alter(given("u", iterations=8192)) == {"u": DONE}
    assert await world.describe("u") == {"u": {SHA_256: 8192}}
    assert await world.alter(gone("u")) == {"u": DONE}
    assert await world.describe() == {"v": {SHA_512: 16384}}
    assert await world.alter(gone("u")) == {"u": ABSENT}
    assert await world.alter(given("u")) == {"u": DONE}
    assert list(await world.describe()) == ["u", "v"]


async def test_both_mechanisms_of_a_user_in_one_request(world):
    """As kafka-configs sends them, which Kafka's own controller refuses."""
    assert await world.alter(given("u"), given("u", SHA_512)) == {"u": DONE}
    assert await world.describe() == {"u": {SHA_256: 4096, SHA_512: 4096}}
    assert await world.alter(gone("u"), given("u", SHA_512, 5000)) == {"u": DONE}
    assert await world.describe() == {"u": {SHA_512: 5000}}


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (given(""), ("UNACCEPTABLE_CREDENTIAL", "Username must not be empty")),
        (gone(""), ("UNACCEPTABLE_CREDENTIAL", "Username must not be empty")),
        (given("u", 0), ("UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism")),
        (given("u", 3), ("UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism")),
        (gone("u", 3), ("UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism")),
        (given("u", iterations=4095), ("UNACCEPTABLE_CREDENTIAL", "Too few iterations")),
        (given("u", iterations=-1), ("UNACCEPTABLE_CREDENTIAL", "Too few iterations")),
        (given("u", iterations=16385), ("UNACCEPTABLE_CREDENTIAL", "Too many iterations")),
        (given("u", salt=b""), ("UNACCEPTABLE_CREDENTIAL", "Salt must not be empty, or very long")),
        (
            given("u", salted=b""),
            ("UNACCEPTABLE_CREDENTIAL", "A salted password of SCRAM-SHA-256 has 32 bytes"),
        ),
        (
            given("u" * (NAME_BYTES_MAX + 1)),
            ("UNACCEPTABLE_CREDENTIAL", "Username is too long"),
        ),
        (gone("u" * (NAME_BYTES_MAX + 1)), ABSENT),
        (gone("u", SHA_512), ABSENT),
    ],
)
async def test_what_is_refused_changes_nothing_of_that_user(world, change, result):
    """Attack 18."""
    await world.alter(given("u"))
    assert await world.alter(change, given("w", SHA_512)) == {change.name: result, "w": DONE}
    assert await world.describe() == {"u": {SHA_256: 4096}, "w": {SHA_512: 4096}}


@pytest.mark.parametrize(
    "changes",
    [
        (given("u"), given("u")),
        (gone("u"), given("u")),
        (gone("u"), gone("u")),
        (given("u"), given("u", SHA_512), given("u", SHA_512)),
        tuple(given("u") for _ in range(1000)),
    ],
)
async def test_twice_the_same_changes_nothing(world, changes):
    await world.alter(given("u", iterations=5000))
    assert await world.alter(*changes) == {"u": TWICE}
    assert await world.describe() == {"u": {SHA_256: 5000}}


async def test_one_that_is_refused_keeps_the_users_others_from_being_done(world):
    await world.alter(given("u"))
    done = await world.alter(gone("u"), given("u", SHA_512, 1))
    assert done == {"u": ("UNACCEPTABLE_CREDENTIAL", "Too few iterations")}
    assert await world.alter(gone("u", SHA_512), given("u", iterations=7000)) == {"u": ABSENT}
    assert await world.describe() == {"u": {SHA_256: 4096}}


async def test_who_is_asked_for_and_has_none(world):
    answers = await world.describe("b", "a", "b", "")
    absent = "Attempt to describe a user credential that does not exist: "
    assert list(answers) == ["", "a", "b"]
    assert answers[""] == ("RESOURCE_NOT_FOUND", absent)
    assert answers["a"] == ("RESOURCE_NOT_FOUND", f"{absent}a")
    assert answers["b"] == (
        "DUPLICATE_RESOURCE",
        "Cannot describe SCRAM credentials for the same user twice in a single request: b",
    )
    await world.alter(given("a"))
    answers = await world.describe(*[f"u{number}" for number in range(SORTED_MAX)], "a")
    assert len(answers) == SORTED_MAX + 1
    assert answers["a"] == {SHA_256: 4096}


async def test_they_are_there_after_a_restart(start_server, tmp_path):
    server = await start_server()
    world = World(await server.connect())
    await world.alter(given("ä,="))
    await server.stop()
    again = await start_server()
    assert await World(await again.connect()).describe() == {"ä,=": {SHA_256: 4096}}
