"""Events of share groups as records of `__consumer_offsets`, and back. The bytes are Kafka's own
(wire/kafka/records/share_group)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.share.events import (
    CurrentSet,
    Event,
    GroupEpoch,
    MemberSet,
    StateSet,
    TargetEpoch,
    TargetSet,
)
from broker.groups.share.types import Current, Member, StatePartitions, TopicPartitions
from wire.kafka.records.coordinator import ShareGroupKey, decode_value, encode_key, encode_value
from wire.kafka.records.share_group import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareTopicInfo,
    ShareTopicPartitions,
    ShareTopicPartitionsInfo,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from broker.groups.share.types import Target
    from wire.kafka.message import Message

#: The only state that a member of a share group can be in.
_STABLE = 0


def event_record(group_id: str, event: Event) -> tuple[bytes, bytes | None]:
    """Key and value of the record; a value of None is a tombstone."""
    key, value = _messages(group_id, event)
    return encode_key(key), None if value is None else encode_value(value)


def _messages(group_id: str, event: Event) -> tuple[Message, Message | None]:
    match event:
        case CurrentSet(member_id, current):
            return (
                ShareGroupCurrentMemberAssignmentKey(group_id, member_id),
                None
                if current is None
                else ShareGroupCurrentMemberAssignmentValue(
                    current.epoch, current.previous_epoch, _STABLE, _topics(current.assigned)
                ),
            )
        case TargetSet(member_id, target):
            return (
                ShareGroupTargetAssignmentMemberKey(group_id, member_id),
                None if target is None else ShareGroupTargetAssignmentMemberValue(_topics(target)),
            )
        case MemberSet(member_id, member):
            return (
                ShareGroupMemberMetadataKey(group_id, member_id),
                None
                if member is None
                else ShareGroupMemberMetadataValue(
                    member.rack_id, member.client_id, member.client_host, list(member.topics)
                ),
            )
        case GroupEpoch(epoch):
            return (
                ShareGroupMetadataKey(group_id),
                None if epoch is None else ShareGroupMetadataValue(*epoch),
            )
        case TargetEpoch(epoch):
            return (
                ShareGroupTargetAssignmentMetadataKey(group_id),
                None if epoch is None else ShareGroupTargetAssignmentMetadataValue(*epoch),
            )
        case StateSet(partitions):
            return (
                ShareGroupStatePartitionMetadataKey(group_id),
                None if partitions is None else _state_value(partitions),
            )


def parse_event(key: ShareGroupKey, value: bytes | None) -> Event:
    """What a record says. WireError if its value is malformed, or of a version not known."""
    match key:
        case ShareGroupCurrentMemberAssignmentKey():
            current = decode_value(ShareGroupCurrentMemberAssignmentValue, value)
            return CurrentSet(
                key.member_id,
                None
                if current is None
                else Current(
                    current.member_epoch,
                    current.previous_member_epoch,
                    _target(current.assigned_partitions),
                ),
            )
        case ShareGroupTargetAssignmentMemberKey():
            target = decode_value(ShareGroupTargetAssignmentMemberValue, value)
            return TargetSet(
                key.member_id, None if target is None else _target(target.topic_partitions)
            )
        case ShareGroupMemberMetadataKey():
            member = decode_value(ShareGroupMemberMetadataValue, value)
            return MemberSet(
                key.member_id,
                None
                if member is None
                else Member(
                    key.member_id,
                    member.rack_id,
                    member.client_id,
                    member.client_host,
                    tuple(member.subscribed_topic_names),
                ),
            )
        case ShareGroupMetadataKey():
            group = decode_value(ShareGroupMetadataValue, value)
            return GroupEpoch(None if group is None else (group.epoch, group.metadata_hash))
        case ShareGroupTargetAssignmentMetadataKey():
            made = decode_value(ShareGroupTargetAssignmentMetadataValue, value)
            return TargetEpoch(
                None if made is None else (made.assignment_epoch, made.assignment_timestamp)
            )
        case ShareGroupStatePartitionMetadataKey():
            state = decode_value(ShareGroupStatePartitionMetadataValue, value)
            return StateSet(None if state is None else _state(state))


def _topics(target: Target) -> list[ShareTopicPartitions]:
    return [
        ShareTopicPartitions(topic_id, sorted(partitions))
        for topic_id, partitions in sorted(target.items())
    ]


def _target(topics: list[ShareTopicPartitions]) -> Target:
    return {each.topic_id: frozenset(each.partitions) for each in topics}


def _state_value(state: StatePartitions) -> ShareGroupStatePartitionMetadataValue:
    return ShareGroupStatePartitionMetadataValue(
        _infos(state.initializing),
        _infos(state.initialized),
        [ShareTopicInfo(topic_id, name) for topic_id, name in sorted(state.deleting.items())],
    )


def _infos(topics: Mapping[UUID, TopicPartitions]) -> list[ShareTopicPartitionsInfo]:
    return [
        ShareTopicPartitionsInfo(topic_id, each.name, sorted(each.partitions))
        for topic_id, each in sorted(topics.items())
    ]


def _state(value: ShareGroupStatePartitionMetadataValue) -> StatePartitions:
    return StatePartitions(
        _partitions(value.initializing_topics),
        _partitions(value.initialized_topics),
        {each.topic_id: each.topic_name for each in value.deleting_topics},
    )


def _partitions(infos: list[ShareTopicPartitionsInfo]) -> dict[UUID, TopicPartitions]:
    return {
        each.topic_id: TopicPartitions(each.topic_name, frozenset(each.partitions))
        for each in infos
    }
