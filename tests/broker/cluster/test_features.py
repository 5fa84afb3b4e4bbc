"""Finalized features: who decides, who follows, and what a rolling upgrade looks like."""

from __future__ import annotations

import json

import pytest
import trio

from broker.cluster.features import (
    FEATURES_PATH,
    GROUP_VERSION,
    TRANSACTION_VERSION,
    FinalizedFeatures,
)
from metadata.memory import MemoryStore
from metadata.store import MetadataUnavailableError


class Store(MemoryStore):
    fails = 0

    async def get(self, path):
        if self.fails:
            self.fails -= 1
            raise MetadataUnavailableError(path)
        return await super().get(path)


class Cluster:
    def __init__(self, nursery):
        self.nursery = nursery
        self.store = Store()
        self.levels = {1: 2, 2: 2, 3: 2}  # of live brokers
        self.controllers = {1}
        self.features = {}

    async def start(self, node_id):
        def supported():  # who serves the one serves the other
            return {
                broker: {TRANSACTION_VERSION: n, GROUP_VERSION: n - 1}
                for broker, n in self.levels.items()
            }

        made = self.features[node_id] = FinalizedFeatures(
            self.store, f"life-{node_id}", supported, lambda: node_id in self.controllers
        )
        await self.nursery.start(made.run)
        return made

    def changed(self):
        for each in self.features.values():
            each.look_again()

    def told(self):
        for each in self.features.values():
            assert each.levels[GROUP_VERSION] == max(each.transaction_version - 1, 0)
        return {(each.transaction_version, each.epoch) for each in self.features.values()}


@pytest.fixture
async def cluster(nursery):
    cluster = Cluster(nursery)
    await nursery.start(cluster.store.run)
    return cluster


async def test_nothing_is_finalized_before_somebody_decides(cluster):
    cluster.controllers = set()
    made = await cluster.start(2)
    assert (made.transaction_version, made.epoch) == (1, -1)


async def test_a_rolling_upgrade(cluster, autojump_clock):
    cluster.levels = {1: 0, 2: 0, 3: 0}
    for node_id in (1, 2, 3):
        await cluster.start(node_id)
    for node_id in (1, 2, 3):
        assert cluster.told() == {(1, -1)}
        cluster.levels[node_id] = 2
        cluster.changed()
        await trio.sleep(1)
    assert cluster.told() == {(2, 0)}
    # An old one joins: back, under a higher epoch, so that clients take it for newer.
    cluster.levels[4] = 0
    cluster.changed()
    await trio.sleep(1)
    assert cluster.told() == {(1, 1)}
    del cluster.levels[4]
    cluster.changed()
    await trio.sleep(1)
    assert cluster.told() == {(2, 2)}


async def test_two_that_take_themselves_for_the_controller(cluster, autojump_clock):
    cluster.controllers = {1, 2, 3}
    for node_id in (1, 2, 3):
        await cluster.start(node_id)
    cluster.changed()
    await trio.sleep(1)
    assert cluster.told() == {(2, 0)}
    cluster.levels[1] = 1
    cluster.changed()
    await trio.sleep(1)
    assert cluster.told() == {(1, 1)}, "one write, whoever was first"


async def test_who_comes_later_reads_what_was_decided(cluster, autojump_clock):
    await cluster.start(1)
    await trio.sleep(1)
    made = await cluster.start(2)
    assert (made.transaction_version, made.epoch) == (2, 0)


@pytest.mark.parametrize(
    ("data", "level", "groups"),
    [
        (b"", 1, 0),
        (b"[]", 1, 0),
        (b'{"format": 2, "transaction.version": 2}', 1, 0),
        (b'{"format": 1}', 1, 0),
        (b'{"format": 1, "transaction.version": 7}', 2, 0),
        (b'{"format": 1, "transaction.version": 1, "group.version": 1}', 1, 1),
        (b'{"format": 1, "transaction.version": 2, "group.version": 9}', 2, 1),
        (b'{"format": 1, "transaction.version": 2, "group.version": "x"}', 1, 0),
        (b'{"format": 1, "transaction.version": 2, "limits": 5}', 1, 0),
        (b'{"format": 1, "transaction.version": 2, "group.version": -1}', 2, 0),
    ],
)
async def test_documents_of_others(cluster, autojump_clock, data, level, groups):
    await cluster.store.create(FEATURES_PATH, data, make_parents=True)
    made = await cluster.start(2)
    assert (made.transaction_version, made.levels[GROUP_VERSION]) == (level, groups)


async def test_metadata_that_is_away(cluster, autojump_clock):
    await cluster.start(1)
    await trio.sleep(1)
    cluster.store.fails = 3
    cluster.levels[1] = 1
    cluster.changed()
    await trio.sleep(1)
    assert cluster.told() == {(2, 0)}, "what was known stays known"
    await trio.sleep(2)
    assert cluster.told() == {(1, 1)}
    assert json.loads((await cluster.store.get(FEATURES_PATH)).data)["by"] == "life-1"


def lowered(level):
    return lambda levels: {TRANSACTION_VERSION: level, GROUP_VERSION: max(level - 1, 0)}


async def test_what_an_operator_lowered_stays_low_until_he_raises_it(cluster, autojump_clock):
    for node_id in (1, 2):
        await cluster.start(node_id)
    await trio.sleep(1)
    await cluster.features[2].update(lowered(1))
    assert cluster.features[2].transaction_version == 1, "in force when it is done"
    cluster.changed()
    await trio.sleep(1)
    assert cluster.told() == {(1, 1)}, "the controller does not raise it again"
    cluster.levels[1] = 1
    cluster.changed()
    await trio.sleep(1)
    await cluster.features[1].update(lowered(0))
    await trio.sleep(1)
    assert cluster.told() == {(0, 2)}
    cluster.levels[1] = 2
    await cluster.features[1].update(lowered(2))
    await trio.sleep(1)
    assert cluster.told() == {(2, 3)}
    assert "limits" not in json.loads((await cluster.store.get(FEATURES_PATH)).data)


async def test_a_feature_is_lowered_and_the_others_stay(cluster, autojump_clock):
    made = await cluster.start(1)
    await trio.sleep(1)
    for changed, levels in [
        ({GROUP_VERSION: 0}, (2, 0)),
        ({TRANSACTION_VERSION: 1}, (1, 0)),
        ({GROUP_VERSION: 1}, (1, 1)),
        ({TRANSACTION_VERSION: 2}, (2, 1)),
    ]:
        await made.update(lambda _, changed=changed: changed)
        cluster.changed()
        await trio.sleep(1)
        assert (made.levels[TRANSACTION_VERSION], made.levels[GROUP_VERSION]) == levels


async def test_an_update_that_changes_nothing_writes_nothing(cluster, autojump_clock):
    await cluster.start(1)
    await trio.sleep(1)
    await cluster.features[1].update(lowered(2))
    assert cluster.told() == {(2, 0)}


async def test_an_update_is_checked_against_what_another_broker_wrote(cluster, autojump_clock):
    await cluster.start(1)
    late = await cluster.start(2)
    await trio.sleep(1)
    seen = []

    def change(levels):
        seen.append(levels[TRANSACTION_VERSION])
        return {TRANSACTION_VERSION: 1}

    cluster.store.fails = 1
    with pytest.raises(MetadataUnavailableError):
        await late.update(change)
    node = await cluster.store.get(FEATURES_PATH)
    await cluster.store.put(FEATURES_PATH, node.data.replace(b":2", b":1"), node.version)
    await late.update(change)
    assert seen == [1]
