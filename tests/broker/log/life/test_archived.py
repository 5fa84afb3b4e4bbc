"""How far an archive goes: the node that tells it, and retention that goes no further."""

import pytest
import trio

from broker.log.life.archived import (
    ArchivedFormatError,
    archived_path,
    decode_archived,
    forget_archived,
    read_archived,
    tell_archived,
)
from metadata.memory import MemoryStore
from metadata.store import MetadataUnavailableError
from tests.broker.log.test_partition import PATH, World

NODE = "/quire/archived/x/0"


@pytest.fixture
async def store(nursery):
    made = MemoryStore()
    await nursery.start(made.run)
    return made


@pytest.fixture
async def world(tmp_path, nursery):
    """Three closed ledgers of 10 records each, and retention that wants none of them."""
    made = World(str(tmp_path), nursery)
    await made.start()
    for _ in range(3):
        await made.append(*[b"x"] * 10)
        await made.restart()
    made.config.retention_ms = 1
    made.config.quire_archive_required = True
    return made


async def starts(world):
    """The log start when the keeper has done what a look at retention asks for."""
    world.keeper.check_retention()
    with trio.fail_after(20):
        while world.keeper._archivable_start or world.keeper._start_due():
            await trio.sleep(0.002)
    return world.log.log_start_offset


async def test_it_is_told_and_only_rises(store):
    assert archived_path(PATH) == NODE
    assert await read_archived(store, PATH) == 0
    assert await tell_archived(store, PATH, 10) == 10
    assert await tell_archived(store, PATH, 30) == 30
    assert await tell_archived(store, PATH, 20) == 30
    assert await read_archived(store, PATH) == 30


async def test_a_deleted_topic_leaves_nothing(store):
    await tell_archived(store, PATH, 10)
    await tell_archived(store, "/quire/partitions/x/1", 10)
    await tell_archived(store, "/quire/partitions/y/0", 10)
    await forget_archived(store, "x")
    await forget_archived(store, "never")
    assert await store.children("/quire/archived") == ["y"]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"next_base": 3}', b'{"format": 2, "next_base": 3}',
     b'{"format": 1, "next_base": -1}', b'{"format": 1, "next_base": true}',
     b'{"format": 1, "next_base": "3"}'],
)  # fmt: skip
def test_what_says_nothing_is_named(data):
    with pytest.raises(ArchivedFormatError, match="archive"):
        decode_archived(data)


async def test_without_an_archive_nothing_goes(world):
    assert await starts(world) == 0
    world.config.quire_archive_required = False
    assert await starts(world) == 30


async def test_retention_goes_as_far_as_the_archive(world):
    await tell_archived(world.store, PATH, 20)
    assert await starts(world) == 20
    assert [info.base_offset for info in world.log.chain.ledgers] == [20]
    await tell_archived(world.store, PATH, 30)
    assert await starts(world) == 30


async def test_an_archive_that_goes_further_changes_nothing(world):
    """What retention keeps stays, however much is archived."""
    world.config.retention_ms, world.config.retention_bytes = -1, 1
    await tell_archived(world.store, PATH, 30)
    assert await starts(world) == 20


async def test_what_cannot_be_read_keeps_all(world):
    await world.store.create(NODE, b"{}", make_parents=True)
    assert await starts(world) == 0
    assert world.log.state.name == "ONLINE"


async def test_metadata_that_are_away_keep_all(world, monkeypatch):
    await tell_archived(world.store, PATH, 30)

    async def away(_store, path):
        raise MetadataUnavailableError(path, "away")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "sync", away)
        assert await starts(world) == 0
    assert await starts(world) == 30
