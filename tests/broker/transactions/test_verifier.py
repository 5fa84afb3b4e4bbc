"""A broker asks the coordinators of transactions for its partitions: its own by a plain call, those
of another broker over a network in memory, through a real server and the real handlers."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import pytest
import trio

from broker.cluster.peers import BrokerPeers
from broker.coordinator.topic import CoordinatorTopic
from broker.dispatch import Dispatcher
from broker.handlers.transactions import TransactionsHandler
from broker.server import KafkaServer, ServerSettings
from broker.transactions.types import TV1, TV2
from broker.transactions.verifier import CoordinatorVerifier
from runtime.env import Env
from runtime.sim_network import NetFaults, SimNetwork
from runtime.timers import Timers
from runtime.turn import Turn
from tests.broker.transactions.world import ME, OTHER, TOPIC, VirtualClock, World
from wire.kafka.errors import ErrorCode as E


class Cluster(World):
    """The coordinator is broker 1's; broker 2 has partitions, and asks."""

    async def start(self, **kwargs):
        await super().start(**kwargs)
        timers = Timers()
        await self.nursery.start(timers.run)
        network = SimNetwork(random.Random(7), timers, NetFaults())
        self.net = network.host("one", self.turn)
        await self.nursery.start(self.net.run)
        offsets = CoordinatorTopic(self.catalog, "__consumer_offsets", 50, {})
        self.requests = []
        apis = TransactionsHandler(self.coordinator, self.catalog, offsets).apis()
        apis = [dataclasses.replace(api, handle=self.counting(api.handle)) for api in apis]
        dispatcher = Dispatcher(apis, self.nursery, self.turn, strict=True)
        KafkaServer(self.net, dispatcher, ServerSettings()).listen("one", 9092, "INTERNAL")
        turn = Turn()
        self.nursery.start_soon(turn.serve)
        net = network.host("two", turn)
        await self.nursery.start(net.run)
        env = Env(clock=VirtualClock(), rng=random.Random(1), net=net, disk=None, turn=turn)
        peers = BrokerPeers(env, "broker-2")
        await self.nursery.start(peers.run)
        self.is_enabled = True
        self.verifiers = {
            node: CoordinatorVerifier(
                turn, self.coordinator, self, "INTERNAL", node, peers, lambda: self.is_enabled
            )
            for node in (ME, OTHER)
        }

    def counting(self, handle):
        def counted(request):
            self.requests.append(request.body)
            return handle(request)

        return counted

    def leader(self, topic, partition, listener):
        found = super().leader(topic, partition, listener)
        return found and SimpleNamespace(node_id=found.node_id, host="one", port=9092)

    def question(self, node, producer, partitions=(("t", 0),), *, adds, name="id"):
        answers = []
        self.verifiers[node].ask(name, *producer, partitions, adds=adds, done=answers.append)
        return answers

    async def told(self, answers):
        with trio.fail_after(60):
            while not answers:
                await trio.sleep(0.01)
        (error,) = answers
        return error


@pytest.fixture
async def cluster(nursery, autojump_clock):
    cluster = Cluster(nursery)
    await cluster.start()
    return cluster


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_partitions_are_added_and_verified(cluster, node):
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
async def test_the_end_of_the_transaction_before_is_waited_for(cluster, node):
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


async def test_all_of_a_turn_is_one_request(cluster):
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


async def test_an_answer_is_of_its_own_question(cluster):
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


async def test_whom_nobody_can_ask(cluster):
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
async def test_verification_can_be_switched_off(cluster, node):
    producer = await cluster.begin()
    cluster.is_enabled = False
    assert cluster.question(node, producer, [("t", 2)], adds=False) == [E.NONE]
    await cluster.told(cluster.question(node, producer, [("t", 2)], adds=True))
    assert ("t", 2) in cluster.txn.partitions
