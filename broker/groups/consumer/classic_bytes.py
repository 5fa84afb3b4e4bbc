"""What classic consumers say in their protocol's opaque bytes, which a coordinator reads when their
group is one of KIP-848's. Pure.

Topics and partitions are counted before they are read: 100,000 of them take 0.1 s, and honest ones
are fewer than a group may subscribe to.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING

from broker.groups.consumer.names import NAMES_MAX
from broker.groups.consumer.types import GroupError, Owned, Topics
from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.records.consumer_group import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
)
from wire.kafka.records.coordinator import (
    decode_assignment,
    decode_subscription,
    encode_protocol,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

_VERSION = _LENGTH = Struct(">h")
_COUNT = Struct(">i")


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """GroupError INCONSISTENT_GROUP_PROTOCOL if it is none, INVALID_REQUEST if it names more topics
    than a group may have."""
    _check_count(_most_topics(metadata))
    try:
        return decode_subscription(metadata)
    except WireError as problem:
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(problem)) from None


def assignment_of(assignment: bytes) -> ConsumerProtocolAssignment:
    """GroupError as of `subscription_of`."""
    if len(assignment) >= _VERSION.size + _COUNT.size:
        _check_count(_COUNT.unpack_from(assignment, _VERSION.size)[0])
    try:
        return decode_assignment(assignment)
    except WireError as problem:
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(problem)) from None


def _check_count(topics: int) -> None:
    if topics > NAMES_MAX:
        raise GroupError(
            ErrorCode.INVALID_REQUEST, f"A member can name {NAMES_MAX} topics at most."
        )


def _most_topics(metadata: bytes) -> int:
    """How many a subscription names, or says it owns partitions of, whichever is more; 0 if it ends
    before that can be told, which who reads it finds."""
    try:
        topics: int = _COUNT.unpack_from(metadata, _VERSION.size)[0]
        if _VERSION.unpack_from(metadata)[0] < 1 or topics > NAMES_MAX:
            return topics
        at = _VERSION.size + _COUNT.size
        for _ in range(topics):
            at += _LENGTH.size + _LENGTH.unpack_from(metadata, at)[0]
        user_data_bytes = _COUNT.unpack_from(metadata, at)[0]
        at += _COUNT.size + max(0, user_data_bytes)
        return max(topics, int(_COUNT.unpack_from(metadata, at)[0]))
    except error:
        return 0


def given_count(assignment: bytes, most: int) -> int:
    """How many topics and partitions it names, which are not read, or something above `most` if
    they are more; 0 if it ends before that can be told, which who reads it finds."""
    try:
        topics: int = _COUNT.unpack_from(assignment, _VERSION.size)[0]
        given, at = max(0, topics), _VERSION.size + _COUNT.size
        for _ in range(topics):
            if given > most:
                break
            at += _LENGTH.size + _LENGTH.unpack_from(assignment, at)[0]
            partitions: int = _COUNT.unpack_from(assignment, at)[0]
            at += _COUNT.size * (1 + partitions)
            if partitions < 0 or at > len(assignment):
                return 0
            given += partitions
    except error:
        return 0
    return given


def owned_by(subscription: ConsumerProtocolSubscription, topics: Topics) -> Owned:
    """What a classic consumer says it owns; an eager one gave up all before it joins."""
    return by_id(subscription.owned_partitions, topics)


def by_id(partitions: Iterable[ConsumerProtocolTopicPartition], topics: Topics) -> Owned:
    found: Owned = {}
    for each in partitions:
        topic = topics.get(each.topic)
        if topic is not None and each.partitions:
            found.setdefault(topic.id, set()).update(each.partitions)
    return found


def assignment_bytes(
    partitions: Mapping[UUID, Collection[int]], metadata: bytes, topics: Topics
) -> bytes:
    """An assignment in the version that the member's subscription has."""
    found = []
    for topic_id in sorted(partitions):
        topic = topics.get_by_id(topic_id)
        if topic is not None and partitions[topic_id]:
            numbers = sorted(partitions[topic_id])
            found.append(ConsumerProtocolTopicPartition(topic.name, numbers))
    version = int.from_bytes(metadata[:2], "big", signed=True)
    return encode_protocol(ConsumerProtocolAssignment(found), version)
