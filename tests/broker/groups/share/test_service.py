"""Share groups in a coordinator: what is answered when, what is stored and loaded, what times out,
and what is asked of the share coordinator. Every request is encoded and decoded in its version."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from quire.tools.admin.groups import GroupPages
from runtime.http import HttpError
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
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
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from wire.kafka.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)


class Client:
    """A share consumer, as far as the coordinator sees it."""

    def __init__(self, world, member_id, *topics, group="g"):
        self.world, self.member_id, self.group = world, member_id, group
        self.topics, self.epoch, self.has = list(topics), 0, {}

    def request(self, **given):
        message = ShareGroupHeartbeatRequest(self.group, self.member_id, self.epoch)
        if self.epoch == 0:
            message.subscribed_topic_names = self.topics
        for name, value in given.items():
            setattr(message, name, value)
        return 1, message

    def take(self, answer):
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                parts = answer.assignment.topic_partitions
                self.has = {each.topic_id: set(each.partitions) for each in parts}
        return E(answer.error_code)

    async def beat(self, **given):
        return self.take(await self.world.ask(*self.request(**given)))

    async def settle(self):
        """Heartbeats until it has something."""
        for _ in range(3):
            assert await self.beat() is E.NONE
            await trio.sleep(2)


async def delete_group(world, group_id="g"):
    answer = await world.ask(2, DeleteGroupsRequest([group_id]))
    return E(answer.results[0].error_code)


def alter_request(topic, *offsets, group="g"):
    partitions = [AlterShareGroupOffsetsRequestPartition(*each) for each in offsets]
    return 0, AlterShareGroupOffsetsRequest(
        group, [AlterShareGroupOffsetsRequestTopic(topic, partitions)]
    )


def delete_request(*topics, group="g"):
    return 0, DeleteShareGroupOffsetsRequest(
        group, [DeleteShareGroupOffsetsRequestTopic(each) for each in topics]
    )


async def offsets_of(world, group="g", *topics, version=1):
    """{(topic, partition): (start offset, leader epoch, lag, error)}."""
    asked = [DescribeShareGroupOffsetsRequestTopic(*each) for each in topics] or None
    message = DescribeShareGroupOffsetsRequest(
        [DescribeShareGroupOffsetsRequestGroup(group, asked)]
    )
    (answer,) = (await world.ask(version, message)).groups
    assert not answer.error_code
    return {
        (topic.topic_name, each.partition_index): (
            each.start_offset, each.leader_epoch, each.lag, E(each.error_code)
        )
        for topic in answer.topics
        for each in topic.partitions
    }  # fmt: skip


def shown(world, group_id="g"):
    live, error = world.requests.find(group_id)
    return error if live is None else live.stored


# --- members


async def test_a_member_gets_what_was_begun(share_world, persister, autojump_clock):
    world = share_world
    topic = world.catalog.add("t", 3)
    client = Client(world, "m", "t")
    assert await client.beat() is E.NONE
    assert (client.epoch, client.has) == (1, {})
    assert persister.of("g") == {(topic.id, each): -1 for each in range(3)}
    await trio.sleep(2)
    assert await client.beat() is E.NONE
    assert client.has == {topic.id: {0, 1, 2}}
    assert world.requests.is_member("g", "m") is True
    assert world.requests.is_member("g", "n") is False
    assert await client.beat(member_epoch=-1) is E.NONE
    assert world.requests.is_member("g", "m") is False
    assert shown(world).state.value == "Empty"


@pytest.mark.parametrize(
    "given",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"rack_id": " "},
        {"member_epoch": -2},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
    ],
)
async def test_requests_of_bad_form(share_world, given):
    assert await Client(share_world, "m", "t").beat(**given) is E.INVALID_REQUEST
    assert shown(share_world) is E.GROUP_ID_NOT_FOUND


async def test_refusals(share_world, autojump_clock):
    world = share_world
    world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    assert await client.beat(member_epoch=1) is E.GROUP_ID_NOT_FOUND
    await client.settle()
    assert await Client(world, "n", "t").beat(member_epoch=1) is E.UNKNOWN_MEMBER_ID
    assert await client.beat(member_epoch=99) is E.FENCED_MEMBER_EPOCH
    assert await client.beat() is E.NONE
    consumer = ConsumerGroupHeartbeatRequest("g", "c", 0, rebalance_timeout_ms=1000)
    consumer.subscribed_topic_names, consumer.topic_partitions = ["t"], []
    answer = await world.ask(1, consumer)
    assert answer.error_code == E.GROUP_ID_NOT_FOUND
    consumer.group_id = "h"
    assert not (await world.ask(1, consumer)).error_code
    assert await Client(world, "m", "t", group="h").beat() is E.GROUP_ID_NOT_FOUND


async def test_other_kinds_of_requests_are_refused(share_world, autojump_clock):
    world = share_world
    world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1000,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol("range", b"")],
    )  # fmt: skip
    assert (await world.ask(5, join)).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    sync = SyncGroupRequest("g", 1, "m", None, "consumer", "range", [])
    assert (await world.ask(5, sync)).error_code == E.UNKNOWN_MEMBER_ID
    assert (await world.ask(4, HeartbeatRequest("g", 1, "m"))).error_code == E.UNKNOWN_MEMBER_ID
    left = await world.ask(5, LeaveGroupRequest("g", members=[MemberIdentity("m")]))
    assert left.members[0].error_code == E.UNKNOWN_MEMBER_ID
    commit = OffsetCommitRequest(
        "g", client.epoch, "m",
        topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 5)])],
    )  # fmt: skip
    for epoch in (client.epoch, -1):
        commit.generation_id_or_member_epoch = epoch
        answer = await world.ask(9, commit)
        assert answer.topics[0].partitions[0].error_code == E.GROUP_ID_NOT_FOUND
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
    assert (await world.ask(9, fetch)).groups[0].error_code == E.GROUP_ID_NOT_FOUND
    assert (await world.ask(0, OffsetDeleteRequest("g"))).error_code == E.GROUP_ID_NOT_FOUND
    described = await world.ask(6, DescribeGroupsRequest(["g"]))
    assert described.groups[0].error_code == E.GROUP_ID_NOT_FOUND
    described = await world.ask(1, ConsumerGroupDescribeRequest(["g"]))
    assert described.groups[0].error_code == E.GROUP_ID_NOT_FOUND
    assert world.requests.is_member("g", "m")


async def test_silence_ends_a_membership(share_world, autojump_clock):
    world = share_world
    world.catalog.add("t", 2)
    one, other = Client(world, "a", "t"), Client(world, "b", "t")
    await one.settle()
    await other.settle()
    for _ in range(12):
        assert await one.beat() is E.NONE
        await trio.sleep(4)
    assert set(shown(world).members) == {"a"}
    assert await one.beat() is E.NONE
    assert [len(each) for each in one.has.values()] == [2]
    assert await other.beat() is E.UNKNOWN_MEMBER_ID


async def test_describe_and_list(share_world, autojump_clock):
    world = share_world
    topic = world.catalog.add("t", 2)
    client = Client(world, "m", "t")
    await client.settle()
    message = ShareGroupDescribeRequest(["g", "h", ""], include_authorized_operations=True)
    found, missing, empty = (await world.ask(1, message)).groups
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "simple")
    assert found.group_epoch == found.assignment_epoch == client.epoch
    (member,) = found.members
    assert (member.member_id, member.member_epoch) == ("m", client.epoch)
    assert (member.client_id, member.client_host) == ("client", "/10.0.0.9")
    assert member.subscribed_topic_names == ["t"]
    (parts,) = member.assignment.topic_partitions
    assert (parts.topic_id, parts.topic_name, parts.partitions) == (topic.id, "t", [0, 1])
    assert (missing.error_code, empty.error_code) == (E.GROUP_ID_NOT_FOUND, E.INVALID_GROUP_ID)
    for types in (["share"], ["Share", "classic"], []):
        (listed,) = (await world.ask(5, ListGroupsRequest(types_filter=types))).groups
        assert (listed.group_id, listed.group_type, listed.protocol_type) == ("g", "share", "share")
        assert listed.group_state == "Stable"
    assert not (await world.ask(5, ListGroupsRequest(types_filter=["consumer"]))).groups
    assert not (await world.ask(5, ListGroupsRequest(states_filter=["empty"]))).groups


async def test_a_load_brings_everything_back(share_world, persister, autojump_clock):
    """A member goes on as if nothing had been; who is silent has one whole session."""
    world = share_world
    world.catalog.add("t", 3)
    client = Client(world, "m", "t")
    await client.settle()
    before, calls = shown(world), len(persister.calls)
    await trio.sleep(30)
    await world.restart()
    assert shown(world).members == before.members
    assert shown(world).partitions == before.partitions
    assert shown(world).targets == before.targets
    await trio.sleep(40)
    assert await client.beat() is E.NONE
    assert len(persister.calls) == calls
    await trio.sleep(46)
    assert not shown(world).members


async def test_a_unit_that_is_not_stored_changes_nothing(share_world, autojump_clock):
    world = share_world
    world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    log = world.log_of("g")
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    assert await Client(world, "n", "t").beat() is E.COORDINATOR_NOT_AVAILABLE
    assert await client.beat() is E.NONE
    log.fail_with = None
    assert await Client(world, "n", "t").beat() is E.NONE
    assert set(shown(world).members) == {"m", "n"}


async def test_who_could_not_be_removed_is_removed_later(share_world, autojump_clock):
    world = share_world
    world.catalog.add("t", 1)
    await Client(world, "silent", "t").beat()
    log = world.log_of("g")
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    await trio.sleep(50)
    log.fail_with = None
    assert set(shown(world).members) == {"silent"}
    await trio.sleep(50)
    assert not shown(world).members


# --- the share coordinator


async def test_lost_initialize_reply(share_world, persister, autojump_clock):
    """Scenario 67: what was begun although nobody said so is begun again, with a later epoch."""
    world = share_world
    topic = world.catalog.add("t", 1)
    persister.lose_answer = True
    client = Client(world, "m", "t")
    assert await client.beat() is E.NONE
    ((first,),) = [[epoch for _, epoch, _ in keys] for _, keys in persister.calls]
    await trio.sleep(1)
    assert await client.beat() is E.NONE
    assert not client.has
    await trio.sleep(6)
    assert await client.beat() is E.NONE
    second = [epoch for _, keys in persister.calls[1:] for _, epoch, _ in keys]
    assert len(second) == 1
    assert second[0] > first
    assert client.has == {topic.id: {0}}


async def test_a_call_that_is_never_answered_is_made_again_after_30_s(
    share_world, persister, autojump_clock
):
    world = share_world
    world.catalog.add("t", 1)
    persister.hold()
    late = persister.held
    client = Client(world, "m", "t")
    for _ in range(6):
        assert await client.beat() is E.NONE
        await trio.sleep(4)
    persister.held = None
    for _ in range(4):
        assert await client.beat() is E.NONE
        await trio.sleep(4)
    assert client.has, "the second attempt"
    states = dict(persister.states)
    late.set()
    await trio.sleep(1)
    assert persister.states == states, "the first one comes late, and is fenced"
    assert await client.beat() is E.NONE
    assert client.has


async def test_a_new_coordinator_begins_what_the_last_one_left(
    share_world, persister, autojump_clock
):
    world = share_world
    topic = world.catalog.add("t", 2)
    persister.fail = E.COORDINATOR_NOT_AVAILABLE
    client = Client(world, "m", "t")
    assert await client.beat() is E.NONE
    persister.fail = None
    await world.restart()
    await trio.sleep(1)
    assert shown(world).partitions.initialized[topic.id].partitions == {0, 1}
    assert await client.beat() is E.NONE
    await trio.sleep(2)
    assert await client.beat() is E.NONE
    assert client.has == {topic.id: {0, 1}}


async def test_states_of_an_earlier_group_are_no_obstacle(share_world, persister, autojump_clock):
    """Somebody deleted a group of this id, and its state is still there with a later epoch."""
    world = share_world
    topic = world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.beat()
    (key,) = persister.states
    persister.states[key] = (70, 5, 0)
    world.catalog.add("u", 1)
    other = Client(world, "m", "t", group="g")
    other.epoch = 0
    live, _ = world.requests.find("g")
    live.applied.partitions.initialized.clear()
    assert await other.beat() is E.NONE
    for _ in range(4):
        await trio.sleep(6)
        assert await other.beat() is E.NONE
    assert persister.states[key][0] > 70
    assert topic.id in other.has


async def test_partition_added_latest_loses_nothing(share_world, persister, autojump_clock):
    """Scenario 61, with the share coordinator."""
    world = share_world
    topic = world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    topic.partition_count = 3
    world.catalog._tell(topic)
    await client.settle()
    assert persister.of("g") == {(topic.id, 0): -1, (topic.id, 1): 0, (topic.id, 2): 0}
    assert client.has == {topic.id: {0, 1, 2}}


async def test_topic_recreated_fresh(share_world, persister, autojump_clock):
    """Scenario 62, with the share coordinator: the old states go, the new ones begin anew."""
    world = share_world
    old = world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    assert persister.of("g") == {(old.id, 0): -1}
    world.catalog.remove("t")
    await world.settle()
    assert not persister.states
    new = world.catalog.add("t", 1)
    await client.settle()
    assert persister.of("g") == {(new.id, 0): -1}
    assert client.has == {new.id: {0}}
    await world.restart()
    assert set(shown(world).partitions.initialized) == {new.id}


# --- deletion


async def test_a_group_is_deleted_with_its_states(share_world, persister, autojump_clock):
    world = share_world
    world.catalog.add("t", 2)
    client = Client(world, "m", "t")
    await client.settle()
    assert await delete_group(world) is E.NON_EMPTY_GROUP
    await client.beat(member_epoch=-1)
    assert len(persister.states) == 2
    assert await delete_group(world) is E.NONE
    assert not persister.states
    assert shown(world) is E.GROUP_ID_NOT_FOUND
    await world.restart()
    assert shown(world) is E.GROUP_ID_NOT_FOUND
    assert await delete_group(world) is E.GROUP_ID_NOT_FOUND
    client.epoch = 0
    await client.settle()
    assert client.has, "another group of the same id"


async def test_delete_group_half_done_resumes(share_world, persister, autojump_clock):
    """Scenario 68."""
    world = share_world
    topic = world.catalog.add("t", 2)
    client = Client(world, "m", "t")
    await client.settle()
    await client.beat(member_epoch=-1)
    persister.fail = E.COORDINATOR_NOT_AVAILABLE
    assert await delete_group(world) is E.COORDINATOR_NOT_AVAILABLE
    assert shown(world).partitions.deleting == {topic.id: "t"}
    assert len(persister.states) == 2
    await world.restart()
    persister.fail = None
    assert await delete_group(world) is E.NONE
    assert not persister.states
    assert shown(world) is E.GROUP_ID_NOT_FOUND


async def test_who_joins_while_a_group_is_deleted_keeps_it(share_world, persister, autojump_clock):
    world = share_world
    topic = world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    await client.beat(member_epoch=-1)
    persister.hold()
    answers = world.send(2, DeleteGroupsRequest(["g"]))
    await world.settle()
    client.epoch, client.has = 0, {}
    assert await client.beat() is E.NONE
    assert not client.has, "what is about to go is given to nobody"
    persister.let_go()
    await world.settle()
    assert answers[0].results[0].error_code == E.NON_EMPTY_GROUP
    await trio.sleep(31)
    await client.settle()
    assert client.has == {topic.id: {0}}
    assert len(persister.states) == 1


async def test_groups_do_not_expire(share_world, autojump_clock):
    world = share_world
    world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    await client.beat(member_epoch=-1)
    await trio.sleep(30 * 24 * 3600)
    await world.coordinator.expire()
    assert shown(world).state.value == "Empty"


# --- offsets


async def test_describe_offsets(share_world, persister, ends, autojump_clock):
    world = share_world
    topic = world.catalog.add("t", 3)
    client = Client(world, "m", "t")
    await client.settle()
    for key, state in list(persister.states.items()):
        persister.states[key] = (state[0], 10 * key.partition, 2 if key.partition else -1)
    ends.known = {("t", 1): 40}
    told = await offsets_of(world)
    assert told == {
        ("t", 0): (0, 3, -1, E.NONE),
        ("t", 1): (10, 3, 28, E.NONE),
        ("t", 2): (-1, 0, -1, E.LEADER_NOT_AVAILABLE),
    }
    told = await offsets_of(world, "g", ("t", [1]), ("nowhere", [0, 7]), version=0)
    assert {key: each[0] for key, each in told.items()} == {
        ("t", 1): 10, ("nowhere", 0): -1, ("nowhere", 7): -1
    }  # fmt: skip
    assert await offsets_of(world, "other") == {}
    assert (await offsets_of(world, "other", ("t", [0])))["t", 0][0] == -1
    persister.fail = E.COORDINATOR_NOT_AVAILABLE
    assert (await offsets_of(world, "g", ("t", [1])))["t", 1] == (-1, 0, -1, E.NONE)
    world.catalog.remove("t")
    await world.settle()
    assert topic.id not in world.requests.known("g")[1]


async def test_alter_offsets(share_world, persister, autojump_clock):
    world = share_world
    topic = world.catalog.add("t", 2)
    answer = await world.ask(*alter_request("t", (0, 17), (5, 1), (1, -2)))
    assert not answer.error_code
    (told,) = answer.responses
    assert told.topic_id == topic.id
    assert [(each.partition_index, E(each.error_code)) for each in told.partitions] == [
        (0, E.NONE),
        (5, E.UNKNOWN_TOPIC_OR_PARTITION),
        (1, E.INVALID_REQUEST),
    ]
    assert persister.of("g") == {(topic.id, 0): 17}
    assert shown(world).state.value == "Empty"
    answer = await world.ask(*alter_request("nowhere", (0, 1)))
    assert answer.responses[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert (await world.ask(*alter_request("t", (0, 1), group=""))).error_code == E.INVALID_GROUP_ID
    await world.restart()
    client = Client(world, "m", "t")
    await client.settle()
    assert client.has == {topic.id: {0, 1}}
    assert persister.of("g")[topic.id, 0] == 17, "where it was put"
    await client.beat(member_epoch=-1)
    epochs = {key: state[0] for key, state in persister.states.items()}
    assert not (await world.ask(*alter_request("t", (0, 3)))).error_code
    (key,) = [key for key in persister.states if key.partition == 0]
    assert persister.states[key][1] == 3
    assert persister.states[key][0] > epochs[key], "who reads by the old state is fenced"


async def test_alter_offsets_non_empty(share_world, persister, autojump_clock):
    """Scenario 63."""
    world = share_world
    world.catalog.add("t", 1)
    client = Client(world, "m", "t")
    await client.settle()
    states = dict(persister.states)
    assert (await world.ask(*alter_request("t", (0, 5)))).error_code == E.NON_EMPTY_GROUP
    assert (await world.ask(*delete_request("t"))).error_code == E.NON_EMPTY_GROUP
    assert persister.states == states


async def test_an_alteration_that_fails_is_told_and_not_forgotten(
    share_world, persister, autojump_clock
):
    world = share_world
    topic = world.catalog.add("t", 1)
    persister.fail = E.COORDINATOR_NOT_AVAILABLE
    answer = await world.ask(*alter_request("t", (0, 9)))
    assert answer.responses[0].partitions[0].error_code == E.COORDINATOR_NOT_AVAILABLE
    assert not shown(world).partitions.initialized
    persister.fail = None
    client = Client(world, "m", "t")
    await trio.sleep(6)
    await client.settle()
    assert persister.of("g") == {(topic.id, 0): 9}


async def test_delete_offsets(share_world, persister, autojump_clock):
    world = share_world
    topic, other = world.catalog.add("t", 2), world.catalog.add("u", 1)
    assert (await world.ask(*delete_request("t"))).error_code == E.GROUP_ID_NOT_FOUND
    assert (await world.ask(*delete_request("t", group=""))).error_code == E.INVALID_GROUP_ID
    client = Client(world, "m", "t")
    await client.settle()
    await client.beat(member_epoch=-1)
    persister.fail = E.COORDINATOR_NOT_AVAILABLE
    (told,) = (await world.ask(*delete_request("t"))).responses
    assert told.error_code == E.COORDINATOR_NOT_AVAILABLE
    persister.fail = None
    answer = await world.ask(*delete_request("t", "u", "nowhere"))
    assert [(each.topic_name, each.topic_id, E(each.error_code)) for each in answer.responses] == [
        ("t", topic.id, E.NONE),
        ("u", other.id, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", answer.responses[2].topic_id, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert not persister.states
    assert await offsets_of(world) == {}
    await world.restart()
    assert shown(world).partitions.deleting == {}


# --- large groups, and records


async def test_a_large_group_is_assigned_beside_the_requests(share_world, autojump_clock):
    world = share_world
    topic = world.catalog.add("t", 20)
    clients = [Client(world, f"m{each}", "t") for each in range(150)]
    for client in clients:
        assert await client.beat() is E.NONE
        assert client.epoch > 0
    await trio.sleep(3)
    for _ in range(2):
        for client in clients:
            assert await client.beat() is E.NONE
        await trio.sleep(3)
    counts = [0] * 20
    for client in clients:
        for each in client.has.get(topic.id, ()):
            counts[each] += 1
    assert counts == [8] * 20


async def test_who_waits_for_whom_is_not_asked_of_it(share_world, autojump_clock):
    """The page of groups is for those whose members wait for one another."""
    share_world.catalog.add("t", 1)
    assert await Client(share_world, "m", "t").beat() is E.NONE
    with pytest.raises(HttpError, match="group g is a share group"):
        await GroupPages(share_world.coordinator).respond(SimpleNamespace(method="GET"), "g")


async def test_very_many_names(share_world):
    world = share_world
    many = [f"t{n}" for n in range(3_001)]
    assert await Client(world, "a", *many).beat() is E.INVALID_REQUEST
    assert await Client(world, "a", *many[:2_000]).beat() is E.NONE
    assert await Client(world, "b", *many[1_999:]).beat() is E.INVALID_REQUEST, "together"
    assert await Client(world, "b", *many[:3_000]).beat() is E.NONE
