"""The first user: made once, whoever starts."""

import random

import pytest

from broker.security.sasl.scram.hashes import BY_NAME, ITERATIONS_MIN
from broker.security.users.administrator import (
    create_if_absent,
    credentials_of,
    parse_user,
    put,
    was_there,
)
from broker.security.users.store import ScramUsers
from metadata.memory import MemoryStore, MemoryTree

BOTH = tuple(BY_NAME)


@pytest.fixture
async def store(nursery):
    store = MemoryStore(MemoryTree())
    await nursery.start(store.run)
    return store


async def stored(store, name):
    users = ScramUsers(store)
    await users.load()
    return users.credentials(name)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("root", ("root", BOTH)),
        ("root:SCRAM-SHA-256", ("root", ("SCRAM-SHA-256",))),
        ("ä ü", ("ä ü", BOTH)),
    ],
)
def test_names(text, parsed):
    assert parse_user(text) == parsed


@pytest.mark.parametrize(
    "text", ["", ":SCRAM-SHA-256", "root:", "root:scram-sha-256", "a\0", "a" * 1025]
)
def test_no_names(text):
    with pytest.raises(ValueError, match=r"is none of|a name has"):
        parse_user(text)


async def test_whoever_comes_second_changes_nothing(store):
    first = credentials_of("one", BOTH, random.Random(1))
    assert {one.iterations for one in first.values()} == {ITERATIONS_MIN}
    assert not await was_there(store, "root")
    assert await create_if_absent(store, "root", first)
    assert await was_there(store, "root")
    assert not await create_if_absent(store, "root", credentials_of("two", BOTH, random.Random(2)))
    assert await stored(store, "root") == first


async def test_who_was_removed_stays_removed_until_he_is_put_back(store):
    first = credentials_of("one", BOTH, random.Random(1))
    await create_if_absent(store, "root", first)
    await ScramUsers(store).change("root", lambda before: {})
    assert not await create_if_absent(store, "root", first)
    assert await stored(store, "root") == {}
    again = credentials_of("two", BOTH[:1], random.Random(3))
    await put(store, "root", again)
    assert await stored(store, "root") == again
    await put(store, "root", {BOTH[1]: first[BOTH[1]]})
    assert await stored(store, "root") == {**again, BOTH[1]: first[BOTH[1]]}
