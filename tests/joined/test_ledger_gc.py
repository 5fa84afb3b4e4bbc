"""Which ledgers a bookie is told to delete: those that trusted metadata lacks twice."""

import gc
import random
from math import inf
from types import SimpleNamespace

import pytest
import trio

from bench.longest_step import LongestStep
from bookie.known_ledgers import CollectionRefusedError
from joined.ledger_gc import ABSENT_SECONDS_MIN, MetadataLedgers
from ledger.metadata import LONG_ID_MIN, LedgerManager, ledger_path
from metadata.faulty import FaultyStore, StoreFaults
from metadata.memory import MemoryStore, MemoryTree
from runtime.env import Env
from runtime.sim_clock import SimClock
from runtime.turn import Turn
from tests.turns import check_turn

HOURS = 10_000.0


@pytest.fixture
async def parts(nursery):
    """A leader's session with ledgers 1 to 3, and a bookie's on a follower hours behind: it knows
    the tree and no ledger."""
    env = Env(clock=SimClock(), rng=random.Random(1), net=None, disk=None, turn=Turn())
    tree = MemoryTree()
    leader = MemoryStore(tree)
    await LedgerManager(leader, env).ensure_layout()
    store = FaultyStore(tree, random.Random(2), StoreFaults())
    await nursery.start(store.run)
    store.follower.lag(HOURS, does_wait=False)
    for ledger_id in (1, 2, 3):
        await leader.create(ledger_path("/ledgers", ledger_id), b"", make_parents=True)
    known = MetadataLedgers(LedgerManager(store, env), 0, ABSENT_SECONDS_MIN)
    return SimpleNamespace(leader=leader, store=store, known=known, env=env)


async def delete(parts, *ledger_ids):
    for ledger_id in ledger_ids:
        await parts.leader.delete(ledger_path("/ledgers", ledger_id))


async def test_a_server_that_is_behind_makes_no_ledger_missing(parts, autojump_clock):
    """Its own session changes nothing, so nothing but the collector brings it up to date."""
    assert not await parts.store.exists(ledger_path("/ledgers", 1))
    for _ in range(3):
        assert await parts.known.gone([1, 2, 3]) == []
        assert parts.known.seconds_to_confirm == inf
        await trio.sleep(2 * ABSENT_SECONDS_MIN)
    for ledger_id in range(4, 100):
        await parts.leader.create(ledger_path("/ledgers", ledger_id), b"", make_parents=True)
        assert await parts.known.gone(range(1, ledger_id + 1)) == []


async def test_a_ledger_must_be_missing_at_two_looks_a_minute_apart(parts, autojump_clock):
    known = parts.known
    await delete(parts, 2)
    began = trio.current_time()
    while await known.gone([1, 2, 3]) == []:
        assert known.seconds_to_confirm <= ABSENT_SECONDS_MIN
        await trio.sleep(7)
    assert trio.current_time() - began >= ABSENT_SECONDS_MIN
    assert known.seconds_to_confirm == inf
    # What was not deleted then starts anew.
    assert await known.gone([1, 2, 3]) == []


async def test_the_second_look_alone(parts, autojump_clock):
    known = parts.known
    await delete(parts, 1, 3)
    assert await known.gone([1, 2, 3]) == []
    await trio.sleep(known.seconds_to_confirm - 1)
    assert await known.confirmed() == []
    await trio.sleep(known.seconds_to_confirm)
    assert await known.confirmed() == [1, 3]
    assert await known.confirmed() == []


async def test_one_that_comes_back_meanwhile_is_kept(parts, autojump_clock):
    """Somebody had removed metadata by mistake, and restores it."""
    known = parts.known
    await delete(parts, 1, 2)
    assert await known.gone([1, 2, 3]) == []
    await trio.sleep(2 * ABSENT_SECONDS_MIN)
    await parts.leader.create(ledger_path("/ledgers", 1), b"", make_parents=True)
    assert await known.confirmed() == [2]
    await delete(parts, 1)
    assert await known.gone([1, 3]) == []
    await parts.leader.create(ledger_path("/ledgers", 1), b"")
    assert await known.gone([1, 3]) == []
    assert known.seconds_to_confirm == inf


async def test_a_restart_begins_anew(parts, autojump_clock):
    await delete(parts, 1)
    assert await parts.known.gone([1, 2, 3]) == []
    await trio.sleep(2 * ABSENT_SECONDS_MIN)
    again = MetadataLedgers(LedgerManager(parts.store, parts.env), 0, ABSENT_SECONDS_MIN)
    assert await again.gone([1, 2, 3]) == []
    assert await again.confirmed() == []


async def remove(store, path):
    for name in await store.children(path):
        await remove(store, f"{path}/{name}")
    await store.delete(path)


@pytest.mark.parametrize("missing", ["/ledgers", "/ledgers/LAYOUT", "/ledgers/INSTANCEID"])
async def test_a_tree_that_is_not_there_makes_no_ledger_missing(parts, autojump_clock, missing):
    known = parts.known
    await delete(parts, 1)
    assert await known.gone([1, 2, 3]) == []
    await trio.sleep(2 * ABSENT_SECONDS_MIN)
    await remove(parts.leader, missing)
    for look in (known.gone([1, 2, 3]), known.confirmed()):
        with pytest.raises(CollectionRefusedError, match="missing"):
            await look
    new = MetadataLedgers(LedgerManager(parts.store, parts.env), 0, 0.0)
    with pytest.raises(CollectionRefusedError, match="missing"):
        await new.gone([1, 2, 3])


async def test_a_tree_of_another_cluster_makes_no_ledger_missing(parts, autojump_clock):
    """Somebody formats the metadata while the bookie runs."""
    known = parts.known
    assert await known.gone([1, 2, 3]) == []
    await remove(parts.leader, "/ledgers")
    await LedgerManager(parts.leader, parts.env).ensure_layout()
    with pytest.raises(CollectionRefusedError, match="another cluster"):
        await known.gone([1, 2, 3])


async def test_without_an_answer_nothing_is_missing(parts, autojump_clock):
    known = parts.known
    await delete(parts, 1)
    assert await known.gone([1, 2, 3]) == []
    await trio.sleep(2 * ABSENT_SECONDS_MIN)
    parts.store.faults.unavailable_share = 1.0
    with pytest.raises(CollectionRefusedError):
        await known.gone([1, 2, 3])
    parts.store.faults.unavailable_share = 0.0
    assert await known.gone([1, 2, 3]) == [1]


async def test_a_look_that_fails_is_no_look(parts, autojump_clock, monkeypatch):
    known = parts.known
    await delete(parts, 1)
    assert await known.gone([1, 2, 3]) == []
    await trio.sleep(2 * ABSENT_SECONDS_MIN)
    get = parts.store.get

    async def fails(path):
        parts.store.faults.unavailable_share = 1.0
        try:
            return await get(path)
        finally:
            parts.store.faults.unavailable_share = 0.0

    monkeypatch.setattr(parts.store, "get", fails)
    assert await known.confirmed() == []
    monkeypatch.setattr(parts.store, "get", get)
    assert await known.confirmed() == []
    assert await known.gone([1, 2, 3]) == []
    await trio.sleep(known.seconds_to_confirm)
    assert await known.confirmed() == [1]


async def test_ledgers_of_many_folders(parts, autojump_clock):
    """A folder's ledgers are compared with the bookie's of the same folder: no other's is missing
    for that, and what is missing may be in a folder that is gone."""
    rng = random.Random(3)
    starts = (0, 10_000, 990_000, LONG_ID_MIN - 20, LONG_ID_MIN, 2**40)
    every = sorted({start + rng.randrange(20) for start in starts for _ in range(20)} | {1, 2, 3})
    listed = set(every[::2]) | {1, 2, 3}
    for ledger_id in sorted(listed - {1, 2, 3}):
        await parts.leader.create(ledger_path("/ledgers", ledger_id), b"", make_parents=True)
    had = [*every, 70_000_000]
    rng.shuffle(had)
    assert await parts.known.gone(had) == []
    await trio.sleep(2 * ABSENT_SECONDS_MIN)
    assert set(await parts.known.gone(had)) == set(had) - listed


async def test_only_what_is_not_listed_is_looked_up(parts, autojump_clock, monkeypatch):
    read = []
    manager = parts.known._manager
    monkeypatch.setattr(
        manager, "read", lambda each: read.append(each) or LedgerManager.read(manager, each)
    )
    assert await parts.known.gone([1, 2, 3, 50_000, 60_000]) == []
    assert read == [50_000, 60_000]


@pytest.mark.turns
async def test_very_many_that_are_missing_are_looked_at_in_slices(parts):
    """Nothing is as long as all of them: a table for each folder of the metadata."""
    count = 1_000_000
    known = parts.known
    for ledger_id in range(4, count):
        known._absent.add(ledger_id, trio.current_time())
    longest = LongestStep()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.add_instrument(longest)
    gc.disable()
    try:
        assert await known.gone(range(count)) == []
    finally:
        gc.enable()
        trio.lowlevel.remove_instrument(longest)
    absent = [ledger_id for _, portion in known._absent.portions() for ledger_id, _ in portion]
    assert absent == [*range(4, 10_000), 0, *range(10_000, count)]
    check_turn(longest.seconds, 0.05)
