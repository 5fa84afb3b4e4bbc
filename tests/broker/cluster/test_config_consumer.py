"""A consumer group's settings in force: its own, the broker's, and what the broker allows."""

from __future__ import annotations

import pytest

from broker.cluster.config import BrokerConfig
from broker.cluster.registry import ConfigRegistry, Room
from metadata.memory import MemoryStore
from runtime.config import ConfigError

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture
async def store(nursery):
    store = MemoryStore()
    await nursery.start(store.run)
    return store


async def in_force(store, texts, **broker):
    registry = ConfigRegistry(store, broker)
    await registry.load()
    if texts:
        await registry.change(Room.GROUPS, "g", lambda _: texts)
    config = registry.consumer_group_config("g")
    assert registry.consumer_group_config("g") is config
    return (
        config.consumer_session_timeout_ms,
        config.consumer_heartbeat_interval_ms,
        config.consumer_assignment_interval_ms,
    )


async def test_of_a_group(store):
    assert await in_force(store, {}) == (45_000, 5_000, 1_000)
    assert await in_force(store, {SESSION: "50000"}) == (50_000, 5_000, 1_000)
    narrow = {"group.consumer.max.session.timeout.ms": "48000"}
    assert await in_force(store, {}, **narrow) == (48_000, 5_000, 1_000), "what was stored before"
    wide = {"group.consumer.assignment.interval.ms": "0"}
    assert await in_force(store, {}, **wide) == (50_000, 5_000, 0)


@pytest.mark.parametrize(
    "texts",
    [
        {"group.consumer.heartbeat.interval.ms": "50000",
         "group.consumer.max.heartbeat.interval.ms": "50000"},
        {"group.consumer.session.timeout.ms": "1000"},
        {"group.consumer.min.assignment.interval.ms": "2000"},
        {"group.consumer.assignors": "sticky"},
        {"group.consumer.assignors": ""},
        {"group.consumer.migration.policy": "both"},
    ],
)  # fmt: skip
def test_what_does_not_go_together(texts):
    with pytest.raises(ConfigError):
        BrokerConfig.parse(texts)
    assert BrokerConfig.parse({"group.consumer.migration.policy": "Upgrade"})
