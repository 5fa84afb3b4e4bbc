"""A broker asks the coordinators of transactions for its partitions: its own by a plain call, those
of another broker over a network in memory, through a real server and the real handlers."""

from __future__ import annotations

import pytest
import trio

from broker.transactions.types import TV1, TV2
from tests.broker.transactions.cluster import Cluster
from tests.broker.transactions.world import ME, OTHER, TOPIC
from wire.kafka.errors import ErrorCode as E


@pytest.fixture
async def cluster(nursery, autojump_clock):
    cluster = Cluster(nursery)
    await cluster.start()
    return cluster


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_partitions_are_added_and_verified(cluster, node, autojump_clock):
    result = await cluster.ask(cluster.init())
    producer = result.producer_id, result.epoch
    ask = cluster.question
    assert await cluster.told(ask(node, producer, adds=False)) is E.TRANSACTION_ABORTABLE
    assert await cluster.told(ask(node, producer, adds=True)) is E.NONE
    assert await cluster.told(ask(node, producer, adds=False)) is E.NONE
    both = [("t", 0), ("t", 1)]
    assert await cluster.told(ask(node, producer, both, adds=False)) is E.TRANSACTION_ABORTABLE
    assert cluster.txn.partitions == {("t", 0)}
    assert cluster.txn.version == TV2
    late = producer[0], producer[1] + 1
    assert await cluster.told(ask(node, late, adds=True)) is E.PRODUCER_FENCED
    unknown = await cluster.told(ask(node, producer, adds=True, name="no"))
    assert unknown is E.INVALID_PRODUCER_ID_MAPPING
    assert bool(cluster.requests) == (node == OTHER)


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_the_end_of_the_transaction_before_is_waited_for(cluster, node, autojump_clock):
    producer = await cluster.begin()
    cluster.partitions.is_mute = True
    result = await cluster.ask(cluster.end(producer, True))
    after = result.producer_id, result.epoch
    waiting = cluster.question(node, after, adds=True)
    await trio.sleep(0.05)
    cluster.partitions.answer()
    assert await cluster.told(waiting) is E.NONE
    cluster.partitions.is_mute = True
    result = await cluster.ask(cluster.end(after, True))
    after = result.producer_id, result.epoch
    busy = await cluster.told(cluster.question(node, after, adds=True))
    assert busy is E.CONCURRENT_TRANSACTIONS


async def test_all_of_a_turn_is_one_request(cluster, autojump_clock):
    a, b = await cluster.begin(name="a"), await cluster.begin(TV1, name="b")
    asked = [
        cluster.question(OTHER, a, [("t", 0)], adds=True, name="a"),
        cluster.question(OTHER, a, [("t", 2)], adds=True, name="a"),
        cluster.question(OTHER, b, [("t", 0)], adds=False, name="b"),
        cluster.question(OTHER, b, [("t", 2)], adds=False, name="b"),
    ]
    told = [await cluster.told(answers) for answers in asked]
    assert told == [E.NONE, E.NONE, E.NONE, E.TRANSACTION_ABORTABLE]
    (request,) = cluster.requests
    assert [each.transactional_id for each in request.transactions] == ["a", "b"]
    assert [each.verify_only for each in request.transactions] == [False, True]
    assert request.transactions[0].topics[0].partitions == [0, 2]


async def test_an_answer_is_of_its_own_question(cluster, autojump_clock):
    """Two that name one id differently: an answer names the id alone."""
    producer = await cluster.begin()
    late = producer[0], producer[1] + 1
    asked = [
        cluster.question(OTHER, producer, adds=False),
        cluster.question(OTHER, late, adds=False),
        cluster.question(OTHER, producer, adds=True),
        cluster.question(OTHER, producer, adds=True),
    ]
    told = [await cluster.told(answers) for answers in asked]
    assert told == [E.NONE, E.PRODUCER_FENCED, E.NONE, E.NONE]
    assert len(cluster.requests) == 3


async def test_whom_nobody_can_ask(cluster, autojump_clock):
    producer = await cluster.begin()
    cluster.leaders[TOPIC, 0] = None
    answers = cluster.question(OTHER, producer, adds=True)
    assert answers == [E.COORDINATOR_NOT_AVAILABLE]
    cluster.leaders[TOPIC, 0] = ME
    cluster.net.crash(is_silent=False)
    answers = cluster.question(OTHER, producer, adds=True)
    assert await cluster.told(answers) is E.NETWORK_EXCEPTION
    cluster.catalog.remove(TOPIC)
    assert cluster.question(OTHER, producer, adds=True) == [E.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_verification_can_be_switched_off(cluster, node, autojump_clock):
    producer = await cluster.begin()
    cluster.is_enabled = False
    assert cluster.question(node, producer, [("t", 2)], adds=False) == [E.NONE]
    await cluster.told(cluster.question(node, producer, [("t", 2)], adds=True))
    assert ("t", 2) in cluster.txn.partitions
