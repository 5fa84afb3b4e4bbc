"""A follower that lags: what a session on it may still see, and what it may not."""

import random
from functools import partial

import pytest
import trio

from metadata.faulty import FaultyStore, StoreFaults
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import (
    BadVersionError,
    CreateOp,
    DeleteOp,
    MetadataUnknownOutcomeError,
    Node,
    PutOp,
)

HOURS = 10_000.0


@pytest.fixture
def tree():
    return MemoryTree()


@pytest.fixture
def leader(tree):
    return MemoryStore(tree)


@pytest.fixture
async def behind(tree, nursery):
    """A session on a follower that has what was there when it began, for hours."""
    store = FaultyStore(tree, random.Random(3), StoreFaults())
    await nursery.start(store.run)
    store.follower.lag(HOURS, does_wait=False)
    return store


async def test_reads_are_of_what_was_till_somebody_syncs(leader, behind, autojump_clock):
    await leader.create("/a/b", b"one", make_parents=True)
    assert not await behind.exists("/a/b")
    assert await behind.get_many(["/a/b"]) == [None]
    assert await behind.children("/") == []
    assert behind.faults.stale_read_count == 3
    await behind.sync("/")
    assert await behind.get("/a/b") == Node(b"one", 0)
    await leader.multi([PutOp("/a/b", b"two", 0), CreateOp("/a/c", b"three")])
    assert await behind.get("/a/b") == Node(b"one", 0)
    assert await behind.children("/a") == ["b"]
    await leader.delete("/a/b")
    assert await behind.exists("/a/b")
    behind.follower.end_lag()
    assert await behind.children("/a") == ["c"]
    assert behind.faults.stale_read_count == 6


async def test_its_own_changes_and_refusals_bring_it_up_to_date(leader, behind, autojump_clock):
    await leader.create("/a", b"one")
    await behind.create("/mine")
    assert await behind.exists("/a")
    await leader.put("/a", b"two", 0)
    assert await behind.get("/a") == Node(b"one", 0)
    with pytest.raises(BadVersionError):
        await behind.put("/a", b"three", 0)
    assert await behind.get("/a") == Node(b"two", 1)


async def test_a_lost_answer_and_a_lost_session_do_too(leader, behind, autojump_clock):
    await leader.create("/a", b"one")
    behind.faults.lost_reply_share = 1.0
    with pytest.raises(MetadataUnknownOutcomeError):
        await behind.create("/mine")
    behind.faults.lost_reply_share = 0.0
    assert await behind.exists("/a")
    await leader.create("/b")
    assert not await behind.exists("/b")
    behind.expire()
    assert await behind.exists("/b")
    await leader.create("/c")
    assert not await behind.exists("/c")
    behind.cut()
    behind.heal()
    assert await behind.exists("/c")


async def test_transactions_come_one_after_the_other_and_watches_with_them(
    leader, behind, nursery, autojump_clock
):
    behind.follower.lag(10.0, does_wait=True)
    seen = []

    async def look(watch):
        while True:
            await watch.changed()
            names = await behind.children("/")
            nodes = await behind.get_many([f"/{name}" for name in names])
            seen.append((len(names), {node.data for node in nodes}))

    nursery.start_soon(look, behind.watch_children("/"))
    for number in range(20):
        await leader.multi(
            [
                CreateOp(f"/a{number}", b"%d" % number),
                CreateOp(f"/b{number}", b"%d" % number),
                *([DeleteOp(f"/a{number - 1}"), DeleteOp(f"/b{number - 1}")] if number else []),
            ]
        )
        await trio.sleep(0.1)
    assert seen == []
    await trio.sleep(11)
    # Never half of a transaction, and the last one is seen.
    assert all(count == 2 and len(data) == 1 for count, data in seen)
    assert seen[-1] == (2, {b"19"})
    assert await behind.get("/a19") == Node(b"19", 0)


async def test_who_changes_something_waits_until_his_server_has_it(
    leader, behind, nursery, autojump_clock
):
    behind.follower.lag(10.0, does_wait=True)
    await leader.create("/a", b"one")
    began = trio.current_time()
    await behind.create("/mine")
    assert trio.current_time() - began >= 5.0
    assert await behind.exists("/a")
    # Two at once: none overtakes the other.
    ends = []

    async def put(path):
        await behind.put(path, b"", -1)
        ends.append(trio.current_time())

    async with trio.open_nursery() as puts:
        for path in ("/a", "/mine"):
            puts.start_soon(partial(put, path))
    assert len(ends) == 2
    began = trio.current_time()
    await leader.create("/b")
    await behind.sync("/b")
    assert 5.0 <= trio.current_time() - began <= 11.0
    assert await behind.exists("/b")


async def test_who_left_is_not_kept(tree, leader, behind, autojump_clock):
    await leader.create("/a")
    await behind.aclose()
    other = FaultyStore(tree, random.Random(4))
    other.die()
    assert tree.followers == {}
