"""A ledger below the log start that is kept for its snapshot of the producers, and when it goes."""

import pytest
import trio

from broker.log.settings import LogSettings
from tests.broker.log.test_partition import World


@pytest.fixture
async def world(tmp_path, nursery):
    world = World(str(tmp_path), nursery, LogSettings(producer_expiration_ms=1))
    world.config.segment_bytes = 200
    await world.start()
    return world


async def until(condition):
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.002)


async def test_it_goes_when_the_producers_have_expired(world):
    """Nobody writes any more, so that no other snapshot follows: the periodic look finds it."""
    await world.append(bytes(300), producer_id=7, producer_epoch=0, base_sequence=0)
    await until(lambda: world.log.writer is None)
    assert await world.keeper.delete_records(-1) == 1
    assert len(world.log.chain.ledgers) == 1
    await trio.sleep(0.01)
    assert len(world.log.producers) == 1
    assert len(world.log.chain.ledgers) == 1
    world.keeper.check_retention()
    assert len(world.log.producers) == 0
    await until(lambda: not world.log.chain.ledgers and not world.log.chain.deleting)
    assert world.log.segments == []
