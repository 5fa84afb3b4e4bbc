"""Events of streams groups as records of `__consumer_offsets`, and back. The bytes are Kafka's own
(wire/kafka/records/streams_group).

What Kafka 4.3 does not serve and this server does not either is not kept: instance ids and patterns
of source topics, which are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.streams.events import (
    CurrentSet,
    Event,
    GroupSet,
    MemberSet,
    TargetEpoch,
    TargetSet,
    TopologySet,
)
from broker.groups.streams.types import (
    CopartitionGroup,
    Current,
    DatedTasks,
    GroupMetadata,
    Held,
    InternalTopic,
    Member,
    MemberState,
    Subtopology,
    Target,
    Tasks,
    Topology,
)
from wire.kafka.records.coordinator import decode_value, encode_key, encode_value
from wire.kafka.records.streams_group import (
    CurrentTaskIds,
    KeyAndValue,
    StoredCopartitionGroup,
    StoredSubtopology,
    StoredTopic,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    TargetTaskIds,
    UserEndpoint,
)

if TYPE_CHECKING:
    from wire.kafka.message import Message


def event_record(group_id: str, event: Event) -> tuple[bytes, bytes | None]:
    """Key and value of the record; a value of None is a tombstone."""
    key, value = _messages(group_id, event)
    return encode_key(key), None if value is None else encode_value(value)


def _messages(group_id: str, event: Event) -> tuple[Message, Message | None]:
    match event:
        case CurrentSet(member_id, current):
            return (
                StreamsGroupCurrentMemberAssignmentKey(group_id, member_id),
                None if current is None else _current_value(current),
            )
        case TargetSet(member_id, target):
            return (
                StreamsGroupTargetAssignmentMemberKey(group_id, member_id),
                None if target is None else _target_value(target),
            )
        case MemberSet(member_id, member):
            return (
                StreamsGroupMemberMetadataKey(group_id, member_id),
                None if member is None else _member_value(member),
            )
        case GroupSet(group):
            return (
                StreamsGroupMetadataKey(group_id),
                None if group is None else _group_value(group),
            )
        case TargetEpoch(epoch):
            return (
                StreamsGroupTargetAssignmentMetadataKey(group_id),
                None if epoch is None else StreamsGroupTargetAssignmentMetadataValue(*epoch),
            )
        case TopologySet(topology):
            return (
                StreamsGroupTopologyKey(group_id),
                None if topology is None else topology_value(topology),
            )
    raise TypeError(f"{type(event).__name__} is of the classic protocol")


def parse_event(key: StreamsGroupKey, value: bytes | None) -> Event:
    """What a record says. WireError if its value is malformed, or of a version not known."""
    match key:
        case StreamsGroupCurrentMemberAssignmentKey():
            current = decode_value(StreamsGroupCurrentMemberAssignmentValue, value)
            return CurrentSet(key.member_id, None if current is None else _current(current))
        case StreamsGroupTargetAssignmentMemberKey():
            target = decode_value(StreamsGroupTargetAssignmentMemberValue, value)
            return TargetSet(key.member_id, None if target is None else _target(target))
        case StreamsGroupMemberMetadataKey():
            member = decode_value(StreamsGroupMemberMetadataValue, value)
            return MemberSet(
                key.member_id, None if member is None else _member(key.member_id, member)
            )
        case StreamsGroupMetadataKey():
            group = decode_value(StreamsGroupMetadataValue, value)
            return GroupSet(None if group is None else _group(group))
        case StreamsGroupTargetAssignmentMetadataKey():
            made = decode_value(StreamsGroupTargetAssignmentMetadataValue, value)
            return TargetEpoch(
                None if made is None else (made.assignment_epoch, made.assignment_timestamp)
            )
        case StreamsGroupTopologyKey():
            topology = decode_value(StreamsGroupTopologyValue, value)
            return TopologySet(None if topology is None else _topology(topology))


# --- 17


def _group_value(group: GroupMetadata) -> StreamsGroupMetadataValue:
    return StreamsGroupMetadataValue(
        group.epoch,
        group.metadata_hash,
        group.validated_topology_epoch,
        [KeyAndValue(*each) for each in group.configs] or None,
    )


def _group(value: StreamsGroupMetadataValue) -> GroupMetadata:
    return GroupMetadata(
        value.epoch,
        value.metadata_hash,
        value.validated_topology_epoch,
        _pairs(value.last_assignment_configs or []),
    )


def _pairs(pairs: list[KeyAndValue]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((each.key, each.value) for each in pairs))


# --- 19


def _member_value(member: Member) -> StreamsGroupMemberMetadataValue:
    return StreamsGroupMemberMetadataValue(
        None,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topology_epoch,
        member.process_id,
        None if member.user_endpoint is None else UserEndpoint(*member.user_endpoint),
        [KeyAndValue(*each) for each in member.client_tags],
    )


def _member(member_id: str, value: StreamsGroupMemberMetadataValue) -> Member:
    endpoint = value.user_endpoint
    return Member(
        member_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        value.topology_epoch,
        value.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        _pairs(value.client_tags),
    )


# --- 21


def _target_value(target: Target) -> StreamsGroupTargetAssignmentMemberValue:
    return StreamsGroupTargetAssignmentMemberValue(
        *(
            [TargetTaskIds(each, sorted(numbers)) for each, numbers in sorted(part.items())]
            for part in (target.active, target.standby, target.warmup)
        )
    )


def _target(value: StreamsGroupTargetAssignmentMemberValue) -> Target:
    return Target(
        _tasks(value.active_tasks), _tasks(value.standby_tasks), _tasks(value.warmup_tasks)
    )


def _tasks(ids: list[TargetTaskIds] | list[CurrentTaskIds]) -> Tasks:
    return {each.subtopology_id: frozenset(each.partitions) for each in ids}


# --- 22


def _current_value(current: Current) -> StreamsGroupCurrentMemberAssignmentValue:
    return StreamsGroupCurrentMemberAssignmentValue(
        current.epoch,
        current.previous_epoch,
        int(current.state),
        *_held_values(current.assigned),
        *_held_values(current.pending),
    )


def _held_values(held: Held) -> tuple[list[CurrentTaskIds], ...]:
    active = [
        CurrentTaskIds(each, list(dated), list(dated.values()))
        for each, dated in sorted(held.active.items())
    ]
    standby, warmup = (
        [CurrentTaskIds(each, sorted(numbers)) for each, numbers in sorted(part.items())]
        for part in (held.standby, held.warmup)
    )
    return active, standby, warmup


def _current(value: StreamsGroupCurrentMemberAssignmentValue) -> Current:
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    epoch = value.member_epoch
    return Current(
        epoch,
        value.previous_member_epoch,
        state,
        Held(
            _dated(value.active_tasks, epoch),
            _tasks(value.standby_tasks),
            _tasks(value.warmup_tasks),
        ),
        Held(
            _dated(value.active_tasks_pending_revocation, epoch),
            _tasks(value.standby_tasks_pending_revocation),
            _tasks(value.warmup_tasks_pending_revocation),
        ),
    )


def _dated(ids: list[CurrentTaskIds], epoch: int) -> DatedTasks:
    """A record without epochs is of a server that had none: then it is the member's epoch."""
    dated: DatedTasks = {}
    for each in ids:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [epoch] * len(each.partitions)
        dated[each.subtopology_id] = dict(zip(each.partitions, epochs, strict=True))
    return dated


# --- 23


def topology_value(topology: Topology) -> StreamsGroupTopologyValue:
    return StreamsGroupTopologyValue(
        topology.epoch,
        [
            StoredSubtopology(
                each.subtopology_id,
                list(each.source_topics),
                [],
                [_topic_value(topic) for topic in each.changelog_topics],
                list(each.repartition_sink_topics),
                [_topic_value(topic) for topic in each.repartition_source_topics],
                [
                    StoredCopartitionGroup(
                        list(group.source_topics), [], list(group.repartition_source_topics)
                    )
                    for group in each.copartition_groups
                ],
            )
            for each in topology.subtopologies
        ],
    )


def _topic_value(topic: InternalTopic) -> StoredTopic:
    return StoredTopic(
        topic.name,
        topic.partitions,
        topic.replication_factor,
        [KeyAndValue(*each) for each in topic.configs],
    )


def _topology(value: StreamsGroupTopologyValue) -> Topology:
    subtopologies = (
        Subtopology(
            each.subtopology_id,
            tuple(each.source_topics),
            tuple(each.repartition_sink_topics),
            tuple(_topic(topic) for topic in each.repartition_source_topics),
            tuple(_topic(topic) for topic in each.state_changelog_topics),
            tuple(
                CopartitionGroup(tuple(group.source_topics), tuple(group.repartition_source_topics))
                for group in each.copartition_groups
            ),
        )
        for each in value.subtopologies
    )
    return Topology(value.epoch, tuple(sorted(subtopologies, key=lambda each: each.subtopology_id)))


def _topic(value: StoredTopic) -> InternalTopic:
    return InternalTopic(
        value.name, value.partitions, value.replication_factor, _pairs(value.topic_configs)
    )
