"""Events of consumer groups as records of `__consumer_offsets`, and back. The bytes are Kafka's own
(wire/kafka/records/consumer_group).

An event of the classic protocol (`ClassicSet`) is a record of broker/groups/records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.events import (
    CurrentSet,
    Event,
    GroupEpoch,
    MemberSet,
    RegexSet,
    TargetEpoch,
    TargetSet,
)
from broker.groups.consumer.types import (
    Assigned,
    ClassicPart,
    Current,
    Member,
    MemberState,
    ResolvedRegex,
)
from wire.kafka.records.consumer_group import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from wire.kafka.records.coordinator import ConsumerGroupKey, decode_value, encode_key, encode_value

if TYPE_CHECKING:
    from broker.groups.consumer.assignors.input import Target
    from wire.kafka.message import Message


def event_record(group_id: str, event: Event) -> tuple[bytes, bytes | None]:
    """Key and value of the record; a value of None is a tombstone."""
    key, value = _messages(group_id, event)
    return encode_key(key), None if value is None else encode_value(value)


def _messages(group_id: str, event: Event) -> tuple[Message, Message | None]:
    match event:
        case CurrentSet(member_id, current):
            return (
                ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id),
                None if current is None else _current_value(current),
            )
        case TargetSet(member_id, target):
            return (
                ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
                None if target is None else _target_value(target),
            )
        case MemberSet(member_id, member):
            return (
                ConsumerGroupMemberMetadataKey(group_id, member_id),
                None if member is None else _member_value(member),
            )
        case GroupEpoch(epoch):
            return (
                ConsumerGroupMetadataKey(group_id),
                None if epoch is None else ConsumerGroupMetadataValue(*epoch),
            )
        case TargetEpoch(epoch):
            return (
                ConsumerGroupTargetAssignmentMetadataKey(group_id),
                None if epoch is None else ConsumerGroupTargetAssignmentMetadataValue(*epoch),
            )
        case RegexSet(regex, resolved):
            value = None
            if resolved is not None:
                value = ConsumerGroupRegularExpressionValue(
                    sorted(resolved.topics), resolved.version, resolved.timestamp_ms
                )
            return ConsumerGroupRegularExpressionKey(group_id, regex), value
    raise TypeError(f"{type(event).__name__} is of the classic protocol")


def parse_event(key: ConsumerGroupKey, value: bytes | None) -> Event:
    """What a record says. WireError if its value is malformed, or of a version not known."""
    match key:
        case ConsumerGroupCurrentMemberAssignmentKey():
            current = decode_value(ConsumerGroupCurrentMemberAssignmentValue, value)
            return CurrentSet(key.member_id, None if current is None else _current(current))
        case ConsumerGroupTargetAssignmentMemberKey():
            target = decode_value(ConsumerGroupTargetAssignmentMemberValue, value)
            return TargetSet(key.member_id, None if target is None else _target(target))
        case ConsumerGroupMemberMetadataKey():
            member = decode_value(ConsumerGroupMemberMetadataValue, value)
            return MemberSet(
                key.member_id, None if member is None else _member(key.member_id, member)
            )
        case ConsumerGroupMetadataKey():
            group = decode_value(ConsumerGroupMetadataValue, value)
            return GroupEpoch(None if group is None else (group.epoch, group.metadata_hash))
        case ConsumerGroupTargetAssignmentMetadataKey():
            made = decode_value(ConsumerGroupTargetAssignmentMetadataValue, value)
            return TargetEpoch(
                None if made is None else (made.assignment_epoch, made.assignment_timestamp)
            )
        case ConsumerGroupRegularExpressionKey():
            regex = decode_value(ConsumerGroupRegularExpressionValue, value)
            return RegexSet(
                key.regular_expression,
                None
                if regex is None
                else ResolvedRegex(frozenset(regex.topics), regex.version, regex.timestamp),
            )


def _current_value(current: Current) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        current.epoch,
        current.previous_epoch,
        int(current.state),
        _assigned_value(current.assigned),
        _assigned_value(current.pending),
    )


def _assigned_value(assigned: Assigned) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(topic_id, list(partitions), list(partitions.values()))
        for topic_id, partitions in sorted(assigned.items())
    ]


def _current(value: ConsumerGroupCurrentMemberAssignmentValue) -> Current:
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    return Current(
        value.member_epoch,
        value.previous_member_epoch,
        state,
        _assigned(value.assigned_partitions, value.member_epoch),
        _assigned(value.partitions_pending_revocation, value.member_epoch),
    )


def _assigned(topics: list[CurrentTopicPartitions], epoch: int) -> Assigned:
    """A record from before KIP-1251 has no assignment epochs: then it is the member's epoch."""
    assigned: Assigned = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [epoch] * len(topic.partitions)
        assigned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return assigned


def _target_value(target: Target) -> ConsumerGroupTargetAssignmentMemberValue:
    return ConsumerGroupTargetAssignmentMemberValue(
        [
            TargetTopicPartitions(topic_id, sorted(partitions))
            for topic_id, partitions in sorted(target.items())
        ]
    )


def _target(value: ConsumerGroupTargetAssignmentMemberValue) -> Target:
    return {each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}


def _member_value(member: Member) -> ConsumerGroupMemberMetadataValue:
    classic = None
    if member.classic is not None:
        classic = ClassicMemberMetadata(
            member.classic.session_timeout_ms,
            [ClassicProtocol(name, metadata) for name, metadata in member.classic.protocols],
        )
    return ConsumerGroupMemberMetadataValue(
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        list(member.topics),
        member.regex or None,
        member.rebalance_timeout_ms,
        member.server_assignor,
        classic,
    )


def _member(member_id: str, value: ConsumerGroupMemberMetadataValue) -> Member:
    classic = value.classic_member_metadata
    return Member(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(value.subscribed_topic_names),
        value.subscribed_topic_regex or "",
        value.rebalance_timeout_ms,
        value.server_assignor,
        None
        if classic is None
        else ClassicPart(
            classic.session_timeout_ms,
            tuple((each.name, each.metadata) for each in classic.supported_protocols),
        ),
    )
