"""The persister: of the broker that has the coordinator, and of another one over the wire."""

from __future__ import annotations

import dataclasses
import random
import uuid
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from broker.cluster.peers import BrokerPeers
from broker.dispatch import Dispatcher
from broker.handlers.share_state import ShareStateHandler
from broker.server import KafkaServer, ServerSettings
from broker.share import persister
from broker.share.persister import RETRY_SECONDS, CoordinatorPersister
from broker.share.ports import ShareKey, ShareState, StateBatch
from broker.transactions.ports import OtherBrokers
from runtime.env import Env
from runtime.sim_network import NetFaults, SimNetwork
from runtime.timers import Timers
from runtime.turn import Turn
from tests.broker.share.state.world import T, World
from wire.kafka.errors import ErrorCode as E

ME, OTHER = 1, 2
KEYS = [ShareKey(group, T, at) for group in ("g", "h") for at in range(4)]


class Cluster(World):
    """The coordinator is broker 1's, whose log acknowledges at once; `OTHER` asks it."""

    async def start(self):
        await super().start()
        timers = Timers()
        await self.nursery.start(timers.run)
        network = SimNetwork(random.Random(7), timers, NetFaults())
        net = network.host("one", self.turn)
        await self.nursery.start(net.run)
        self.requests, self.leads = [], True
        apis = [
            dataclasses.replace(api, handle=self.counting(api.handle))
            for api in ShareStateHandler(self.coordinator).apis()
        ]
        dispatcher = Dispatcher(apis, self.nursery, self.turn, strict=True)
        KafkaServer(net, dispatcher, ServerSettings()).listen("one", 9092, "INTERNAL")
        turn = Turn()
        self.nursery.start_soon(turn.serve)
        other_net = network.host("two", turn)
        await self.nursery.start(other_net.run)
        clock = SimpleNamespace(monotonic=trio.current_time, time_ms=lambda: 0)
        env = Env(clock=clock, rng=random.Random(1), net=other_net, disk=None, turn=turn)
        peers = BrokerPeers(env, "broker-2")
        await self.nursery.start(peers.run)
        self.persisters = {
            node: CoordinatorPersister(
                turn, self.coordinator, OtherBrokers(self, "INTERNAL", node, peers)
            )
            for node in (ME, OTHER)
        }
        self.nursery.start_soon(self.acknowledge)
        return self

    async def acknowledge(self):
        while True:
            await trio.sleep(0.001)
            self.log.ack(1_000)

    def counting(self, handle):
        def counted(request):
            self.requests.append(request.body)
            return handle(request)

        return counted

    def leader(self, topic, partition, listener):
        return SimpleNamespace(node_id=ME, host="one", port=9092) if self.leads else None


@pytest.fixture
async def cluster(nursery):
    return await Cluster(nursery).start()


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_a_life(cluster, node, autojump_clock):
    persister = cluster.persisters[node]
    done = await persister.initialize([(key, 1, at) for at, key in enumerate(KEYS)])
    assert done == dict.fromkeys(KEYS, E.NONE)
    read = await persister.read([(key, 3) for key in KEYS])
    assert [read[key].start_offset for key in KEYS] == [*range(8)]
    batches = (StateBatch(10, 19, 2, 1),)
    assert await persister.write(KEYS[5], 1, 3, 10, 10, batches) is E.NONE
    assert await persister.write(KEYS[5], 1, 2, 10, 10, batches) is E.FENCED_LEADER_EPOCH
    assert await persister.write(KEYS[5], 0, 3, 10, 10, batches) is E.FENCED_STATE_EPOCH
    (state,) = (await persister.read([(KEYS[5], -1)])).values()
    assert (state.state_epoch, state.start_offset, state.batches) == (1, 10, batches)
    told = await persister.read_summary(KEYS[5:6])
    assert told == {KEYS[5]: ShareState(E.NONE, 1, 10, 10, (), 3)}
    gone = ShareKey("g", uuid.UUID(int=5), 0)
    assert await persister.delete([*KEYS, gone]) == dict.fromkeys([*KEYS, gone], E.NONE)
    assert await persister.write(KEYS[5], 1, 3, 10, 10, batches) is E.INVALID_REQUEST
    assert await persister.read([]) == {}


async def test_one_request_for_each_coordinator_and_group(cluster, autojump_clock):
    persister = cluster.persisters[OTHER]
    await persister.initialize([(key, 1, 0) for key in KEYS])
    assert [each.group_id for each in cluster.requests] == ["g", "h"]
    cluster.requests.clear()
    async with trio.open_nursery() as nursery:
        for at, key in enumerate([*KEYS, KEYS[0]]):
            batches = [StateBatch(at, at, 2, 1)]
            nursery.start_soon(persister.write, key, 1, -1, -1, -1, batches)
    # Two writes of one key cannot be told apart in an answer. Which task begins first is trio's.
    assert sorted(each.group_id for each in cluster.requests) == ["g", "g", "h"]
    (state,) = (await persister.read([(KEYS[0], -1)])).values()
    assert state.batches == (StateBatch(0, 0, 2, 1), StateBatch(8, 8, 2, 1))


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_who_is_refused_asks_again(cluster, node, autojump_clock):
    """While the coordinator loads, while nobody leads, and until a topic is known."""
    persister = cluster.persisters[node]
    found = cluster.topics.pop(T)
    cluster.leads = False

    async def later():
        await trio.sleep(2)
        cluster.leads = True
        await trio.sleep(2)
        cluster.topics[T] = found

    cluster.nursery.start_soon(later)
    assert await persister.initialize([(KEYS[0], 1, 0)]) == {KEYS[0]: E.NONE}
    assert 4 < trio.current_time() < 7
    cluster.log.refusals.append(E.NOT_ENOUGH_REPLICAS)
    assert await persister.write(KEYS[0], 1, -1, 5, 0, []) is E.NONE


@pytest.mark.parametrize("node", [ME, OTHER])
async def test_who_cannot_be_reached_is_not_asked_for_ever(cluster, node, autojump_clock):
    cluster.leads = False
    began = trio.current_time()
    persister = cluster.persisters[node]
    assert await persister.write(KEYS[0], 1, 1, 5, 0, []) is E.COORDINATOR_NOT_AVAILABLE
    assert trio.current_time() - began == pytest.approx(RETRY_SECONDS)
    assert persister._question_count == 0


async def test_too_many_questions_are_told_at_once(monkeypatch):
    """Nobody is asked, and nothing waits."""
    monkeypatch.setattr(persister, "QUESTIONS_MAX", 1)
    found = await CoordinatorPersister(None, None, None).read_summary(KEYS[:2])
    assert [found[key].error for key in KEYS[:2]] == [E.COORDINATOR_NOT_AVAILABLE] * 2
