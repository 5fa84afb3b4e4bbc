"""Streams groups in a coordinator: what is answered when, what is stored and loaded, what times
out, and what other requests do with such a group."""

from __future__ import annotations

import pytest
import trio

from broker.groups.streams.settings import StreamsSettings
from broker.groups.streams.types import StreamsTimes
from broker.rights import Rights
from runtime.turn import Turn
from tests.broker.rules import Rules
from wire.kafka.errors import ErrorCode as E
from wire.kafka.errors import KafkaError
from wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from wire.kafka.messages.streams_groups import (
    Endpoint,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
)

STORE = "g-store-changelog"
TIMES = StreamsTimes(
    session_timeout_ms=10_000,
    heartbeat_interval_ms=1_000,
    assignment_interval_ms=0,
    initial_rebalance_delay_ms=0,
)
STALE, SOURCES, _, INTERNAL, SHUTDOWN, DELAYED = range(6)


def topology(epoch=0, source="in", changelog=STORE):
    configs = [KeyValue("cleanup.policy", "compact")]
    subtopology = StreamsGroupHeartbeatRequestSubtopology(
        "0", [source], state_changelog_topics=[TopicInfo(changelog, topic_configs=configs)]
    )
    return StreamsGroupHeartbeatRequestTopology(epoch, [subtopology])


def topology_of_many_settings():
    told = topology()
    configs = [KeyValue(str(n), "") for n in range(10_001)]
    told.subtopologies[0].state_changelog_topics[0].topic_configs = configs
    return told


class Client:
    """A thread of a Streams application, as far as the coordinator sees it."""

    def __init__(self, world, member_id, *, group="g", process_id=None, **given):
        self.world, self.member_id, self.group = world, member_id, group
        self.epoch = self.endpoint_epoch = 0
        self.active, self.standby = {}, {}
        self.statuses = self.endpoints = None
        self.given = {
            "rebalance_timeout_ms": 10_000,
            "topology": topology(),
            "process_id": process_id or f"p-{member_id}",
            **given,
        }

    def request(self, *, tell=True, **given):
        message = StreamsGroupHeartbeatRequest(
            self.group, self.member_id, self.epoch, self.endpoint_epoch
        )
        if self.epoch == 0:
            given = {**self.given, **given}
            self.active, self.standby = {}, {}
        if tell:
            message.active_tasks = ids(self.active)
            message.standby_tasks = ids(self.standby)
            message.warmup_tasks = []
        for name, value in given.items():
            setattr(message, name, value)
        return 0, message

    def take(self, answer):
        if answer.error_code in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID):
            self.epoch = 0
        if not answer.error_code:
            self.epoch = answer.member_epoch
            self.statuses = {each.status_code: each.status_detail for each in answer.status}
            self.endpoint_epoch = answer.endpoint_information_epoch
            self.endpoints = answer.partitions_by_user_endpoint
            if answer.active_tasks is not None:
                self.active = {t.subtopology_id: t.partitions for t in answer.active_tasks}
                self.standby = {t.subtopology_id: t.partitions for t in answer.standby_tasks}
        return E(answer.error_code)

    async def beat(self, **given):
        return self.take(await self.world.ask(*self.request(**given)))

    async def leave(self, **given):
        self.epoch = -1
        error = self.take(await self.world.ask(*self.request(tell=False, **given)))
        self.epoch = 0
        return error


def ids(tasks):
    return [TaskIds(each, sorted(numbers)) for each, numbers in tasks.items()]


async def settle(*clients):
    for _ in range(6):
        for client in clients:
            assert await client.beat() is E.NONE


@pytest.fixture
async def world(make_world):
    world = make_world(streams=StreamsSettings(times=TIMES))
    await world.start()
    world.catalog.add("in", 4)
    world.catalog.add(STORE, 4)
    return world


async def describe(world, group="g"):
    [described] = (await world.ask(0, StreamsGroupDescribeRequest([group]))).groups
    return described


async def listed(world, **filters):
    answer = await world.ask(5, ListGroupsRequest(**filters))
    return {each.group_id: (each.group_type, each.group_state) for each in answer.groups}


async def test_two_members_share_the_tasks(world):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one, other)
    assert sorted(one.active["0"] + other.active["0"]) == [0, 1, 2, 3]
    assert len(one.active["0"]) == 2
    assert await listed(world) == {"g": ("streams", "Stable")}
    assert await listed(world, types_filter=["Streams"]) == {"g": ("streams", "Stable")}
    assert await listed(world, types_filter=["consumer"]) == {}


async def test_describe(world):
    client = Client(world, "a", user_endpoint=Endpoint("here", 80), rack_id="r")
    await client.beat(client_tags=[KeyValue("zone", "z")])
    found = await describe(world)
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    [subtopology] = found.topology.subtopologies
    assert [(t.name, t.partitions) for t in subtopology.state_changelog_topics] == [(STORE, 4)]
    [member] = found.members
    assert (member.member_id, member.process_id, member.rack_id) == ("a", "p-a", "r")
    assert (member.user_endpoint.host, member.client_tags[0].value) == ("here", "z")
    assert member.assignment == member.target_assignment
    assert member.assignment.active_tasks == [TaskIds("0", [0, 1, 2, 3])]
    assert (await describe(world, "other")).error_code == E.GROUP_ID_NOT_FOUND
    assert (await describe(world, "")).error_code == E.INVALID_GROUP_ID


async def test_what_is_stored_is_loaded(world):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one, other)
    before = await describe(world)
    await world.restart()
    assert await describe(world) == before
    await settle(one, other)
    assert await describe(world) == before


async def test_streams_stale_topology(world):
    one = Client(world, "a", topology=topology(epoch=2))
    other = Client(world, "b", topology=topology(epoch=1))
    await settle(one, other)
    assert (set(one.statuses), set(other.statuses)) == (set(), {STALE})
    assert await Client(world, "c", topology=topology(3)).beat() is E.INVALID_REQUEST


async def test_streams_missing_source(world):
    world.catalog.remove("in")
    client = Client(world, "a")
    await client.beat()
    assert set(client.statuses) == {SOURCES}
    assert await listed(world) == {"g": ("streams", "NotReady")}
    world.catalog.add("in", 4)
    await client.beat()
    assert (client.statuses, client.active) == ({}, {"0": [0, 1, 2, 3]})


@pytest.fixture
def asked(world):
    world.catalog.remove(STORE)
    asked = []

    async def create(topic):
        asked.append(topic)
        await trio.sleep(0.1)
        world.catalog.add(topic.name, topic.partitions)

    world.coordinator.streams.create_topic = create
    return asked


async def test_they_are_made_once(world, asked):
    clients = [Client(world, each) for each in "ab"]
    for client in clients:
        await client.beat()
        assert set(client.statuses) == {INTERNAL}
    await trio.sleep(0.2)
    await settle(*clients)
    [topic] = asked
    assert (topic.name, topic.partitions) == (STORE, 4)
    assert dict(topic.configs) == {"cleanup.policy": "compact"}
    assert len(clients[0].active["0"] + clients[1].active["0"]) == 4


async def test_internal_topics_without_create(world, asked):
    describing = ("DESCRIBE", "TOPIC", STORE)
    world.rights = Rights(Rules(describing), world.connection, "StreamsGroupHeartbeat")
    client = Client(world, "a")
    await client.beat()
    assert client.statuses == {
        INTERNAL: f"Internal topics are missing: {STORE}; Unauthorized to CREATE on topics {STORE}."
    }
    await trio.sleep(1)
    assert asked == []
    world.rights = Rights(Rules(everything=True), world.connection, "StreamsGroupHeartbeat")
    await client.beat()
    await trio.sleep(1)
    await client.beat()
    assert client.active == {"0": [0, 1, 2, 3]}


async def test_why_one_could_not_be_made_is_told_for_a_while(world, asked):
    async def refuse(topic):
        asked.append(topic)
        raise KafkaError(E.POLICY_VIOLATION, "not today")

    world.coordinator.streams.create_topic = refuse
    client = Client(world, "a")
    await client.beat()
    await trio.sleep(0.5)
    await client.beat()
    assert client.statuses[INTERNAL].endswith(
        f"; Creation failed: {STORE} (POLICY_VIOLATION: not today)."
    )
    assert len(asked) == 1, "not again at once"
    await trio.sleep(2)
    await client.beat()
    await world.settle()
    assert len(asked) == 2


async def test_shutdown_flag_reaches_all(world):
    clients = [Client(world, each) for each in "abc"]
    await settle(*clients)
    await clients[1].beat(shutdown_application=True)
    for client in clients:
        await client.beat()
        assert "member b encountered a fatal error" in client.statuses[SHUTDOWN]
    for client in clients:
        assert await client.leave() is E.NONE
    await clients[0].beat()
    assert clients[0].statuses == {}, "it is over with the last member"


async def test_who_leaves_may_ask_for_the_shutdown(world):
    clients = [Client(world, each) for each in "ab"]
    await settle(*clients)
    await clients[0].leave(shutdown_application=True)
    await clients[1].beat()
    assert set(clients[1].statuses) == {SHUTDOWN}


async def test_standby_other_process(make_world):
    times = StreamsTimes(10_000, 1_000, 0, 0, num_standby_replicas=1)
    world = make_world(streams=StreamsSettings(times=times))
    await world.start()
    world.catalog.add("in", 4)
    world.catalog.add(STORE, 4)
    threads = [Client(world, each, process_id="P") for each in ("p1", "p2")]
    other = Client(world, "q", process_id="Q")
    await settle(*threads, other)
    on_p = sorted(n for each in threads for n in each.active.get("0", []))
    assert other.standby["0"] == on_p
    copied = sorted(n for each in threads for n in each.standby.get("0", []))
    assert copied == other.active["0"]


async def test_active_exclusive_during_move(world):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one)
    had = set(one.active["0"])
    await other.beat()
    for _ in range(3):
        await one.beat(tell=False)
        await other.beat()
        assert other.active == {}, "nobody gave anything back"
    await one.beat()
    await other.beat()
    assert set(one.active["0"]) | set(other.active["0"]) == had
    assert not set(one.active["0"]) & set(other.active["0"])


# --- time


async def test_silence_ends_a_membership(world, autojump_clock):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one, other)
    for _ in range(3):
        await trio.sleep(4)
        await other.beat()
    await settle(other)
    assert other.active == {"0": [0, 1, 2, 3]}
    assert await one.beat() is E.UNKNOWN_MEMBER_ID


async def test_who_does_not_give_back_is_fenced(world, autojump_clock):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one)
    await other.beat()
    for _ in range(3):
        await one.beat(tell=False)
        await other.beat()
        await trio.sleep(4)
    await settle(other)
    assert other.active == {"0": [0, 1, 2, 3]}
    assert await one.beat(tell=False) is E.UNKNOWN_MEMBER_ID


async def test_the_first_members_wait_for_more(make_world, autojump_clock):
    times = StreamsTimes(10_000, 1_000, 0, initial_rebalance_delay_ms=3_000)
    world = make_world(streams=StreamsSettings(times=times))
    await world.start()
    world.catalog.add("in", 4)
    world.catalog.add(STORE, 4)
    one, other = Client(world, "a"), Client(world, "b")
    await one.beat()
    await trio.sleep(2)
    await other.beat()
    assert set(one.statuses) == set(other.statuses) == {DELAYED}
    assert (one.epoch, one.active) == (1, {})
    await trio.sleep(1.1)
    found = await describe(world)
    assert found.assignment_epoch == found.group_epoch, "made although nobody came"
    await settle(one, other)
    assert {len(each.active["0"]) for each in (one, other)} == {2}


async def test_a_large_assignment_is_made_in_slices(world):
    world.catalog.remove(STORE)
    world.catalog.remove("in")
    world.catalog.add("in", 3_000)
    world.catalog.add(STORE, 3_000)
    client = Client(world, "a")
    await client.beat()
    assert (client.active, set(client.statuses)) == ({}, {DELAYED})
    await world.settle()
    await client.beat()
    assert client.active == {"0": list(range(3_000))}


# --- queries


async def test_endpoints_are_told_to_all(world):
    one = Client(world, "a", user_endpoint=Endpoint("one", 1))
    other = Client(world, "b", user_endpoint=Endpoint("other", 2))
    mute = Client(world, "c")
    await settle(one, other, mute)
    mute.endpoint_epoch = 0
    await mute.beat()
    told = {e.user_endpoint.host: e.active_partitions for e in mute.endpoints}
    assert told.keys() == {"one", "other"}
    [partitions] = told["one"]
    assert (partitions.topic, partitions.partitions) == ("in", one.active["0"])
    await mute.beat()
    assert mute.endpoints is None, "it knows them"


async def test_very_many_endpoints_are_told_in_slices(world, monkeypatch):
    world.catalog.remove("in")
    for number in range(20):
        world.catalog.add(f"in-{number}", 4_000)
    told = topology()
    told.subtopologies[0] = StreamsGroupHeartbeatRequestSubtopology(
        "0", [f"in-{number}" for number in range(20)]
    )
    one = Client(world, "a", user_endpoint=Endpoint("one", 1), topology=told)
    await one.beat()
    await world.settle()
    await one.beat()
    assert len(one.active["0"]) == 4_000
    turns, later = [], Turn.later

    def noted(turn, function):
        turns.append(function)
        later(turn, function)

    monkeypatch.setattr(Turn, "later", noted)
    one.endpoint_epoch = 0
    await one.beat()
    assert len(turns) >= 20 * 4_000 // (5 * 2_000) - 1
    [endpoint] = one.endpoints
    told = {each.topic: each.partitions for each in endpoint.active_partitions}
    assert told == {f"in-{number}": list(range(4_000)) for number in range(20)}


# --- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"rack_id": " "}, "RackId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"active_tasks": None}, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": ids({"0": [1]})}, "StandbyTasks must be empty when (re-)joining."),
        ({"member_epoch": 1}, "Topology can only be provided when (re-)joining."),
        (
            {"member_epoch": 1, "topology": None, "warmup_tasks": None},
            "If one task-type is non-null, all must be non-null.",
        ),
        (
            {"member_epoch": 1, "topology": None, "warmup_tasks": ids({"0": [1]})},
            "WarmupTasks are not supported yet.",
        ),
        ({"task_offsets": [TaskOffset("0", 1, 1)]}, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": []}, "TaskEndOffsets are not supported yet."),
        (
            {"client_tags": [KeyValue(str(n), "v") for n in range(101)]},
            "A member has 100 client tags at most.",
        ),
        (
            {"member_epoch": 1, "topology": None, "active_tasks": ids({"0": range(10_001)})},
            "A member has 10000 tasks of a kind at most.",
        ),
        (
            {
                "member_epoch": 1,
                "topology": None,
                "standby_tasks": [TaskIds("0", [])] * 10_001,
            },
            "A member has 10000 tasks of a kind at most.",
        ),
        ({"member_epoch": -2}, "MemberEpoch is -2, but must be greater than or equal to -1."),
    ],
)
async def test_malformed(world, given, message):
    version, request = Client(world, "a").request()
    for name, value in given.items():
        setattr(request, name, value)
    answer = await world.ask(version, request)
    assert (E(answer.error_code), answer.error_message) == (E.INVALID_REQUEST, message)


async def test_patterns_are_not_served(world):
    told = topology()
    told.subtopologies[0].source_topic_regex = ["in.*"]
    assert await Client(world, "a", topology=told).beat() is E.INVALID_REQUEST


@pytest.mark.parametrize(
    "told",
    [
        topology(source="__consumer_offsets"),
        topology(changelog="__transaction_state"),
        topology(source="not a name"),
        topology(changelog="x" * 250),
        topology(epoch=-1),
        StreamsGroupHeartbeatRequestTopology(
            0,
            [
                StreamsGroupHeartbeatRequestSubtopology(
                    "0", ["in"], state_changelog_topics=[TopicInfo(STORE, 4)]
                )
            ],
        ),
        StreamsGroupHeartbeatRequestTopology(
            0, [StreamsGroupHeartbeatRequestSubtopology("0", [f"t{n}" for n in range(1_000)])]
        ),
        StreamsGroupHeartbeatRequestTopology(
            0, [StreamsGroupHeartbeatRequestSubtopology(str(n)) for n in range(1_001)]
        ),
        topology_of_many_settings(),
        StreamsGroupHeartbeatRequestTopology(
            0,
            [StreamsGroupHeartbeatRequestSubtopology("0", [f"{n:0200}"]) for n in range(400)]
            + [StreamsGroupHeartbeatRequestSubtopology("x" * 30_000, ["in"])] * 2,
        ),
    ],
)
async def test_invalid_topologies(world, told):
    assert await Client(world, "a", topology=told).beat() is E.STREAMS_INVALID_TOPOLOGY
    assert await listed(world) == {}


async def test_a_topology_too_large_for_a_record(world):
    told = topology()
    configs = [KeyValue(f"k{n}", "v" * 30_000) for n in range(9)]
    told.subtopologies[0].state_changelog_topics[0].topic_configs = configs
    assert await Client(world, "a", topology=told).beat() is E.STREAMS_INVALID_TOPOLOGY


async def test_no_such_group(world):
    client = Client(world, "a")
    client.epoch = 3
    assert await client.beat() is E.GROUP_ID_NOT_FOUND
    assert await client.leave() is E.GROUP_ID_NOT_FOUND


async def test_a_group_of_another_kind(world):
    join = ConsumerGroupHeartbeatRequest("c", "m", 0)
    join.rebalance_timeout_ms, join.subscribed_topic_names, join.topic_partitions = 9, ["in"], []
    assert not (await world.ask(1, join)).error_code
    assert await Client(world, "a", group="c").beat() is E.GROUP_ID_NOT_FOUND
    await Client(world, "a").beat()
    join.group_id = "g"
    assert (await world.ask(1, join)).error_code == E.GROUP_ID_NOT_FOUND


# --- other requests


async def test_classic_members_are_refused_until_it_is_empty(world):
    client = Client(world, "a")
    await client.beat()
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol("range", b"")],
    )  # fmt: skip
    assert (await world.ask(3, join)).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="a")
    assert (await world.ask(3, sync)).error_code == E.UNKNOWN_MEMBER_ID
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="a")
    assert (await world.ask(3, beat)).error_code == E.UNKNOWN_MEMBER_ID
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity("a")])
    left = await world.ask(4, leave)
    assert (left.error_code, [(each.member_id, each.error_code) for each in left.members]) == (
        E.NONE,
        [("a", E.UNKNOWN_MEMBER_ID)],
    )
    old = LeaveGroupRequest(group_id="g", member_id="a")
    assert (await world.ask(2, old)).error_code == E.UNKNOWN_MEMBER_ID
    described = await world.ask(6, DescribeGroupsRequest(groups=["g"]))
    assert described.groups[0].error_code == E.GROUP_ID_NOT_FOUND
    await client.leave()
    assert (await world.ask(3, join)).error_code == E.NONE
    assert (await listed(world))["g"][0] == "classic"
    assert await Client(world, "b").beat() is E.GROUP_ID_NOT_FOUND


async def test_an_empty_classic_group_gives_way(world):
    await commit(world, "", -1, 0, 5)
    assert await listed(world) == {"g": ("classic", "Empty")}
    await Client(world, "a").beat()
    assert await listed(world) == {"g": ("streams", "Stable")}
    await world.restart()
    assert await listed(world) == {"g": ("streams", "Stable")}


async def commit(world, member_id, epoch, partition, offset, *, version=9):
    answer = await world.ask(
        version,
        OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=epoch, member_id=member_id,
            topics=[OffsetCommitRequestTopic(
                name="in", partitions=[OffsetCommitRequestPartition(partition, offset)]
            )],
        ),
    )  # fmt: skip
    return E(answer.topics[0].partitions[0].error_code)


async def test_commits_by_epoch(world):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one)
    assert await commit(world, "a", 2, 0, 5) is E.NONE
    assert await commit(world, "a", 2, 0, 5, version=8) is E.UNSUPPORTED_VERSION
    assert await commit(world, "a", 3, 0, 5) is E.STALE_MEMBER_EPOCH
    assert await commit(world, "x", 2, 0, 5) is E.UNKNOWN_MEMBER_ID
    assert await commit(world, "", -1, 0, 5) is E.UNKNOWN_MEMBER_ID
    await other.beat()
    await settle(one, other)
    kept, [lost, *_] = one.active["0"][0], other.active["0"]
    assert one.epoch > 2
    assert await commit(world, "a", 2, kept, 6) is E.NONE, "its own since then"
    assert await commit(world, "a", 2, lost, 6) is E.STALE_MEMBER_EPOCH
    assert await commit(world, "b", 2, lost, 6) is E.STALE_MEMBER_EPOCH
    await one.leave()
    await other.leave()
    assert await commit(world, "", -1, 0, 5) is E.NONE, "an administrator, of an empty group"


async def test_delete(world):
    client = Client(world, "a")
    await client.beat()
    await commit(world, "a", client.epoch, 0, 5)
    answer = await world.ask(2, DeleteGroupsRequest(["g"]))
    assert answer.results[0].error_code == E.NON_EMPTY_GROUP
    await client.leave()
    assert await listed(world) == {"g": ("streams", "Empty")}
    answer = await world.ask(2, DeleteGroupsRequest(["g"]))
    assert answer.results[0].error_code == E.NONE
    assert await listed(world) == {}
    await world.restart()
    assert await listed(world) == {}
    await Client(world, "b", topology=topology(epoch=0)).beat()
    assert await listed(world) == {"g": ("streams", "Stable")}


async def test_a_failed_append_leaves_what_is_stored(world):
    one, other = Client(world, "a"), Client(world, "b")
    await settle(one)
    before = await describe(world)
    world.log_of("g").fail_with = E.NOT_ENOUGH_REPLICAS
    assert await other.beat() is not E.NONE
    world.log_of("g").fail_with = None
    assert await describe(world) == before
    await settle(one, other)
    assert {len(each.active["0"]) for each in (one, other)} == {2}


async def test_who_could_not_be_removed_is_removed_later(world, autojump_clock):
    await settle(Client(world, "silent"))
    log = world.log_of("g")
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    await trio.sleep(50)
    log.fail_with = None
    assert len((await describe(world)).members) == 1
    await trio.sleep(50)
    assert not (await describe(world)).members
