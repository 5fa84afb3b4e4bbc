"""Figures of transactions by Kafka's names, of a coordinator in each state that they tell of."""

import math
from types import SimpleNamespace

import pytest
import trio

from broker.log.append.producer_state import ProducerState
from quire.metrics.coordinators import load_times_collector
from quire.metrics.transactions import (
    coordinator_collector,
    open_transactions_collector,
    verification_collector,
)
from tests.broker.log.append.test_producer_state import batch
from tests.broker.transactions.cluster import Cluster
from tests.broker.transactions.world import ME, OTHER, E, World

LOADS = "kafka_server_transactioncoordinatormetrics_partition_load_time_"
MARKERS = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
VERIFIED = "kafka_server_addpartitionstotxnmanager_verification"


def figures(collector):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector()
        for sample in family.samples
    }


@pytest.fixture
async def world(nursery):
    world = World(nursery)
    await world.start()
    return world


async def test_of_loads(world, autojump_clock):
    collector = load_times_collector("transaction", world.coordinator.load_times)
    assert figures(collector)[LOADS + "max",] == 0.0
    await trio.sleep(61)
    assert math.isnan(figures(collector)[LOADS + "avg",])


async def test_of_the_coordinator(world, autojump_clock):
    collector = coordinator_collector(world.coordinator)
    producer = await world.begin()
    world.leaders["t", 0] = None
    await world.ask(world.end(producer, True))
    await trio.sleep(5)
    found = figures(collector)
    assert found[MARKERS + "unknowndestinationqueuesize",] == 1
    assert found[MARKERS + "logappendretryqueuesize",] == 0
    assert found["quire_transactions_transactional_ids",] == 1
    world.leaders.clear()
    await trio.sleep(2)
    found = figures(collector)
    assert found[MARKERS + "unknowndestinationqueuesize",] == 0
    assert found["quire_transactions_markers_parked",] == 0


async def test_a_completion_that_is_refused_is_told_until_it_is_loaded_anew(world, autojump_clock):
    collector = coordinator_collector(world.coordinator)
    producer = await world.begin()
    world.partitions.is_mute = True
    await world.ask(world.end(producer, True))
    for is_first in (True, False):  # the first load is at once, the next one not
        world.log.fail_with = E.NOT_ENOUGH_REPLICAS
        world.partitions.answer()
        await world.settle()
        world.log.fail_with = None
        await trio.sleep(0.5)
        assert figures(collector)[MARKERS + "logappendretryqueuesize",] == (not is_first)
    world.partitions.is_mute = False
    await trio.sleep(2)
    assert figures(collector)[MARKERS + "logappendretryqueuesize",] == 0


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_of_verification(nursery, autojump_clock, node):
    cluster = Cluster(nursery)
    await cluster.start()
    verifier = cluster.verifiers[node]
    before = verifier.failure_count
    collector = verification_collector(verifier, cluster.env.clock)
    producer = await cluster.begin()
    asked = [("t", 0), ("t", 1), ("t", 2)]
    assert await cluster.told(cluster.question(node, producer, asked, adds=False))
    found = figures(collector)
    assert found[VERIFIED + "failurerate_total",] == before + 3
    assert await cluster.told(cluster.question(node, producer, asked, adds=True)) is E.NONE
    assert figures(collector)[VERIFIED + "failurerate_total",] == before + 3
    assert figures(collector)[VERIFIED + "timems_count",] == found[VERIFIED + "timems_count",] + 1
    assert figures(collector)[VERIFIED + "timems", "0.99"] >= 0


def test_of_open_transactions():
    state = ProducerState(producers_max=10)
    log = SimpleNamespace(
        topic=SimpleNamespace(name="t"),
        partition=2,
        producers=state,
        high_watermark=10,
        last_stable_offset=10,
    )
    now_ms = 10_000_000
    clock = SimpleNamespace(time_ms=lambda: now_ms)
    logs = SimpleNamespace(all=lambda: iter([log]))
    collector = open_transactions_collector(logs, clock, 60_000)
    late = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    lag = "kafka_cluster_partition_laststableoffsetlag"
    assert figures(collector) == {(late,): 0, (lag, "t", "2"): 0}
    state.append(batch(0, transactional=True), 7, now_ms)
    log.last_stable_offset = 7
    assert figures(collector) == {(late,): 0, (lag, "t", "2"): 3}
    now_ms += 360_000
    assert figures(collector)[late,] == 0
    now_ms += 1
    assert figures(collector)[late,] == 1
