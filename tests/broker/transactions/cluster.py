"""Two brokers on a network in memory: the first has the coordinator, the second asks it."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import trio

from broker.cluster.peers import BrokerPeers
from broker.coordinator.topic import CoordinatorTopic
from broker.dispatch import Dispatcher
from broker.handlers.transactions import TransactionsHandler
from broker.server import KafkaServer, ServerSettings
from broker.transactions.ports import OtherBrokers
from broker.transactions.verifier import CoordinatorVerifier
from runtime.env import Env
from runtime.sim_network import NetFaults, SimNetwork
from runtime.timers import Timers
from runtime.turn import Turn
from tests.broker.transactions.world import ME, OTHER, VirtualClock, World
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
            node: CoordinatorVerifier(turn, env.clock, lambda: self.is_enabled)
            for node in (ME, OTHER)
        }
        assert self.question(ME, (1, 1), adds=True) == [E.COORDINATOR_NOT_AVAILABLE]
        for node, verifier in self.verifiers.items():
            verifier.serve(self.coordinator, OtherBrokers(self, "INTERNAL", node, peers))

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
