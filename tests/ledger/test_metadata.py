"""LedgerManager: BookKeeper's tree, ids, compare-and-set."""

import random
from dataclasses import replace

import pytest
import trio

from ledger.errors import LedgerMetadataError, NoSuchLedgerError
from ledger.metadata import LedgerManager, ledger_path
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import NoNodeError, PutOp
from runtime.env import Env, RealClock
from tests.ledger_ids import ledger_ids
from wire.bookkeeper.ledger_metadata import LedgerMetadata, parse

METADATA = LedgerMetadata(1, 1, 1, ((0, ("b1",)),))


@pytest.fixture
def store():
    return MemoryStore(MemoryTree())


@pytest.fixture
def manager(store):
    env = Env(clock=RealClock(), rng=random.Random(1), net=None, disk=None, turn=None)
    return LedgerManager(store, env)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (13, "/ledgers/00/0000/L0013"),
        (0, "/ledgers/00/0000/L0000"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (2**40 + 5, "/ledgers/000/0001/0995/1162/L7781"),
    ],
)
def test_paths(ledger_id, path):
    assert ledger_path("/ledgers", ledger_id) == path


async def test_ids_rise_and_are_never_used_again(manager, store):
    ids = [(await manager.create(METADATA))[0] for _ in range(3)]
    assert ids == [0, 1, 2]
    assert await store.children("/ledgers/idgen") == []
    for ledger_id in ids:
        await manager.delete(ledger_id)
    assert (await manager.create(METADATA))[0] == 3


async def test_created_metadata_is_bookkeepers(manager, store):
    ledger_id, versioned = await manager.create(METADATA)
    node = await store.get("/ledgers/00/0000/L0000")
    assert (ledger_id, node.version, versioned.version) == (0, 0, 0)
    assert node.data.startswith(b"BookieMetadataFormatVersion\t3\n")
    stored = parse(node.data)
    assert stored == versioned.metadata
    assert 0 < stored.ctoken < 2**63
    assert (await manager.read(0)) == versioned


async def test_a_path_that_is_taken_is_left_alone(manager, store):
    await store.create("/ledgers/00/0000/L0000", b"somebody's", make_parents=True)
    assert (await manager.create(METADATA))[0] == 1
    assert (await store.get("/ledgers/00/0000/L0000")).data == b"somebody's"


async def test_a_caller_makes_the_node_with_something_of_its_own(manager, store):
    """Ids that are taken are passed by, and the folder is made where it is missing."""
    await store.create("/chain")
    await store.create("/ledgers/00/0000/L0000", b"somebody's", make_parents=True)
    asked = []

    async def place(ledger_id, op):
        asked.append((ledger_id, op.make_parents))
        await store.multi([PutOp("/chain", b"%d" % ledger_id, -1), op])

    ledger_id, versioned = await manager.create(METADATA, place=place)
    assert ledger_id == 1
    assert (await store.get("/chain")).data == b"1"
    assert await manager.read(1) == versioned
    assert (await manager.create(METADATA, place=place))[0] == 2
    for each in (0, 1, 2):
        await manager.delete(each)
    assert (await manager.create(METADATA, place=place))[0] == 3
    assert asked == [(0, True), (1, True), (2, False), (3, False), (3, True)]
    await store.delete("/chain")
    with pytest.raises(NoNodeError, match="/chain"):
        await manager.create(METADATA, place=place)
    assert await ledger_ids(manager) == [3]


async def test_update_reads_again_after_a_lost_race(manager):
    ledger_id, versioned = await manager.create(METADATA)
    asked = []

    def close(metadata):
        asked.append(metadata.is_closed)
        return None if metadata.is_closed else metadata.closed_at(5, 50)

    first = await manager.update(ledger_id, versioned, close)
    assert (first.version, first.metadata.last_entry_id, first.metadata.ctoken) == (1, 5, 0)
    again = await manager.update(ledger_id, versioned, close)
    assert again == first
    # The second was told the stale metadata first, lost, and recognised its own wish as done.
    assert asked == [False, False]


async def test_rivals_all_get_their_change_in(manager):
    ledger_id, versioned = await manager.create(METADATA)

    async def rival(n):
        def transform(metadata):
            custom = {**metadata.custom_metadata, str(n): b""}
            if custom == metadata.custom_metadata:
                return None
            return replace(metadata, custom_metadata=custom)

        await manager.update(ledger_id, versioned, transform)

    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(rival, n)
    final = await manager.read(ledger_id)
    assert set(final.metadata.custom_metadata) == {str(n) for n in range(10)}
    assert final.version == 10


async def test_deleting_takes_empty_directories_along(manager, store):
    ids = [(await manager.create(METADATA))[0] for _ in range(2)]
    await manager.delete(ids[0])
    assert await store.children("/ledgers/00/0000") == ["L0001"]
    await manager.delete(ids[1])
    assert await store.children("/ledgers") == ["idgen"]
    await manager.delete(ids[1])
    with pytest.raises(NoSuchLedgerError, match="ledger 1"):
        await manager.read(ids[1])


async def test_layout(manager, store):
    await manager.ensure_layout()
    instance_id = (await store.get("/ledgers/INSTANCEID")).data
    assert len(instance_id) == 36
    await manager.ensure_layout()
    assert (await store.get("/ledgers/INSTANCEID")).data == instance_id
    assert (await store.get("/ledgers/LAYOUT")).data == (
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    )
    assert await store.children("/ledgers/available") == ["readonly"]
    await store.put("/ledgers/LAYOUT", b"2\nsomething:1", -1)
    with pytest.raises(LedgerMetadataError, match="something"):
        await manager.ensure_layout()


async def test_bad_metadata_names_the_ledger(manager, store):
    await store.create("/ledgers/00/0000/L0007", b"garbage", make_parents=True)
    with pytest.raises(LedgerMetadataError, match=r"ledger 7: bad metadata: .*garbage"):
        await manager.read(7)


async def test_a_store_that_is_gone(manager, store):
    ledger_id, versioned = await manager.create(METADATA)
    await store.aclose()
    with pytest.raises(LedgerMetadataError, match="closed"):
        await manager.read(ledger_id)
    with pytest.raises(LedgerMetadataError, match="closed"):
        await manager.update(ledger_id, versioned, lambda md: md.closed_at(0, 0))
    with pytest.raises(LedgerMetadataError, match="closed"):
        await manager.create(METADATA)
