"""What the share coordinator's requests are told by a broker that cannot serve them, on a log in
memory."""

import pytest
import trio
import trio.testing

from broker.handlers.share_state import ShareStateHandler
from tests.broker.calls import apis_of, call, errors_in
from tests.broker.handlers.test_share_state import delete, initialize, read, summary, write
from tests.broker.share.state.world import KEY, T, World
from wire.kafka.errors import ErrorCode

REQUESTS = {
    "initialize": initialize(T),
    "read": read(T, leader_epoch=1),
    "write": write(T, (0, 9, 2, 1)),
    "delete": delete(T),
    "summary": summary(T),
}


@pytest.fixture
async def world(nursery):
    world = await World(nursery, write_timeout_ms=5_000).start()
    world.apis = apis_of(ShareStateHandler(world.coordinator))
    return world


async def told(world):
    return {
        name: errors_in(await call(world.apis[body.INFO.key], body))
        for name, body in REQUESTS.items()
    }


def all_are(error):
    return {name: {error} for name in REQUESTS}


async def test_somebody_else_coordinates(world):
    await world.begin()
    world.log.go_offline()
    await trio.testing.wait_all_tasks_blocked()
    assert await told(world) == all_are("NOT_COORDINATOR")


async def test_the_state_is_being_loaded(world):
    await world.begin()
    old = world.log
    old.go_offline()
    await trio.testing.wait_all_tasks_blocked()
    log = world.logs[0] = type(old)(old.batches)
    for listener in world.listeners:
        listener(world.coordinator.topic.name, 0)
    assert await told(world) == all_are("COORDINATOR_LOAD_IN_PROGRESS")
    log.go_online()
    await trio.testing.wait_all_tasks_blocked()
    answer = await world.told(world.ask("read_summary", KEY))
    assert (answer.error.name, answer.state_epoch) == ("NONE", 1)


async def test_the_coordinator_has_stopped(nursery):
    world = World(nursery)
    nursery.start_soon(world.turn.serve)
    async with trio.open_nursery() as inner:
        await inner.start(world.coordinator.run)
        await world.hold()
        inner.cancel_scope.cancel()
    world.apis = apis_of(ShareStateHandler(world.coordinator))
    assert await told(world) == all_are("COORDINATOR_NOT_AVAILABLE")


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_log_that_refuses(world, autojump_clock, name):
    """Also what changes nothing is answered behind a record."""
    await world.begin()
    body = REQUESTS[name]
    world.log.refusals.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    api = world.apis[body.INFO.key]
    assert errors_in(await call(api, body)) == {"COORDINATOR_NOT_AVAILABLE"}
