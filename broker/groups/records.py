"""Records of `__consumer_offsets` as values of this room, and back. The bytes are Kafka's own
(wire/kafka/records/coordinator): any Kafka tool reads them.

Every offset has a record of its own, keyed by (group, topic, partition): whatever compaction keeps,
it keeps the last commit of every partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.classic.types import GroupSnapshot, MemberSnapshot
from broker.groups.consumer.records import parse_event
from broker.groups.offsets.offsets_core import CommittedOffset
from broker.groups.share.records import parse_event as parse_share_event
from broker.groups.streams.records import parse_event as parse_streams_event
from wire.dataclass import dataclass
from wire.kafka.message import ZERO_UUID
from wire.kafka.records.coordinator import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupKey,
    decode_group_key,
    decode_value,
    encode_key,
    encode_value,
)
from wire.kafka.records.streams_group import StreamsGroupKey

if TYPE_CHECKING:
    from broker.groups.consumer.events import Event
    from broker.groups.share.events import Event as ShareEvent
    from broker.groups.streams.events import Event as StreamsEvent


@dataclass(slots=True, frozen=True)
class StoredGroup:
    """A group's record; no snapshot: its tombstone."""

    group_id: str
    snapshot: GroupSnapshot | None


@dataclass(slots=True, frozen=True)
class StoredOffset:
    """An offset's record; no value: its tombstone."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(slots=True, frozen=True)
class StoredEvent:
    """A record of a group of the consumer protocol."""

    group_id: str
    event: Event


@dataclass(slots=True, frozen=True)
class StoredShareEvent:
    """A record of a share group."""

    group_id: str
    event: ShareEvent


@dataclass(slots=True, frozen=True)
class StoredStreamsEvent:
    """A record of a streams group."""

    group_id: str
    event: StreamsEvent


StoredRecord = StoredGroup | StoredOffset | StoredEvent | StoredShareEvent | StoredStreamsEvent


def group_record(snapshot: GroupSnapshot) -> tuple[bytes, bytes]:
    value = GroupMetadataValue(
        protocol_type=snapshot.protocol_type,
        generation=snapshot.generation_id,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader_id,
        current_state_timestamp=snapshot.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in snapshot.members
        ],
    )
    return encode_key(GroupMetadataKey(group=snapshot.group_id)), encode_value(value)


def group_tombstone(group_id: str) -> tuple[bytes, None]:
    return encode_key(GroupMetadataKey(group=group_id)), None


def offset_record(
    group_id: str, topic: str, partition: int, committed: CommittedOffset
) -> tuple[bytes, bytes]:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id or ZERO_UUID,
    )
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return encode_key(key), encode_value(value)


def offset_tombstone(group_id: str, topic: str, partition: int) -> tuple[bytes, None]:
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition)), None


def parse_record(key: bytes, value: bytes | None) -> StoredRecord | None:
    """What a record of the log says; None: of a type that is not known (streams groups').
    WireError if it is malformed."""
    match decode_group_key(key):
        case None:
            return None
        case OffsetCommitKey() as offset_key:
            return StoredOffset(
                offset_key.group,
                offset_key.topic,
                offset_key.partition,
                _committed_offset(decode_value(OffsetCommitValue, value)),
            )
        case GroupMetadataKey() as group_key:
            snapshot = _snapshot(group_key.group, decode_value(GroupMetadataValue, value))
            return StoredGroup(group_key.group, snapshot)
        case share_key if isinstance(share_key, ShareGroupKey):
            return StoredShareEvent(share_key.group_id, parse_share_event(share_key, value))
        case streams_key if isinstance(streams_key, StreamsGroupKey):
            return StoredStreamsEvent(streams_key.group_id, parse_streams_event(streams_key, value))
        case consumer_key:
            return StoredEvent(consumer_key.group_id, parse_event(consumer_key, value))


def _committed_offset(value: OffsetCommitValue | None) -> CommittedOffset | None:
    if value is None:
        return None
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        None if value.topic_id == ZERO_UUID else value.topic_id,
    )


def _snapshot(group_id: str, value: GroupMetadataValue | None) -> GroupSnapshot | None:
    if value is None:
        return None
    return GroupSnapshot(
        group_id,
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        value.current_state_timestamp,
        tuple(
            MemberSnapshot(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                # Version 0 had none: there the session timeout stood for both.
                member.session_timeout
                if member.rebalance_timeout == -1
                else member.rebalance_timeout,
                member.session_timeout,
                member.subscription,
                member.assignment,
            )
            for member in value.members
        ),
    )
