"""The coordinator and its handlers on logs in memory, by messages as clients send them."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from broker.coordinator.coordinator import MOVES_MS
from broker.coordinator.topic import java_hash, partition_for
from broker.groups.classic.members import PROTOCOLS_MAX
from broker.groups.config import GroupConfig
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.groups.offsets.offsets_core import CommittedOffset
from broker.groups.records import StoredGroup, StoredOffset
from wire.kafka.errors import ErrorCode as E
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)


def subscription(*topics):
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def join_request(
    group="g", member="", version=9, instance=None, protocol_type="consumer", **kwargs
):
    metadata = kwargs.pop("metadata", subscription("t"))
    return version, JoinGroupRequest(
        group_id=group,
        session_timeout_ms=kwargs.pop("session_timeout_ms", 10_000),
        rebalance_timeout_ms=60_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol("range", metadata)],
    )


async def stable_member(world, group="g", **kwargs):
    """One dynamic member in a stable group; its id."""
    first = await world.ask(*join_request(group, **kwargs))
    assert first.error_code == E.MEMBER_ID_REQUIRED
    answers = world.send(*join_request(group, first.member_id, **kwargs))
    await trio.sleep(0.01)
    (joined,) = answers
    assert joined.error_code == E.NONE
    synced = await world.ask(
        5,
        SyncGroupRequest(
            group,
            joined.generation_id,
            joined.member_id,
            None,
            joined.protocol_type,
            joined.protocol_name,
            [SyncGroupRequestAssignment(joined.member_id, b"mine")],
        ),
    )
    assert (synced.error_code, synced.assignment) == (E.NONE, b"mine")
    return joined.member_id


def commit_request(world, group="g", offset=5, partitions=(0,), topic="t", version=9, **kwargs):
    known = world.catalog.get(topic)
    return version, OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=kwargs.pop("generation", -1),
        member_id=kwargs.pop("member", ""),
        retention_time_ms=kwargs.pop("retention_ms", -1),
        topics=[
            OffsetCommitRequestTopic(
                topic,
                known.id if known is not None else ZERO_UUID,
                [
                    OffsetCommitRequestPartition(
                        each,
                        offset + each,
                        committed_leader_epoch=3,
                        committed_metadata=kwargs.get("metadata", "m"),
                    )
                    for each in partitions
                ],
            )
        ],
    )


def commit_errors(response):
    return [p.error_code for t in response.topics for p in t.partitions]


def fetch_request(group="g", topics=None, version=9, require_stable=False):
    return version, OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group, topics=topics)], require_stable=require_stable
    )


async def fetched(world, group="g", **kwargs):
    """{(topic, partition): (offset, epoch, metadata)} of all that a group has committed."""
    response = await world.ask(*fetch_request(group, **kwargs))
    (answer,) = response.groups
    assert answer.error_code == E.NONE
    return {
        (t.name, p.partition_index): (p.committed_offset, p.committed_leader_epoch, p.metadata)
        for t in answer.topics
        for p in t.partitions
    }


# --- which partition


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("😀", 1772899)],
)
def test_the_hash_is_javas(text, expected):
    """«polygenelubricants» is the well-known string of hash -2^31."""
    assert java_hash(text) == expected & 0xFFFFFFFF


def test_partition_of_a_group():
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 99162322 % 50
    assert partition_for("", 50) == 0


# --- a group's life by messages


async def test_a_group_lives_by_messages(autojump_clock, world):
    world.catalog.add("t", 2)
    member = await stable_member(world)
    assert member.startswith("client-")
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == E.NONE
    committed = await world.ask(*commit_request(world, member=member, generation=1))
    assert commit_errors(committed) == [E.NONE]
    assert await fetched(world) == {("t", 0): (5, 3, "m")}
    (group,) = (await world.ask(6, DescribeGroupsRequest(["g"], True))).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable", "consumer", "range",
    )  # fmt: skip
    assert group.authorized_operations == 3400
    (described,) = group.members
    assert (described.member_id, described.client_id) == (member, "client")
    assert described.client_host == "/10.0.0.9"
    assert (described.member_assignment, described.member_metadata) == (b"mine", subscription("t"))
    left = await world.ask(5, LeaveGroupRequest("g", members=[MemberIdentity(member)]))
    assert [m.error_code for m in left.members] == [E.NONE]
    kinds = [type(record) for record in world.log_of("g").records()]
    assert kinds == [StoredGroup, StoredGroup, StoredOffset, StoredGroup]
    assert world.log_of("g").records()[-1].snapshot.members == ()


async def test_every_version_of_join_sync_heartbeat_leave_answers(autojump_clock, world):
    for version in range(10):
        group = f"v{version}"
        member = ""
        if version >= 4:
            answer = await world.ask(*join_request(group, version=version))
            assert answer.error_code == E.MEMBER_ID_REQUIRED
            member = answer.member_id
        answers = world.send(*join_request(group, member, version=version))
        await trio.sleep(0.01)
        joined = answers[0]
        assert (joined.error_code, joined.generation_id, joined.leader) == (
            E.NONE, 1, joined.member_id,
        )  # fmt: skip
        request = SyncGroupRequest(group, 1, joined.member_id, None, "consumer", "range")
        assert (await world.ask(min(version, 5), request)).error_code == E.NONE
        heartbeat = HeartbeatRequest(group, 1, joined.member_id)
        assert (await world.ask(min(version, 4), heartbeat)).error_code == E.NONE
        leave_version = min(version, 5)
        leave = LeaveGroupRequest(group, joined.member_id, [MemberIdentity(joined.member_id)])
        assert (await world.ask(leave_version, leave)).error_code == E.NONE
        assert (await world.ask(leave_version, leave)).error_code == (
            E.UNKNOWN_MEMBER_ID if leave_version < 3 else E.NONE
        )


async def test_a_refused_join_encodes_in_every_version(autojump_clock, world):
    for version in range(10):
        refused = await world.ask(*join_request("g", "nobody", version=version))
        assert refused.error_code == E.UNKNOWN_MEMBER_ID
        assert refused.protocol_name == (None if version >= 7 else "")
        short = await world.ask(*join_request(version=version, session_timeout_ms=5_999))
        assert short.error_code == E.INVALID_SESSION_TIMEOUT
        assert (await world.ask(*join_request("", version=version))).error_code == (
            E.INVALID_GROUP_ID
        )
    assert (await world.ask(5, ListGroupsRequest())).groups == []


async def test_a_join_of_very_many_protocols_is_refused_unread(autojump_clock, world, monkeypatch):
    """20,000 took 8 ms in one turn."""
    join, given = world.coordinator.join, []

    def joining(group_id, request, reply):
        given.append(request)
        return join(group_id, request, reply)

    monkeypatch.setattr(world.coordinator, "join", joining)
    version, request = join_request()
    request.protocols = [JoinGroupRequestProtocol(f"p{number}", b"") for number in range(20_000)]
    refused = await world.ask(version, request)
    assert refused.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert len(given[0].protocols) == PROTOCOLS_MAX + 1
    assert (await world.ask(5, ListGroupsRequest())).groups == []


async def test_sync_5_must_name_its_protocol(autojump_clock, world):
    answer = await world.ask(5, SyncGroupRequest("g", 1, "m"))
    assert answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert (await world.ask(4, SyncGroupRequest("g", 1, "m"))).error_code == E.UNKNOWN_MEMBER_ID


async def test_a_silent_member_is_removed_by_the_timer(autojump_clock, world):
    member = await stable_member(world)
    await trio.sleep(9.5)
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == E.NONE
    await trio.sleep(9.5)
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == E.NONE
    await trio.sleep(10.5)
    (group,) = (await world.ask(6, DescribeGroupsRequest(["g"]))).groups
    assert (group.group_state, group.members) == ("Empty", [])


async def test_heartbeats_do_not_fill_the_timers(autojump_clock, world):
    member = await stable_member(world)
    for _ in range(300):
        await trio.sleep(0.5)
        await world.ask(4, HeartbeatRequest("g", 1, member))
    assert len(world.coordinator.timers) <= 4


async def test_cooperative_members_keep_what_they_had_while_rebalancing(autojump_clock, world):
    """KIP-429: a member commits for what it still owns while the group prepares a rebalance."""
    world.catalog.add("t", 2)
    member = await stable_member(world)
    newcomer = await world.ask(*join_request())
    world.send(*join_request(member=newcomer.member_id))
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == (
        E.REBALANCE_IN_PROGRESS
    )
    committed = await world.ask(*commit_request(world, member=member, generation=1))
    assert commit_errors(committed) == [E.NONE]


# --- loading, losing


async def test_a_restart_brings_everything_back(autojump_clock, world):
    world.catalog.add("t", 4)
    for group in ("one", "two", "three", "gone"):
        await stable_member(world, group)
    await world.ask(*commit_request(world, "simple", partitions=(0, 1, 2)))
    await world.ask(*commit_request(world, "simple", offset=50, partitions=(1,)))
    await world.ask(*commit_request(world, "deleted"))
    await world.ask(2, DeleteGroupsRequest(["deleted"]))
    gone = await world.ask(6, DescribeGroupsRequest(["gone"]))
    members = [MemberIdentity(gone.groups[0].members[0].member_id)]
    await world.ask(5, LeaveGroupRequest("gone", members=members))
    before = world.state()
    assert len(before) == 5
    await world.restart()
    assert world.state() == before
    assert await fetched(world, "simple") == {
        ("t", 0): (5, 3, "m"), ("t", 1): (51, 3, "m"), ("t", 2): (7, 3, "m"),
    }  # fmt: skip
    (one,) = (await world.ask(6, DescribeGroupsRequest(["one"]))).groups
    member = one.members[0].member_id
    assert (await world.ask(4, HeartbeatRequest("one", 1, member))).error_code == E.NONE
    await trio.sleep(10.5)  # nobody else is heard of
    states = {g.group_id: g.group_state for g in (await world.ask(5, ListGroupsRequest())).groups}
    assert set(states.values()) == {"Empty"}


async def test_while_loading(autojump_clock, make_world):
    world = make_world()
    await world.start()
    world.catalog.add("t", 1)
    member = await stable_member(world)
    await world.ask(*commit_request(world, member=member, generation=1))
    world.scope.cancel()
    await world.settle()
    world.logs.logs = {at: log.successor() for at, log in world.logs.logs.items()}
    log = world.log_of("g")
    log.reads_allowed = trio.Event()
    await world.start()
    loading = E.COORDINATOR_LOAD_IN_PROGRESS
    assert (await world.ask(*join_request())).error_code == loading
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == E.NONE
    assert (await world.ask(4, SyncGroupRequest("g", 1, member))).error_code == loading
    assert commit_errors(await world.ask(*commit_request(world))) == [loading]
    assert (await world.ask(*fetch_request())).groups[0].error_code == loading
    assert (await world.ask(5, ListGroupsRequest())).error_code == loading
    assert (await world.ask(6, DescribeGroupsRequest(["g"]))).groups[0].error_code == loading
    log.reads_allowed.set()
    await world.settle()
    assert await fetched(world) == {("t", 0): (5, 3, "m")}


async def test_not_the_coordinator(autojump_clock, make_world):
    world = make_world()
    world.logs.elsewhere = {0, 1, 2}
    await world.start()
    wrong = E.NOT_COORDINATOR
    world.catalog.add("t", 1)
    assert (await world.ask(*join_request())).error_code == wrong
    assert (await world.ask(4, HeartbeatRequest("g", 1, "m"))).error_code == wrong
    assert commit_errors(await world.ask(*commit_request(world))) == [wrong]
    assert (await world.ask(*fetch_request())).groups[0].error_code == wrong
    left = await world.ask(5, LeaveGroupRequest("g", members=[MemberIdentity("m")]))
    assert left.error_code == wrong
    deleted = await world.ask(2, DeleteGroupsRequest(["g"]))
    assert deleted.results[0].error_code == wrong
    listed = await world.ask(5, ListGroupsRequest())
    assert (listed.error_code, listed.groups) == (E.NONE, [])


async def test_who_waits_when_the_log_is_lost_is_told(autojump_clock, world):
    world.catalog.add("t", 1)
    member = await stable_member(world)
    newcomer = await world.ask(*join_request())
    joining = world.send(*join_request(member=newcomer.member_id))
    log = world.log_of("g")
    log.auto_ack = False
    committing = world.send(*commit_request(world, member=member, generation=1))
    await world.settle()
    assert joining == committing == []
    log.go_offline()
    assert joining[0].error_code == E.NOT_COORDINATOR
    assert commit_errors(committing[0]) == [E.NOT_COORDINATOR]
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == E.NOT_COORDINATOR
    index = world.coordinator.topic.partition_for("g")
    world.logs.logs[index] = log.successor()
    await trio.sleep(2)  # taken over again: loaded without being asked
    assert (await world.ask(4, HeartbeatRequest("g", 1, member))).error_code == E.NONE
    assert await fetched(world) == {}  # the commit was not durable


async def test_a_failed_append_is_a_failed_commit(autojump_clock, world):
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world, "other"))
    log = world.log_of("g")
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    assert commit_errors(await world.ask(*commit_request(world))) == [E.COORDINATOR_NOT_AVAILABLE]
    log.fail_with = None
    assert await fetched(world) == {}
    groups = [g.group_id for g in (await world.ask(5, ListGroupsRequest())).groups]
    assert groups == ["other"]  # no trace of a group that never was stored


# --- offsets


async def test_commits_of_one_turn_are_one_batch(autojump_clock, world):
    world.catalog.add("t", 1)
    groups = [f"g{n}" for n in range(60)]
    world.turn.begin()
    answers = [world.send(*commit_request(world, group)) for group in groups]
    assert not any(answers)
    world.turn.run()
    await world.settle()
    assert all(commit_errors(each) == [E.NONE] for (each,) in answers)
    assert sum(len(log.batches) for log in world.logs.logs.values()) == 3  # one per partition


async def test_a_commit_is_answered_and_seen_when_it_is_durable(autojump_clock, world):
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world, offset=1))
    log = world.log_of("g")
    log.auto_ack = False
    committing = world.send(*commit_request(world, offset=2))
    stable = world.send(*fetch_request(require_stable=True))
    await world.settle()
    assert committing == stable == []
    assert (await fetched(world))[("t", 0)][0] == 1
    log.ack()
    assert commit_errors(committing[0]) == [E.NONE]
    await world.settle()
    assert stable[0].groups[0].topics[0].partitions[0].committed_offset == 2
    assert (await fetched(world))[("t", 0)][0] == 2


async def test_deposed_coordinator_tells_no_stable_offset(autojump_clock, world):
    """It does not know that another has the group; memory says 1, the log nothing."""
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world, offset=1))
    log = world.log_of("g")
    log.auto_ack = False
    asked = [world.send(*fetch_request(require_stable=True)) for _ in range(3)]
    await world.settle()
    assert asked == [[]] * 3
    assert len(log._waiting) == 1, "one append for all of the turn"
    assert (await fetched(world))[("t", 0)][0] == 1, "who does not ask for stable ones has memory's"
    log.go_offline()
    await world.settle()
    told = [answers[0].groups[0].error_code for answers in asked]
    assert told == [E.COORDINATOR_LOAD_IN_PROGRESS] * 3


async def test_who_fetches_offsets_while_the_group_moves_is_to_ask_again(autojump_clock, world):
    """librdkafka (2.16) asks no second time after NOT_COORDINATOR, and reads nothing."""
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world, offset=1))
    world.log_of("g").go_offline()
    for stable in (True, False):
        response = await world.ask(*fetch_request(require_stable=stable))
        assert response.groups[0].error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    response = await world.ask(*commit_request(world, offset=2))
    assert commit_errors(response) == [E.NOT_COORDINATOR]
    await trio.sleep(MOVES_MS / 1000)
    response = await world.ask(*fetch_request())
    assert response.groups[0].error_code == E.NOT_COORDINATOR


async def test_stable_offsets_wait_for_an_append_behind_the_question(autojump_clock, world):
    """A commit that was on its way says nothing: another broker may have come since then."""
    world.catalog.add("t", 1)
    log = world.log_of("g")
    log.auto_ack = False
    world.send(*commit_request(world, offset=1))
    await world.settle()
    stable = world.send(*fetch_request(require_stable=True))
    await world.settle()
    first, second = log._waiting
    log._waiting = [first]
    log.ack()
    await world.settle()
    assert stable == []
    log._waiting = [second]
    log.ack()
    await world.settle()
    assert stable[0].groups[0].topics[0].partitions[0].committed_offset == 1


async def test_what_stable_offsets_append_changes_nothing(autojump_clock, world):
    """Not for the group of the empty name either, whose key it is."""
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world, group="", offset=4))
    log = world.log_of("")
    count = len(log.batches)
    response = await world.ask(*fetch_request("", require_stable=True))
    assert response.groups[0].topics[0].partitions[0].committed_offset == 4
    response = await world.ask(*fetch_request("nobody", require_stable=True))
    assert (response.groups[0].error_code, response.groups[0].topics) == (E.NONE, [])
    assert len(log.batches) > count
    before = await fetched(world, "")
    await world.restart()
    assert await fetched(world, "") == before
    assert await fetched(world, "nobody") == {}


async def test_commits_are_refused_while_too_much_waits(autojump_clock, make_world):
    world = make_world(pending_bytes_max=400)
    await world.start()
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world))
    log = world.log_of("g")
    log.auto_ack = False
    answers = [world.send(*commit_request(world, offset=n)) for n in range(6)]
    await world.settle()
    refused = [each[0] for each in answers if each]
    assert 1 <= len(refused) < 6
    assert all(commit_errors(each) == [E.COORDINATOR_NOT_AVAILABLE] for each in refused)
    log.ack()
    assert all(answers)
    assert world.coordinator.statistics()["pending_bytes"] == 0


async def test_commit_errors_by_partition(autojump_clock, world):
    world.catalog.add("t", 2)
    response = await world.ask(*commit_request(world, partitions=(0, 2, 1)))
    assert commit_errors(response) == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]
    response = await world.ask(*commit_request(world, topic="nowhere"))
    assert commit_errors(response) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    response = await world.ask(*commit_request(world, topic="nowhere", version=10))
    assert commit_errors(response) == [E.UNKNOWN_TOPIC_ID]
    response = await world.ask(*commit_request(world, metadata="x" * 4096))
    assert commit_errors(response) == [E.NONE]
    response = await world.ask(*commit_request(world, metadata="x" * 4097))
    assert commit_errors(response) == [E.OFFSET_METADATA_TOO_LARGE]
    response = await world.ask(*commit_request(world, metadata=None))
    assert commit_errors(response) == [E.NONE]
    for version in range(2, 11):
        expected = E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION
        request = commit_request(world, "none", generation=3, member="m", version=version)
        assert commit_errors(await world.ask(*request)) == [expected]


async def test_a_member_excludes_simple_commits(autojump_clock, world):
    world.catalog.add("t", 1)
    await stable_member(world)
    assert commit_errors(await world.ask(*commit_request(world))) == [E.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", range(1, 11))
async def test_fetch_in_every_version(autojump_clock, world, version):
    topic = world.catalog.add("t", 3)
    await world.ask(*commit_request(world, partitions=(0, 1), version=10))
    if version >= 8:
        asked = [OffsetFetchRequestTopics("t", topic.id, [1, 2])]
        request = fetch_request(topics=asked, version=version)
    else:
        request = version, OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [1, 2])])
    response = await world.ask(*request)
    topics = response.groups[0].topics if version >= 8 else response.topics
    found = [(p.partition_index, p.committed_offset, p.metadata) for p in topics[0].partitions]
    assert found == [(1, 6, "m"), (2, -1, "")]
    assert topics[0].topic_id == topic.id if version >= 10 else topics[0].name == "t"
    if version >= 2:
        everything = (
            fetch_request(version=version)
            if version >= 8
            else (version, OffsetFetchRequest("g", None))
        )
        response = await world.ask(*everything)
        topics = response.groups[0].topics if version >= 8 else response.topics
        assert [p.committed_offset for p in topics[0].partitions] == [5, 6]


async def test_fetch_of_several_groups_and_of_unknown_things(autojump_clock, world):
    topic = world.catalog.add("t", 1)
    for group in ("a", "b"):
        await world.ask(*commit_request(world, group, offset=ord(group)))
    groups = [OffsetFetchRequestGroup(each, topics=None) for each in ("a", "none", "b")]
    response = await world.ask(8, OffsetFetchRequest(groups=groups))
    offsets = [[t.partitions[0].committed_offset for t in g.topics] for g in response.groups]
    assert offsets == [[97], [], [98]]
    assert (await world.ask(8, OffsetFetchRequest())).groups == []
    asked = [OffsetFetchRequestTopics(topic_id=ZERO_UUID, partition_indexes=[0])]
    response = await world.ask(*fetch_request("a", topics=asked, version=10))
    (partition,) = response.groups[0].topics[0].partitions
    assert (partition.error_code, partition.committed_offset) == (E.UNKNOWN_TOPIC_ID, -1)
    # a topic that was deleted and made again is another one
    del world.catalog.topics["t"]
    again = world.catalog.add("t", 1)
    assert again.id != topic.id
    asked = [OffsetFetchRequestTopics(topic_id=again.id, partition_indexes=[0])]
    response = await world.ask(*fetch_request("a", topics=asked, version=10))
    assert response.groups[0].topics[0].partitions[0].committed_offset == -1


async def test_offsets_of_open_transactions_are_unstable(autojump_clock, world):
    world.catalog.add("t", 2)
    await world.ask(*commit_request(world, partitions=(0, 1)))
    _, entry = world.coordinator.describe("g")
    entry.offsets.apply_pending(7, "t", 1, CommittedOffset(6, -1, "", 0))
    response = await world.ask(*fetch_request(require_stable=True))
    partitions = response.groups[0].topics[0].partitions
    assert [(p.error_code, p.committed_offset) for p in partitions] == [
        (E.NONE, 5), (E.UNSTABLE_OFFSET_COMMIT, -1),
    ]  # fmt: skip
    assert len(await fetched(world)) == 2


async def test_offset_delete(autojump_clock, world):
    for topic in ("t", "u", "w"):
        world.catalog.add(topic, 2)
        await world.ask(*commit_request(world, topic=topic, partitions=(0, 1)))
    await stable_member(world)  # subscribes to «t»
    asked = [
        OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)]),
        OffsetDeleteRequestTopic("u", [OffsetDeleteRequestPartition(n) for n in (0, 9)]),
        OffsetDeleteRequestTopic("x", [OffsetDeleteRequestPartition(0)]),
    ]
    response = await world.ask(0, OffsetDeleteRequest("g", asked))
    assert response.error_code == E.NONE
    assert commit_errors(response) == [
        E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    left = {("t", 0), ("t", 1), ("u", 1), ("w", 0), ("w", 1)}
    assert set(await fetched(world)) == left
    response = await world.ask(0, OffsetDeleteRequest("none", asked))
    assert (response.error_code, response.topics) == (E.GROUP_ID_NOT_FOUND, [])
    await stable_member(world, "connect", protocol_type="connect")
    response = await world.ask(0, OffsetDeleteRequest("connect", asked))
    assert response.error_code == E.NON_EMPTY_GROUP
    await world.restart()
    assert set(await fetched(world)) == left


async def test_a_deleted_topics_offsets_are_forgotten(autojump_clock, world):
    for topic in ("t", "u"):
        world.catalog.add(topic, 1)
        await world.ask(*commit_request(world, topic=topic))
    world.catalog.remove("t")
    await world.settle()
    assert set(await fetched(world)) == {("u", 0)}
    await world.restart()
    assert set(await fetched(world)) == {("u", 0)}


async def test_a_late_word_of_a_deletion_spares_the_new_topic_of_that_name(autojump_clock, world):
    old = world.catalog.add("t", 2)
    await world.ask(*commit_request(world, partitions=(0, 1)))
    del world.catalog.topics["t"]
    world.catalog.add("t", 2)
    await world.ask(*commit_request(world, offset=70, partitions=(1,)))
    world.coordinator.topic_deleted(old)
    await world.settle()
    assert await fetched(world) == {("t", 1): (71, 3, "m")}


async def test_the_new_topics_offsets_come_before_word_of_either_topic(autojump_clock, world):
    """The coordinator has the commits of a topic that was made anew, and its broker's picture of
    the topics is older: it has the end of the old one, and not yet the new one."""
    new = world.catalog.add("t", 1)
    await world.ask(*commit_request(world, offset=70))
    old = SimpleNamespace(id=UUID(int=777), name="t", partition_count=1)
    del world.catalog.topics["t"]
    world.coordinator.topic_deleted(old)
    world.catalog.topics["t"] = new
    await world.settle()
    assert await fetched(world) == {("t", 0): (70, 3, "m")}


# --- expiry


async def test_offsets_of_an_empty_group_expire_and_the_group_with_them(autojump_clock, make_world):
    world = make_world(offsets_retention_minutes=60, offsets_retention_check_interval_ms=60_000)
    await world.start()
    world.catalog.add("t", 1)
    member = await stable_member(world)
    await world.ask(*commit_request(world, member=member, generation=1))
    for _ in range(800):  # longer than the retention: a member keeps its group's offsets
        await trio.sleep(5)
        await world.ask(4, HeartbeatRequest("g", 1, member))
    assert len(await fetched(world)) == 1
    await world.ask(5, LeaveGroupRequest("g", members=[MemberIdentity(member)]))
    await trio.sleep(59 * 60)
    assert len(await fetched(world)) == 1
    await trio.sleep(3 * 60)
    assert (await world.ask(5, ListGroupsRequest())).groups == []
    await world.restart()
    assert (await world.ask(5, ListGroupsRequest())).groups == []


async def test_expiry_by_topic_by_commit_and_by_own_retention(autojump_clock, make_world):
    world = make_world(offsets_retention_minutes=60, offsets_retention_check_interval_ms=60_000)
    await world.start()
    for topic in ("t", "unsubscribed"):
        world.catalog.add(topic, 2)
    await world.ask(*commit_request(world, topic="t"))
    await world.ask(*commit_request(world, topic="unsubscribed"))
    await world.ask(*commit_request(world, "simple"))
    await world.ask(*commit_request(world, "short", version=3, retention_ms=120_000))
    member = await stable_member(world)
    for minute in range(62):
        if minute == 30:
            await world.ask(*commit_request(world, "simple", partitions=(1,)))
        if minute == 5:
            assert await fetched(world, "short") == {}
        for _ in range(8):
            await trio.sleep(7.5)
            await world.ask(4, HeartbeatRequest("g", 1, member))
    assert set(await fetched(world)) == {("t", 0)}
    assert set(await fetched(world, "simple")) == {("t", 1)}


# --- administration


async def test_list_groups_filters(autojump_clock, world):
    world.catalog.add("t", 1)
    await stable_member(world, "busy")
    await world.ask(*commit_request(world, "idle"))
    for version in range(6):
        response = await world.ask(version, ListGroupsRequest())
        assert {g.group_id for g in response.groups} == {"busy", "idle"}
    filters = [
        ((["Stable"], []), {"busy"}),
        ((["stable", "EMPTY"], []), {"busy", "idle"}),
        ((["Dead"], []), set()),
        (([], ["classic"]), {"busy", "idle"}),
        (([], ["Classic", "consumer"]), {"busy", "idle"}),
        (([], ["consumer"]), set()),
        ((["empty"], ["classic"]), {"idle"}),
    ]
    for (states, types), expected in filters:
        response = await world.ask(5, ListGroupsRequest(states, types))
        assert {g.group_id for g in response.groups} == expected
        assert all(g.group_type == "classic" for g in response.groups)


async def test_describe_of_what_is_not_there(autojump_clock, world):
    for version in range(7):
        (group,) = (await world.ask(version, DescribeGroupsRequest(["none"]))).groups
        assert group.group_state == "Dead"
        assert group.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)
    assert group.error_message == "Group none not found."


async def test_delete_groups(autojump_clock, world):
    world.catalog.add("t", 2)
    await stable_member(world, "busy")
    await world.ask(*commit_request(world, "idle", partitions=(0, 1)))
    names = ["idle", "busy", "none", "idle"]
    results = (await world.ask(2, DeleteGroupsRequest(names))).results
    assert [(r.group_id, r.error_code) for r in results] == [
        ("idle", E.NONE), ("busy", E.NON_EMPTY_GROUP), ("none", E.GROUP_ID_NOT_FOUND),
    ]  # fmt: skip
    assert (await world.ask(2, DeleteGroupsRequest([]))).results == []
    tombstones = world.log_of("idle").records()[-3:]
    assert [getattr(r, "value", None) or getattr(r, "snapshot", None) for r in tombstones] == (
        [None] * 3
    )
    before = world.state()
    assert set(before) == {"busy"}
    await world.restart()
    assert world.state() == before


async def test_a_commit_behind_a_deletion_survives_it(autojump_clock, world):
    world.catalog.add("t", 2)
    await world.ask(*commit_request(world, partitions=(0,)))
    log = world.log_of("g")
    log.auto_ack = False
    before = world.send(*commit_request(world, offset=10, partitions=(1,)))
    deleting = world.send(2, DeleteGroupsRequest(["g"]))
    after = world.send(*commit_request(world, offset=20, partitions=(0,)))
    await world.settle()
    log.ack()
    assert commit_errors(before[0]) == commit_errors(after[0]) == [E.NONE]
    assert deleting[0].results[0].error_code == E.NONE
    log.auto_ack = True
    assert await fetched(world) == {("t", 0): (20, 3, "m")}
    state = world.state()
    await world.restart()
    assert world.state() == state


async def test_a_member_that_joins_behind_a_deletion_stays(autojump_clock, world):
    world.catalog.add("t", 1)
    await world.ask(*commit_request(world))
    log = world.log_of("g")
    log.auto_ack = False
    deleting = world.send(2, DeleteGroupsRequest(["g"]))
    (required,) = world.send(*join_request())
    log.auto_ack = True
    await world.settle()
    log.ack()
    assert deleting[0].results[0].error_code == E.NONE
    joining = world.send(*join_request(member=required.member_id))
    await trio.sleep(0.01)
    assert joining[0].error_code == E.NONE
    assert await fetched(world) == {}


# --- FindCoordinator


async def test_find_coordinator_in_every_version(autojump_clock, world):
    for version in range(7):
        request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g", "h"])
        response = await world.ask(version, request)
        found = response.coordinators if version >= 4 else [response]
        assert [(f.node_id, f.host, f.port, f.error_code) for f in found] == (
            [(5, "me", 9092, E.NONE)] * (2 if version >= 4 else 1)
        )
    share = await world.ask(6, FindCoordinatorRequest(key_type=2, coordinator_keys=["g"]))
    assert share.coordinators[0].error_code == E.INVALID_REQUEST
    world.logs.elsewhere = {0, 1, 2}
    lost = await world.ask(3, FindCoordinatorRequest(key="g"))
    assert (lost.error_code, lost.node_id, lost.port) == (E.COORDINATOR_NOT_AVAILABLE, -1, -1)


async def test_the_topic_is_made_when_it_is_first_asked_for(autojump_clock, make_world):
    world = make_world()
    await world.start(topic=False)
    assert (await world.ask(*join_request())).error_code == E.NOT_COORDINATOR
    first = world.send(4, FindCoordinatorRequest(coordinator_keys=["g"]))
    second = world.send(3, FindCoordinatorRequest(key="h"))
    await world.settle()
    assert first[0].coordinators[0].node_id == second[0].node_id == 5
    assert world.catalog.get(OFFSETS_TOPIC).partition_count == 3
    assert (await world.ask(*join_request())).error_code == E.MEMBER_ID_REQUIRED


def test_defaults_are_kafkas():
    config = GroupConfig()
    assert config.offsets_retention_ms == 7 * 24 * 3600 * 1000
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (
        6_000, 1_800_000,
    )  # fmt: skip


async def test_a_commit_on_its_way_for_the_new_topic_stays(autojump_clock, world):
    world.catalog.add("t", 2)
    await world.ask(*commit_request(world, version=10, offset=5, partitions=(0, 1)))
    old = world.catalog.get("t")
    log = world.log_of("g")
    world.catalog.topics.pop("t")
    world.catalog.add("t", 2)
    log.auto_ack = False
    committing = world.send(*commit_request(world, version=10, offset=7))
    await world.settle()
    world.coordinator.topic_deleted(old)  # heard of late
    await world.settle()
    log.auto_ack = True
    log.ack()
    await world.settle()
    assert len(committing) == 1
    assert {key: value[0] for key, value in (await fetched(world)).items()} == {("t", 0): 7}
