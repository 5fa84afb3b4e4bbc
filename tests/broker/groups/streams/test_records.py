"""Records of streams groups: what a load makes of them, whatever compaction left."""

from __future__ import annotations

import pytest

from broker.groups.records import group_tombstone, offset_tombstone
from broker.groups.streams.events import (
    CurrentSet,
    GroupSet,
    MemberSet,
    TargetEpoch,
    TargetSet,
    TopologySet,
)
from broker.groups.streams.live import LiveStreamsGroup
from broker.groups.streams.records import event_record, parse_event
from broker.groups.streams.types import (
    CopartitionGroup,
    Current,
    GroupMetadata,
    Held,
    InternalTopic,
    Member,
    MemberState,
    Subtopology,
    Target,
    Topology,
)
from wire.kafka.errors import WireError
from wire.kafka.records.coordinator import decode_group_key, encode_key, encode_value
from wire.kafka.records.streams_group import (
    CurrentTaskIds,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
)

TASKS = {"0": frozenset([0, 2]), "1": frozenset([1])}
TOPOLOGY = Topology(
    3,
    (
        Subtopology(
            "0",
            ("in", "other"),
            ("g-r-repartition",),
            (InternalTopic("g-q-repartition", 4, 3, (("cleanup.policy", "delete"),)),),
            (InternalTopic("g-s-changelog", 0, 0, (("cleanup.policy", "compact"),)),),
            (CopartitionGroup((0, 1), (0,)),),
        ),
    ),
)
EVENTS = [
    GroupSet(GroupMetadata(4, -77, 3, (("num.standby.replicas", "1"),))),
    MemberSet(
        "m", Member("m", "rack", "c", "/h", 100, 3, "process", ("host", 65_535), (("k", "v"),))
    ),
    TargetEpoch((4, 1_700_000_000_000)),
    TargetSet("m", Target(TASKS, {"0": frozenset([1])}, {"1": frozenset([0])})),
    CurrentSet(
        "m",
        Current(
            *(4, 3, MemberState.UNREVOKED_TASKS),
            Held({"0": {0: 3, 2: 4}}, {"1": frozenset([1])}),
            Held({"1": {7: 2}}, {"0": frozenset([5])}),
        ),
    ),
    TopologySet(TOPOLOGY),
]
#: By Kafka's numbers.
TYPES = (17, 19, 20, 21, 22, 23)


@pytest.fixture
async def shard(make_world):
    world = make_world()
    await world.start()
    shard, error = world.coordinator.base.find("g")
    assert not error
    return shard


@pytest.mark.parametrize(("event", "kind"), list(zip(EVENTS, TYPES, strict=True)))
def test_there_and_back(event, kind):
    key, value = event_record("g", event)
    assert key[:2] == kind.to_bytes(2, "big")
    assert value[:2] == b"\0\0"
    assert parse_event(decode_group_key(key), value) == event
    gone = type(event)(None) if not hasattr(event, "member_id") else type(event)("m", None)
    assert parse_event(decode_group_key(key), None) == gone


@pytest.mark.parametrize("event", EVENTS)
async def test_any_record_may_be_the_first(shard, event):
    shard.apply(*event_record("g", event), 0, -1)
    group = shard.groups["g"].group
    assert isinstance(group, LiveStreamsGroup)
    known = group.applied
    assert event.value in (
        known.metadata, known.topology, known.members.get("m"), known.targets.get("m"),
        known.current.get("m"), (known.assignment_epoch, known.assignment_timestamp_ms),
    )  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
async def test_tombstones_of_what_was_never_seen(shard, event):
    key, _ = event_record("g", event)
    shard.apply(key, None, 0, -1)
    shard.apply(*group_tombstone("g"), 1, -1)
    shard.apply(*offset_tombstone("g", "t", 0), 2, -1)
    assert shard.groups == {}


async def test_a_group_ends_with_its_own_tombstone(shard):
    for at, event in enumerate(EVENTS):
        shard.apply(*event_record("g", event), at, -1)
    for at, event in enumerate([*EVENTS[1:], EVENTS[0]], len(EVENTS)):
        key, _ = event_record("g", event)
        shard.apply(key, None, at, -1)
    assert shard.groups == {}


def test_a_record_without_assignment_epochs():
    key = StreamsGroupCurrentMemberAssignmentKey("g", "m")
    value = StreamsGroupCurrentMemberAssignmentValue(
        *(5, 4, 0), [CurrentTaskIds("0", [1, 2])], [], [], [], [], []
    )
    event = parse_event(key, encode_value(value))
    assert event.value.assigned.active == {"0": {1: 5, 2: 5}}


def test_a_state_of_a_newer_server():
    value = StreamsGroupCurrentMemberAssignmentValue(*(5, 4, 9), [], [], [], [], [], [])
    event = parse_event(StreamsGroupCurrentMemberAssignmentKey("g", "m"), encode_value(value))
    assert event.value.state is MemberState.UNKNOWN


def test_a_version_that_is_not_known_stops_the_load():
    key = encode_key(StreamsGroupCurrentMemberAssignmentKey("g", "m"))
    with pytest.raises(WireError):
        parse_event(decode_group_key(key), b"\0\1" + bytes(20))
