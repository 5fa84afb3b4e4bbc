"""The walk over all ledgers: in which portions, and how others get their turn."""

import random

import pytest
import trio

from ledger import ledger_walk
from ledger.ledger_walk import FOLDER_SIZE, walk_ledger_ids, walk_ledgers
from ledger.metadata import LONG_ID_MIN, LedgerManager, ledger_path
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import NoNodeError
from runtime.env import Env
from runtime.sim_clock import SimClock
from runtime.turn import Turn
from wire.bookkeeper.ledger_metadata import LedgerMetadata, serialize

IDS = [0, 1, 9_999, 10_000, 123_456_789, LONG_ID_MIN - 1, LONG_ID_MIN, 2**31 + 12_345, 2**60]


@pytest.fixture
async def store():
    env = Env(clock=SimClock(), rng=random.Random(1), net=None, disk=None, turn=Turn())
    store = MemoryStore(MemoryTree())
    await LedgerManager(store, env).ensure_layout()
    return store


async def make(store, ids):
    data = serialize(LedgerMetadata(1, 1, 1, ((0, ("a:1",)),)))
    for ledger_id in ids:
        await store.create(ledger_path("/ledgers", ledger_id), data, make_parents=True)


async def test_a_portion_is_one_folder_ascending(store):
    await make(store, reversed(IDS))
    portions = [ids async for ids in walk_ledger_ids(store, "/ledgers")]
    assert [each for ids in portions for each in ids] == IDS
    folders = [{each // FOLDER_SIZE for each in ids} for ids in portions]
    assert all(len(folder) == 1 for folder in folders)
    # A folder is one portion. Of one number there are two where long ids begin.
    assert len(set.union(*folders)) == len(folders) - 1


async def test_no_tree_is_not_the_same_as_no_ledgers(store):
    assert [ids async for ids in walk_ledger_ids(store, "/ledgers")] == []
    with pytest.raises(NoNodeError):
        _ = [ids async for ids in walk_ledger_ids(store, "/elsewhere")]


async def test_others_have_the_loop_within_a_folder(store, nursery, monkeypatch):
    """Without it 10,000 names of a folder, and the metadata of 100 ledgers, were one turn."""
    monkeypatch.setattr(ledger_walk, "NAMES_PER_TURN", 10)
    monkeypatch.setattr(ledger_walk, "PARSED_PER_TURN", 10)
    turns = 0

    async def tick():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    await make(store, range(100))
    nursery.start_soon(tick)
    async for ids in walk_ledger_ids(store, "/ledgers"):
        assert ids == list(range(100))
    assert turns >= 9
    turns = 0
    assert len([each async for each in walk_ledgers(store, "/ledgers")]) == 100
    assert turns >= 18
    nursery.cancel_scope.cancel()
