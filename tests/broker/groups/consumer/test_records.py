"""Records of consumer groups: what a load makes of them, whatever compaction left."""

from __future__ import annotations

import uuid

import pytest

from broker.groups.consumer.events import CurrentSet, MemberSet, TargetSet
from broker.groups.consumer.live import LiveGroup
from broker.groups.consumer.records import event_record, parse_event
from broker.groups.consumer.types import Current, Member, MemberState
from broker.groups.records import group_tombstone, offset_tombstone
from wire.kafka.errors import WireError
from wire.kafka.records.consumer_group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    CurrentTopicPartitions,
)
from wire.kafka.records.coordinator import decode_group_key, encode_key, encode_value

TOPIC = uuid.UUID(int=7)
EVENTS = [
    MemberSet("m", Member("m", topics=("t",))),
    TargetSet("m", {TOPIC: frozenset([0, 1])}),
    CurrentSet("m", Current(3, 2, MemberState.STABLE, {TOPIC: {0: 3, 1: 2}})),
]


@pytest.fixture
async def shard(make_world):
    world = make_world()
    await world.start()
    shard, error = world.coordinator.base.find("g")
    assert not error
    return shard


@pytest.mark.parametrize("event", EVENTS)
async def test_any_record_may_be_the_first(shard, event):
    shard.apply(*event_record("g", event), 0, -1)
    group = shard.groups["g"].group
    assert isinstance(group, LiveGroup)
    assert event.value in (
        group.applied.members.get("m"), group.applied.targets.get("m"),
        group.applied.current.get("m"),
    )  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
async def test_tombstones_of_what_was_never_seen(shard, event):
    shard.apply(*event_record("g", type(event)("m", None)), 0, -1)
    shard.apply(*group_tombstone("g"), 1, -1)
    shard.apply(*offset_tombstone("g", "t", 0), 2, -1)
    assert shard.groups == {}


def test_a_record_from_before_assignment_epochs():
    key = ConsumerGroupCurrentMemberAssignmentKey("g", "m")
    value = ConsumerGroupCurrentMemberAssignmentValue(
        5, 4, 9, [CurrentTopicPartitions(TOPIC, [0, 2])], []
    )
    event = parse_event(key, encode_value(value))
    assert event.value.assigned == {TOPIC: {0: 5, 2: 5}}
    assert event.value.state is MemberState.UNKNOWN


@pytest.mark.parametrize("event", EVENTS)
def test_a_version_that_is_not_known_stops_a_load(event):
    key, value = event_record("g", event)
    with pytest.raises(WireError):
        parse_event(decode_group_key(key), b"\x00\x63" + value[2:])
    assert encode_key(decode_group_key(key)) == key
