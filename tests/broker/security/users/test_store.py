"""Users' credentials in metadata, as two brokers have them."""

import random

import pytest
import trio

from broker.security.sasl.scram.credentials import Credential
from broker.security.sasl.scram.hashes import SCRAM_SHA_256, SCRAM_SHA_512
from broker.security.users.secret import ensure_secret
from broker.security.users.store import ScramUsers, user_path
from metadata.memory import MemoryStore, MemoryTree

ONE = Credential.of_password(SCRAM_SHA_256, "wonder", b"salt")
TWO = Credential.of_password(SCRAM_SHA_512, "land", b"salt")


@pytest.fixture
def open_users(nursery):
    tree = MemoryTree()

    async def open_one(*, is_following=True):
        store = MemoryStore(tree)
        await nursery.start(store.run)
        users = ScramUsers(store)
        await users.load()
        if is_following:
            await nursery.start(users.run)
        return store, users

    return open_one


async def settled():
    await trio.testing.wait_all_tasks_blocked(0.002)


async def test_a_change_is_in_force_here_at_once_and_elsewhere_soon(open_users):
    _, here = await open_users()
    _, there = await open_users()
    await here.change("ann", lambda before: {**before, "SCRAM-SHA-256": ONE})
    assert here.credentials("ann") == {"SCRAM-SHA-256": ONE}
    await settled()
    assert there.credentials("ann") == {"SCRAM-SHA-256": ONE}
    await there.change("ann", lambda before: {**before, "SCRAM-SHA-512": TWO})
    await settled()
    assert here.credentials("ann") == {"SCRAM-SHA-256": ONE, "SCRAM-SHA-512": TWO}
    assert here.names() == ["ann"]
    await here.change("ann", lambda before: {})
    await settled()
    assert there.credentials("ann") == {}
    assert there.names() == []
    await there.change("ann", lambda before: {**before, "SCRAM-SHA-512": TWO})
    await settled()
    assert here.names() == ["ann"]


async def test_both_change_one_user_at_once_and_both_are_kept(open_users):
    _, here = await open_users(is_following=False)
    _, there = await open_users(is_following=False)
    async with trio.open_nursery() as both:
        both.start_soon(here.change, "ann", lambda before: {**before, "SCRAM-SHA-256": ONE})
        both.start_soon(there.change, "ann", lambda before: {**before, "SCRAM-SHA-512": TWO})
    _, third = await open_users(is_following=False)
    assert set(third.credentials("ann")) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}


async def test_what_raises_changes_nothing(open_users):
    store, users = await open_users()

    def refuse(before):
        raise KeyError(str(before))

    with pytest.raises(KeyError):
        await users.change("ann", refuse)
    assert not await store.exists(user_path("ann"))


async def test_a_damaged_document_is_nobodys_and_the_log_does_not_show_it(open_users, caplog):
    store, users = await open_users()
    data = b'{"SCRAM-SHA-256": {"salt": "c2FsdA=="}}'
    await store.create(user_path("ann"), data, make_parents=True)
    await settled()
    assert users.credentials("ann") == {}
    assert "document_not_understood" in caplog.text
    assert "c2FsdA" not in caplog.text


async def test_the_cluster_has_one_secret(open_users):
    store, _ = await open_users()
    other, _ = await open_users()
    secret = await ensure_secret(store, random.Random(1))
    assert len(secret) == 32
    assert await ensure_secret(other, random.Random(2)) == secret
