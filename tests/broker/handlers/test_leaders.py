"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UnregisterBroker."""

import inspect
import random

import pytest
import trio

from broker.api import ConnectionInfo, Request, all_steps
from broker.cluster.assigned import AssignedOwnership
from broker.cluster.assignment import ASSIGNMENTS_PATH, Assigned, Assignment
from broker.cluster.balance import BrokerState
from broker.cluster.catalog import TopicCatalog
from broker.cluster.cluster_view import Brokers, BrokersView
from broker.cluster.durability import Bookies, bookie_node_id
from broker.cluster.membership import BROKERS_PATH, Membership, Registration
from broker.cluster.ownership import Incarnation
from broker.cluster.placing import Placing
from broker.cluster.registry import ConfigRegistry
from broker.handlers.cluster import ClusterHandler
from broker.handlers.leaders import LeadersHandler
from metadata.memory import MemoryStore
from runtime.env import Env, RealClock
from tests.broker import driven
from wire.kafka.codec import decode, encode
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
)
from wire.kafka.messages.metadata import DescribeTopicPartitionsRequest, TopicRequest

LISTENERS = {"PLAINTEXT": ("127.0.0.1", 9092, "PLAINTEXT")}


class NoLogs:
    def get(self, topic, partition):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Broker:
    """Broker 1, without a controller; the others are only registered."""

    def __init__(self):
        self.store = MemoryStore()
        env = Env(clock=RealClock(), rng=random.Random(1), net=None, disk=None, turn=None)
        registry = ConfigRegistry(self.store, {"node.id": "1"})
        self.catalog = TopicCatalog(
            self.store, env, registry, initial_partition_document=lambda: b"{}"
        )
        incarnation = Incarnation(1, "1" * 32)
        self.membership = Membership(self.store, incarnation)
        self.ownership = AssignedOwnership(self.store, self.membership)
        self.catalog.placing = placing = Placing(self.membership, self.ownership)
        self.catalog.subscribe(placing.on_topic)
        self.view = BrokersView(
            "A" * 22,
            registry.broker,
            Brokers(self.membership, self.ownership, lambda: incarnation),
            self.catalog,
            Bookies(lambda: ["b1", "b2"]),
            lambda *_: None,
        )
        handler = LeadersHandler(self.catalog, self.membership, self.ownership, self.view)
        cluster = ClusterHandler(
            self.catalog, registry, self.view, NoLogs(), data_directory="/d", disk_usage=None
        )
        self.apis = {api.key: api for each in (handler, cluster) for api in each.apis()}

    async def add(self, node_id, state=BrokerState.RUNNING):
        made = Registration(Incarnation(node_id, "2" * 32), LISTENERS, None, state)
        await self.store.create(f"{BROKERS_PATH}/{node_id}", made.to_bytes(), make_parents=True)
        while node_id not in self.membership.live:
            await trio.sleep(0.001)

    async def remove(self, node_id):
        await self.store.delete(f"{BROKERS_PATH}/{node_id}")
        while node_id in self.membership.live:
            await trio.sleep(0.001)

    async def assign(self, name, *partitions):
        """A topic whose partitions are led as said: Assigned."""
        topic = self.catalog.get(name)
        if topic is None:
            topic = await self.catalog.create(name, len(partitions), {}, 2)
        path = f"{ASSIGNMENTS_PATH}/{topic.id}"
        await self.store.put(path, Assignment(name, partitions).to_bytes(), -1)
        while self.ownership.get(topic.id).partitions != partitions:
            await trio.sleep(0.001)

    def assigned(self, name):
        return self.ownership.get(self.catalog.get(name).id).partitions

    async def call(self, body, version=None):
        api = self.apis[type(body).INFO.key]
        version = api.version_max if version is None else version
        request = Request(
            key=api.key, version=version, correlation_id=1, client_id="test",
            connection=ConnectionInfo("c", "127.0.0.1", "PLAINTEXT"),
            body=decode(type(body), version, encode(body, version))[0],
        )  # fmt: skip
        response = api.handle(request)
        if inspect.isgenerator(response):
            response = all_steps(response)
        if inspect.isawaitable(response):
            response = await response
        answer = decode(type(response), version, encode(response, version))[0]
        driven.note(api.key, version, answer, on_wire=False)
        return answer

    async def elect(self, topics, kind=0, version=None):
        asked = None
        if topics is not None:
            asked = [TopicPartitions(name, numbers) for name, numbers in topics.items()]
        body = ElectLeadersRequest(election_type=kind, topic_partitions=asked)
        answer = await self.call(body, version)
        assert answer.error_code == 0
        return {
            (one.topic, p.partition_id): ErrorCode(p.error_code).name
            for one in answer.replica_election_results
            for p in one.partition_result
        }

    async def reassign(self, name, replicas):
        asked = [ReassignablePartition(n, one) for n, one in replicas.items()]
        body = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name, asked)])
        (answer,) = (await self.call(body)).responses
        return [ErrorCode(one.error_code).name for one in answer.partitions]

    async def ongoing(self, topics=None):
        answer = await self.call(ListPartitionReassignmentsRequest(topics=topics))
        return [
            (one.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
            for one in answer.topics
            for p in one.partitions
        ]

    async def unregister(self, node_id):
        answer = await self.call(UnregisterBrokerRequest(broker_id=node_id))
        return ErrorCode(answer.error_code).name


@pytest.fixture
async def broker(nursery):
    made = Broker()
    for part in (made.store, made.catalog, made.membership, made.ownership):
        await nursery.start(part.run)
    await made.membership.register(Registration(made.membership.incarnation, LISTENERS))
    await made.add(2)
    await made.add(3)
    return made


async def test_preferred_leaders(broker):
    await broker.add(4, BrokerState.DRAINING)
    before = (
        Assigned(1, 0, (1, 2)),
        Assigned(2, 3, (1, 2)),
        Assigned(2, 3, (9, 2)),
        Assigned(2, 3, (4, 2)),
    )
    await broker.assign("t", *before)
    assert await broker.elect({"t": [0, 1, 2, 3, 7], "u": [0]}) == {
        ("t", 0): "ELECTION_NOT_NEEDED",
        ("t", 1): "NONE",
        ("t", 2): "PREFERRED_LEADER_NOT_AVAILABLE",
        ("t", 3): "PREFERRED_LEADER_NOT_AVAILABLE",
        ("t", 7): "UNKNOWN_TOPIC_OR_PARTITION",
        ("u", 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert broker.assigned("t") == (before[0], Assigned(1, 4, (1, 2)), *before[2:])


@pytest.mark.parametrize("version", range(3))
async def test_all_partitions_names_those_that_needed_it(broker, version):
    await broker.assign("t", Assigned(1, 0, (1, 2)), Assigned(2, 3, (1, 2)))
    await broker.assign("u", Assigned(1, 0, (1, 2)))
    assert await broker.elect(None, version=version) == {("t", 1): "NONE"}
    assert await broker.elect(None, version=version) == {}


async def test_unclean_leaders(broker):
    await broker.assign("t", Assigned(1, 0, (1, 2)), Assigned(9, 3, (9, 8)))
    elected = await broker.elect({"t": [0, 1]}, kind=1)
    assert elected == {("t", 0): "ELECTION_NOT_NEEDED", ("t", 1): "NONE"}
    assert broker.assigned("t")[1].leader in (2, 3)
    assert broker.assigned("t")[1].epoch == 4


async def test_no_broker_can_lead(broker):
    """All that are registered are on their way out, this one too."""
    await broker.assign("t", Assigned(9, 3, (9, 8)))
    for node_id in (2, 3):
        await broker.remove(node_id)
    made = Registration(broker.membership.incarnation, LISTENERS, None, BrokerState.DRAINING)
    await broker.store.put(f"{BROKERS_PATH}/1", made.to_bytes(), -1)
    with trio.fail_after(10):
        while broker.membership.live[1].candidate.state is not BrokerState.DRAINING:
            await trio.sleep(0.001)
    assert await broker.elect({"t": [0]}, kind=1) == {("t", 0): "ELIGIBLE_LEADERS_NOT_AVAILABLE"}
    assert broker.assigned("t") == (Assigned(9, 3, (9, 8)),)


async def test_metadata_that_does_not_answer_is_retriable(broker):
    await broker.assign("t", Assigned(2, 0, (1, 9)))
    await broker.store.aclose()
    assert await broker.elect({"t": [0]}) == {("t", 0): "REQUEST_TIMED_OUT"}
    assert await broker.reassign("t", {0: [2, 3]}) == ["REQUEST_TIMED_OUT"]
    assert await broker.unregister(9) == "REQUEST_TIMED_OUT"


async def test_an_unknown_kind_of_election(broker):
    answer = await broker.call(ElectLeadersRequest(election_type=2, topic_partitions=None))
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REQUEST


async def test_reassignment(broker):
    await broker.assign("t", Assigned(1, 0, (1, 2)), Assigned(1, 0, (1, 2)))
    assert await broker.reassign("t", {0: [3, 2], 1: [2, 1]}) == ["NONE", "NONE"]
    moved, kept = broker.assigned("t")
    assert (moved.leader, moved.epoch, moved.replicas) == (3, 1, (3, 2)) or moved.leader == 2
    assert kept == Assigned(1, 0, (2, 1))
    assert await broker.ongoing() == [("t", 0, [3, 2, 1], [3], [1])]
    asked = [ListPartitionReassignmentsTopics("t", [1]), ListPartitionReassignmentsTopics("u", [0])]
    assert await broker.ongoing(asked) == []
    # It ends when the new leader has taken over, or when it is taken back.
    assert await broker.reassign("t", {0: None, 1: None}) == ["NONE", "NO_REASSIGNMENT_IN_PROGRESS"]
    back = broker.assigned("t")[0]
    assert (back.replicas, back.before) == ((1, 2), ())
    assert back.leader in (1, 2)
    assert await broker.ongoing() == []


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ([], "INVALID_REPLICA_ASSIGNMENT"),
        ([1, 1], "INVALID_REPLICA_ASSIGNMENT"),
        ([1, 9], "INVALID_REPLICA_ASSIGNMENT"),
        ([bookie_node_id("b1"), bookie_node_id("b2")], "INVALID_REPLICA_ASSIGNMENT"),
        ([1], "INVALID_REPLICATION_FACTOR"),
        ([1, 2, 3], "INVALID_REPLICATION_FACTOR"),
        ([2, bookie_node_id("b1")], "NONE"),
    ],
)
async def test_lists_of_replicas(broker, replicas, error):
    await broker.assign("t", Assigned(1, 0, (1, 2)))
    assert await broker.reassign("t", {0: replicas}) == [error]
    assert broker.assigned("t")[0].replicas == ((2,) if error == "NONE" else (1, 2))


async def test_what_is_not_there_is_not_reassigned(broker):
    await broker.assign("t", Assigned(1, 0, (1, 2)))
    assert await broker.reassign("t", {5: [1, 2]}) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert await broker.reassign("u", {0: [1, 2]}) == ["UNKNOWN_TOPIC_OR_PARTITION"]


async def test_a_broker_that_is_gone_is_forgotten(broker):
    await broker.assign("t", Assigned(1, 0, (3, 1)), Assigned(1, 0, (1, 2)))
    assert await broker.unregister(3) == "INVALID_REQUEST"
    await broker.remove(3)
    assert await broker.unregister(3) == "NONE"
    assert broker.assigned("t") == (Assigned(1, 0, (2, 1)), Assigned(1, 0, (1, 2)))
    assert await broker.unregister(3) == "BROKER_ID_NOT_REGISTERED"


async def test_what_clients_see_of_replicas(broker):
    await broker.assign("t", Assigned(2, 4, (3, 2)), Assigned(9, 1, (9, 1)), Assigned(1, 0, (1,)))
    first, dead, padded = (broker.view.partition("t", n) for n in range(3))
    assert (first.leader, first.leader_epoch) == (2, 4)
    assert (first.replicas, first.isr, first.offline) == ((3, 2), (3, 2), ())
    assert (dead.leader, dead.replicas, dead.offline) == (-1, (9, 1), (9,))
    assert padded.replicas[0] == 1
    assert padded.replicas[1] in {bookie_node_id("b1"), bookie_node_id("b2")}
    assert broker.view.leader("t", 1, "PLAINTEXT") is None
    assert broker.view.partition("u", 0).leader == -1


async def test_a_partition_whose_leader_is_gone_is_described_without_one(broker):
    await broker.assign("t", Assigned(2, 4, (3, 2)), Assigned(9, 1, (9, 1)))
    answer = await broker.call(DescribeTopicPartitionsRequest([TopicRequest("t")], 10))
    [topic] = answer.topics
    told = [(ErrorCode(one.error_code).name, one.leader_id) for one in topic.partitions]
    assert told == [("NONE", 2), ("LEADER_NOT_AVAILABLE", -1)]
