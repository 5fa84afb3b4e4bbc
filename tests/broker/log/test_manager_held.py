"""What a broker says it holds: by name, by topic, and all of it in slices."""

from collections import Counter

import pytest
import trio

from broker.log import manager as manager_module
from broker.log.partition import State

PARTITIONS = 12


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks: what happens in one of them holds the loop."""

    def __init__(self):
        self.count = 0

    def before_task_step(self, task):
        self.count += 1


@pytest.fixture
async def manager(autojump_clock, sim, nursery):
    cluster = sim.Cluster()
    one = await cluster.start(nursery, 1)
    topic = await cluster.create_topic(one, PARTITIONS)
    for partition in range(PARTITIONS):
        cluster.assignments.assign(topic.id, partition, 1)
    await trio.sleep(60)
    yield one.manager
    await one.kill()


async def test_partitions_are_found_by_their_names(autojump_clock, manager):
    assert [log.partition for log in manager.of_topic("t")] == list(range(PARTITIONS))
    assert manager.of_topic("u") == []
    assert manager.named("t-11") is manager.get("t", 11)
    for name in ("t", "t-", "t-12", "t-011", "t--1", "u-0", "-1", "", "t-1 ", "t-\u0661"):
        assert manager.named(name) is None, name


async def test_all_are_looked_at_in_slices(autojump_clock, manager, monkeypatch):
    monkeypatch.setattr(manager_module, "LOOKS_PER_TURN", 5)
    asked, steps = Counter(), Steps()

    def is_offline(log):
        asked[steps.count] += 1
        return log.state is State.OFFLINE

    trio.lowlevel.add_instrument(steps)
    assert not await manager.any(is_offline)
    trio.lowlevel.remove_instrument(steps)
    assert list(asked.values()) == [5, 5, 2]
    manager.get("t", 0).go_offline("a test")
    asked.clear()
    assert await manager.any(is_offline)
    assert asked.total() == 1


async def test_partitions_that_come_while_all_are_looked_at_harm_nothing(
    autojump_clock, manager, monkeypatch
):
    monkeypatch.setattr(manager_module, "LOOKS_PER_TURN", 1)
    seen = []

    def is_new(log):
        # What follows changes the map that is walked over.
        manager._held["u"] = manager._held["t"]
        manager._held[f"u{len(seen)}"] = {}
        seen.append(log.partition)
        return False

    assert not await manager.any(is_new)
    assert seen == list(range(PARTITIONS))
    for name in [name for name in manager._held if name != "t"]:
        del manager._held[name]
