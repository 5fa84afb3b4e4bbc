"""A broker asks the coordinators of transactions for its partitions: its own by a plain call, those
of another broker over a network in memory, through a real server and the real handlers."""

from __future__ import annotations

import random

import pytest
import trio

from broker.transactions.types import TV1, TV2
from broker.transactions.verifier import OWN_UNITS
from runtime.turn import SPENT_UNITS
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


@pytest.mark.parametrize("adds", [True, False])
async def test_a_turns_partitions_of_a_transaction_are_one_record(cluster, adds, autojump_clock):
    """It has all partitions of the transaction: one for each would be their square, and a Produce
    may name thousands."""
    count = 150  # more than may wait for the end of one transaction
    cluster.catalog.add("many", count)
    names = [("many", number) for number in range(count)]
    producer = await cluster.begin()
    if not adds:
        await cluster.ask(cluster.add(producer, names[:-1]))
    cluster.partitions.is_mute = adds
    if adds:
        result = await cluster.ask(cluster.end(producer, True))
        producer = result.producer_id, result.epoch
    stored = len(cluster.log.values())
    asked = [cluster.question(ME, producer, [name], adds=adds) for name in names]
    await cluster.settle()
    cluster.partitions.answer()
    told = [await cluster.told(answers) for answers in asked]
    assert told[:-1] == [E.NONE] * (count - 1)
    assert told[-1] is (E.NONE if adds else E.TRANSACTION_ABORTABLE)
    assert len(cluster.log.values()) <= stored + 2
    assert cluster.txn.partitions >= set(names[:-1])


async def test_questions_of_one_turn_that_are_too_many_for_it(cluster, autojump_clock):
    """Of other ids: each is a call, and the turn has room for some fifty."""
    turn, spent = cluster.verifiers[ME]._turn, []
    add_partitions = cluster.coordinator.add_partitions

    def add(*args, **kwargs):
        spent.append(turn.spent_units)
        add_partitions(*args, **kwargs)

    cluster.coordinator.add_partitions = add
    producers = [await cluster.begin(name=f"id-{number}") for number in range(120)]
    asked = [
        cluster.question(ME, producer, [("t", 2)], adds=True, name=f"id-{number}")
        for number, producer in enumerate(producers)
    ]
    for number, producer in enumerate(producers):
        asked.append(
            cluster.question(ME, producer, [("u", 2)], adds=number % 2 > 0, name=f"id-{number}")
        )
    told = [await cluster.told(answers) for answers in asked]
    assert told[:120] == [E.NONE] * 120
    assert told[120::2] == [E.TRANSACTION_ABORTABLE] * 60
    assert told[121::2] == [E.NONE] * 60
    assert len(spent) > 120
    assert max(spent) <= SPENT_UNITS + OWN_UNITS


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


async def test_who_asks_when_an_answer_comes_asks_anew(cluster, autojump_clock):
    """The question that was queued last has left by then: what joined it would be told of an
    answer that knows nothing of it."""
    producer = await cluster.begin()
    verifier = cluster.verifiers[ME]
    heard, again = [], []

    def told(error):
        heard.append(error)
        verifier.ask("id", *producer, (("u", 2),), adds=True, done=again.append)

    late = producer[0], producer[1] + 1
    verifier.ask("id", *late, (("t", 2),), adds=True, done=told)  # refused at once
    assert await cluster.told(heard) is E.PRODUCER_FENCED
    assert await cluster.told(again) is E.NONE
    assert ("u", 2) in cluster.txn.partitions
    assert ("t", 2) not in cluster.txn.partitions


@pytest.mark.parametrize("seed", range(12))
async def test_questions_in_one_turn_are_answered_as_one_by_one(cluster, seed, autojump_clock):
    """Whatever joins whatever: each is told once, what it would be told alone."""
    rng = random.Random(seed)
    names = [f"id-{number}" for number in range(3)]
    producers = {name: await cluster.begin(name=name) for name in names}
    for _ in range(6):
        asked = []
        for _ in range(rng.randrange(1, 12)):
            name, adds = rng.choice(names), rng.random() < 0.7
            pid, epoch = producers[name]
            epoch += rng.random() < 0.2
            partition = (rng.choice("tu"), rng.randrange(3))
            answers = cluster.question(ME, (pid, epoch), [partition], adds=adds, name=name)
            asked.append((name, epoch == producers[name][1], partition, adds, answers))
            if rng.random() < 0.1:
                await cluster.settle()
        for name, is_current, partition, adds, answers in asked:
            error = await cluster.told(answers)
            if not is_current:
                assert error is E.PRODUCER_FENCED
                continue
            _, txn = cluster.coordinator.describe(name)
            if adds:
                assert error is E.NONE
            assert error or partition in txn.partitions
            assert error in (E.NONE, E.TRANSACTION_ABORTABLE)
