"""What every request about a group is told by a broker that cannot serve it, and which of them name
the wrong group, instance or generation."""

import pytest
import trio

from broker.groups.consumer.settings import ConsumerSettings
from broker.groups.share.ports import ShareNeighbours
from broker.groups.share.settings import ShareSettings
from broker.groups.share.types import ShareTimes
from broker.groups.streams.settings import StreamsSettings
from tests.broker import driven
from tests.broker.groups.share.conftest import MemoryEnds, MemoryPersister
from wire.kafka.errors import ErrorCode as E
from wire.kafka.message import ZERO_UUID
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
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
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
from wire.kafka.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
)
from wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)


def join(group="g", member="", instance=None):
    return 9, JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id=member,
        group_instance_id=instance, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"m")],
    )  # fmt: skip


def commit(group="g", member="", generation=-1, instance=None):
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])
    return 9, OffsetCommitRequest(group, generation, member, instance, topics=[topic])


def txn_commit(group="g", member="", generation=-1, instance=None):
    parts = [TxnOffsetCommitRequestPartition(0, 1, committed_metadata=None)]
    return 3, TxnOffsetCommitRequest(
        "id", group, 7, 0, generation, member, instance, [TxnOffsetCommitRequestTopic("t", parts)]
    )


def share_beat(group="g", member="m", epoch=0):
    return 1, ShareGroupHeartbeatRequest(group, member, epoch, subscribed_topic_names=["t"])


def streams_beat(group="g", member="m", epoch=0, **given):
    if epoch == 0:
        subtopologies = [StreamsGroupHeartbeatRequestSubtopology("0", ["t"])]
        topology = StreamsGroupHeartbeatRequestTopology(0, subtopologies)
        given = {
            "rebalance_timeout_ms": 1000, "topology": topology, "process_id": "p",
            "active_tasks": [], "standby_tasks": [], "warmup_tasks": [], **given,
        }  # fmt: skip
    return 0, StreamsGroupHeartbeatRequest(group, member, epoch, **given)


def share_requests(group="g"):
    """One of each API of share groups that the coordinator of groups has."""
    topic = DescribeShareGroupOffsetsRequestTopic("t", [0])
    described = DescribeShareGroupOffsetsRequestGroup(group, [topic])
    offset = AlterShareGroupOffsetsRequestPartition(0, 1)
    altered = AlterShareGroupOffsetsRequestTopic("t", [offset])
    deleted = DeleteShareGroupOffsetsRequestTopic("t")
    return {
        "ShareGroupHeartbeat": share_beat(group),
        "ShareGroupDescribe": (1, ShareGroupDescribeRequest([group])),
        "DescribeShareGroupOffsets": (1, DescribeShareGroupOffsetsRequest([described])),
        "AlterShareGroupOffsets": (0, AlterShareGroupOffsetsRequest(group, [altered])),
        "DeleteShareGroupOffsets": (0, DeleteShareGroupOffsetsRequest(group, [deleted])),
    }


def streams_requests(group="g"):
    return {
        "StreamsGroupHeartbeat": streams_beat(group),
        "StreamsGroupDescribe": (0, StreamsGroupDescribeRequest([group])),
    }


def asked(group="g"):
    """One request of each API, by its name."""
    wanted = OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics("t", ZERO_UUID, [0])])
    deleted = OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])
    beat = ConsumerGroupHeartbeatRequest(
        group, "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    return {
        "OffsetCommit": commit(group),
        "OffsetFetch": (9, OffsetFetchRequest(groups=[wanted])),
        "JoinGroup": join(group),
        "Heartbeat": (4, HeartbeatRequest(group, 1, "m")),
        "LeaveGroup": (5, LeaveGroupRequest(group, members=[MemberIdentity("m")])),
        "SyncGroup": (4, SyncGroupRequest(group, 1, "m")),
        "DescribeGroups": (6, DescribeGroupsRequest([group])),
        "ListGroups": (5, ListGroupsRequest()),
        "DeleteGroups": (2, DeleteGroupsRequest([group])),
        "OffsetDelete": (0, OffsetDeleteRequest(group, [deleted])),
        "TxnOffsetCommit": txn_commit(group),
        "ConsumerGroupHeartbeat": (1, beat),
        "ConsumerGroupDescribe": (1, ConsumerGroupDescribeRequest([group])),
        **share_requests(group),
        **streams_requests(group),
    }


async def told(world, group="g", requests=asked):
    """By API, the errors of its answer; of OffsetFetch those of the group, too."""
    found = {}
    for name, request in requests(group).items():
        answer = await world.ask(*request)
        found[name] = {E(code) for code in driven.error_codes(answer)} - {E.NONE} or {E.NONE}
    return found


@pytest.fixture
def make_world(make_world):
    """One that serves share groups, too; the topic «t» is there."""

    async def made(**config):
        world = make_world(**config)
        world.persister = MemoryPersister()
        world.share = ShareNeighbours(world.persister, MemoryEnds(), lambda _: ShareTimes())
        await world.start()
        world.catalog.add("t", 1)
        return world

    return made


@pytest.fixture
async def world(make_world):
    return await make_world()


async def test_somebody_else_coordinates(autojump_clock, world):
    world.logs.elsewhere = {0, 1, 2}
    await world.restart()
    expected = {name: {E.NOT_COORDINATOR} for name in asked()}
    assert await told(world) == {**expected, "ListGroups": {E.NONE}}


async def test_the_group_is_being_loaded(autojump_clock, world):
    """A member that is alive is not told to look for another coordinator: Heartbeat is fine, as in
    Kafka."""
    world.scope.cancel()
    await world.settle()
    log = world.log_of("g").successor()
    world.logs.logs[world.coordinator.topic.partition_for("g")] = log
    log.reads_allowed = trio.Event()
    log.batches.append((0, b""))
    log.high_watermark = 1
    await world.start()
    expected = {name: {E.COORDINATOR_LOAD_IN_PROGRESS} for name in asked()}
    assert await told(world) == {**expected, "Heartbeat": {E.NONE}}


async def test_the_coordinator_has_stopped(autojump_clock, world):
    world.scope.cancel()
    await world.settle()
    expected = {name: {E.COORDINATOR_NOT_AVAILABLE} for name in asked()}
    # What librdkafka asks for again.
    assert await told(world) == {**expected, "OffsetFetch": {E.COORDINATOR_LOAD_IN_PROGRESS}}


async def test_a_group_without_a_name(autojump_clock, world):
    """Some take it, as in Kafka: simple consumers of old had none."""
    found = await told(world, "")
    takes = {"ListGroups", "OffsetCommit", "OffsetFetch", "DescribeGroups", "DeleteGroups"}
    takes |= {"DescribeShareGroupOffsets"}
    of_members = {name for name in found if name.endswith("GroupHeartbeat")}
    assert len(of_members) == 3
    assert {name for name in found if E.INVALID_GROUP_ID not in found[name]} == takes | of_members
    for name in of_members:
        assert found[name] == {E.INVALID_REQUEST}
    assert found["DescribeShareGroupOffsets"] == {E.NONE}, "it has begun nothing"


@pytest.mark.parametrize("requests", [share_requests, streams_requests])
async def test_a_protocol_that_is_not_switched_on(autojump_clock, world, requests):
    world.is_on = False
    found = await told(world, requests=requests)
    assert found == {name: {E.UNSUPPORTED_VERSION} for name in requests()}
    world.is_on = True
    for errors in (await told(world, requests=requests)).values():
        assert E.UNSUPPORTED_VERSION not in errors


@pytest.mark.parametrize(
    ("limit", "beat"),
    [
        ({"share": ShareSettings(group_share_max_size=1)}, share_beat),
        ({"streams": StreamsSettings(group_streams_max_size=1)}, streams_beat),
    ],
)
async def test_a_group_that_is_full(autojump_clock, make_world, limit, beat):
    world = await make_world(**limit)
    assert (await world.ask(*beat(member="one"))).error_code == E.NONE
    assert (await world.ask(*beat(member="two"))).error_code == E.GROUP_MAX_SIZE_REACHED
    assert (await world.ask(*beat(member="one", epoch=-1))).error_code == E.NONE
    assert (await world.ask(*beat(member="two"))).error_code == E.NONE


async def test_offsets_of_a_share_group_that_is_another_kind_of_group(autojump_clock, world):
    await world.ask(*join())
    requests = share_requests()
    described = requests.pop("DescribeShareGroupOffsets")
    for name, request in requests.items():
        codes = set(driven.error_codes(await world.ask(*request))) - {E.NONE}
        assert codes == {E.GROUP_ID_NOT_FOUND}, name
    assert set(driven.error_codes(await world.ask(*described))) == {E.NONE}, "nothing is known"


async def test_a_classic_group_that_is_full(autojump_clock, make_world):
    world = await make_world(group_max_size=1)
    one = await world.ask(*join())
    assert one.error_code == E.MEMBER_ID_REQUIRED
    two = await world.ask(*join())
    assert (await world.ask(*join(member=one.member_id))).error_code == E.NONE
    for member in (two.member_id, ""):
        refused = await world.ask(*join(member=member))
        assert (refused.error_code, refused.generation_id) == (E.GROUP_MAX_SIZE_REACHED, -1)


async def test_members_of_the_streams_protocol_whose_epoch_is_another(autojump_clock, world):
    joined = await world.ask(*streams_beat())
    assert joined.error_code == E.NONE
    for epoch in (joined.member_epoch + 1, 99):
        answer = await world.ask(*streams_beat(epoch=epoch))
        assert answer.error_code == E.FENCED_MEMBER_EPOCH
    assert (await world.ask(*streams_beat(epoch=joined.member_epoch))).error_code == E.NONE


async def test_an_instance_that_is_another_member_now(autojump_clock, world):
    first = await world.ask(*join(instance="i"))
    await world.ask(4, SyncGroupRequest("g", 1, first.member_id, "i"))
    again = world.send(*join(instance="i"))
    await world.settle()
    [second] = again
    old = first.member_id
    assert second.member_id != old
    identity = MemberIdentity(old, "i")
    for version, message in (
        join(member=old, instance="i"),
        (4, HeartbeatRequest("g", 1, old, "i")),
        (4, SyncGroupRequest("g", 1, old, "i")),
        (5, LeaveGroupRequest("g", members=[identity])),
        commit(member=old, generation=1, instance="i"),
        txn_commit(member=old, generation=1, instance="i"),
    ):
        codes = set(driven.error_codes(await world.ask(version, message))) - {0}
        assert codes == {E.FENCED_INSTANCE_ID}, message


async def test_a_generation_that_is_over(autojump_clock, world):
    joined = await world.ask(*join(instance="i"))
    member = joined.member_id
    for version, message in (
        (4, SyncGroupRequest("g", 7, member, "i")),
        (4, HeartbeatRequest("g", 7, member, "i")),
        commit(member=member, generation=7, instance="i"),
    ):
        assert set(driven.error_codes(await world.ask(version, message))) == {E.ILLEGAL_GENERATION}
    await world.ask(4, SyncGroupRequest("g", 1, member, "i"))
    second = await world.ask(*join())
    world.send(*join(member=second.member_id))  # a rebalance has begun
    await world.settle()
    for version, message in (
        (4, SyncGroupRequest("g", 1, member, "i")),
        (4, HeartbeatRequest("g", 1, member, "i")),
    ):
        codes = set(driven.error_codes(await world.ask(version, message)))
        assert codes == {E.REBALANCE_IN_PROGRESS}


async def test_members_of_the_consumer_protocol_that_err(autojump_clock, make_world):
    world = await make_world(consumer=ConsumerSettings(group_consumer_max_size=1))

    def beat(member="m", epoch=0, **given):
        given.setdefault("rebalance_timeout_ms", 1000)
        given.setdefault("topic_partitions", [])
        given.setdefault("subscribed_topic_names", ["t"])
        return 1, ConsumerGroupHeartbeatRequest("g", member, epoch, **given)

    assert (await world.ask(*beat(instance_id="i"))).error_code == E.NONE
    for request, error in (
        (beat("x"), E.GROUP_MAX_SIZE_REACHED),
        (beat("m", 99, instance_id="i"), E.FENCED_MEMBER_EPOCH),
        (beat("x", instance_id="i"), E.UNRELEASED_INSTANCE_ID),
        (beat("m", instance_id="i", subscribed_topic_regex="("), E.INVALID_REGULAR_EXPRESSION),
        (beat("m", server_assignor="none"), E.UNSUPPORTED_ASSIGNOR),
    ):
        assert (await world.ask(*request)).error_code == error, request
