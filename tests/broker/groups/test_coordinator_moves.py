"""A group's coordinator follows its partition of `__consumer_offsets`."""

import pytest
import trio

from broker.coordinator.partition import PartitionState
from wire.kafka.errors import ErrorCode


@pytest.fixture
def new_loading_world(make_world):
    """A world whose one partition is being taken over: `log` is LOADING."""

    async def start():
        world = make_world(offsets_topic_num_partitions=1)
        world.catalog.add("__consumer_offsets", 1)
        world.log = world.logs.get("__consumer_offsets", 0)
        world.log.state = world.log.State.LOADING
        await world.start()
        return world

    return start


def go_online(log):
    log.state = log.State.ONLINE
    for watcher in list(log._watchers):
        watcher()


async def test_loading_begins_when_the_log_is_online(new_loading_world):
    world = await new_loading_world()
    coordinator, log = world.coordinator, world.log
    assert coordinator.heartbeat("g", "m", None, 1) is ErrorCode.NONE, "it is being loaded"
    assert coordinator.describe("g")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await trio.testing.wait_all_tasks_blocked()
    partition = coordinator.base.partitions[0]
    assert partition.state is PartitionState.LOADING
    assert coordinator.base._loads.statistics().current_buffer_used == 0, "it takes nobody's place"
    go_online(log)
    await partition.settled.wait()
    assert coordinator.describe("g")[0] is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_log_that_is_not_taken_over(new_loading_world):
    world = await new_loading_world()
    world.log.go_offline()
    assert world.coordinator.describe("g")[0] is ErrorCode.NOT_COORDINATOR
    successor = world.log.successor()
    world.logs.hold(0, successor)
    await trio.testing.wait_all_tasks_blocked()
    assert world.coordinator.describe("g")[0] is ErrorCode.GROUP_ID_NOT_FOUND


async def test_lost_while_it_is_read_and_held_anew(new_loading_world):
    world = await new_loading_world()
    log = world.log
    log.batches.append((0, b""))
    log.high_watermark = 1
    log.reads_allowed = trio.Event()
    go_online(log)
    await trio.testing.wait_all_tasks_blocked()
    log.go_offline()
    assert world.coordinator.describe("g")[0] is ErrorCode.NOT_COORDINATOR
    successor = world.log.successor()
    successor.batches, successor.high_watermark = [], 0
    world.logs.hold(0, successor)
    await trio.testing.wait_all_tasks_blocked()
    assert world.coordinator.describe("g")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    log.reads_allowed.set()
    await trio.testing.wait_all_tasks_blocked()
    assert world.coordinator.describe("g")[0] is ErrorCode.GROUP_ID_NOT_FOUND
