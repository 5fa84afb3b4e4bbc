"""What a share group is: the state that its events come to, and what is derived from it.

Pure. Everything here is a function of the events in their order, so a load of the log comes to the
state that the server had. Events come from a log that was compacted at any point: any may be the
first, and tombstones may be of what was never seen. So nothing is asserted of them.

Owner: the group's shell (live.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from broker.groups.share.events import (
    CurrentSet,
    Event,
    GroupEpoch,
    MemberSet,
    StateSet,
    TargetEpoch,
    TargetSet,
)
from broker.groups.share.types import Current, Member, ShareGroupState, StatePartitions

if TYPE_CHECKING:
    from broker.groups.share.types import Target

V = TypeVar("V")

NOTHING_ASSIGNED = Current()
NO_STATE = StatePartitions()


class ShareGroup:
    """Plain reads are fine at any time; only `apply` changes it."""

    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp_ms",
        "current",
        "epoch",
        "group_id",
        "has_state",
        "members",
        "metadata_hash",
        "partitions",
        "targets",
        "topic_members",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: 0: there is no such group yet.
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        #: 0: nobody made the targets yet.
        self.assignment_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.current: dict[str, Current] = {}
        self.targets: dict[str, Target] = {}
        self.partitions = NO_STATE
        self.has_state = False
        # Derived:
        #: How many members name a topic.
        self.topic_members: dict[str, int] = {}

    def copy(self) -> ShareGroup:
        other = ShareGroup(self.group_id)
        other.epoch, other.metadata_hash = self.epoch, self.metadata_hash
        other.assignment_epoch = self.assignment_epoch
        other.assignment_timestamp_ms = self.assignment_timestamp_ms
        other.members, other.current = dict(self.members), dict(self.current)
        other.targets = dict(self.targets)
        other.partitions, other.has_state = self.partitions, self.has_state
        other.topic_members = dict(self.topic_members)
        return other

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_members

    # --- events

    def apply(self, event: Event) -> None:
        match event:
            case CurrentSet():
                _put(self.current, event.member_id, event.value)
            case TargetSet():
                _put(self.targets, event.member_id, event.value)
            case MemberSet():
                self._set_member(event.member_id, event.value)
            case GroupEpoch():
                self.epoch, self.metadata_hash = event.value or (0, 0)
            case TargetEpoch():
                self.assignment_epoch, self.assignment_timestamp_ms = event.value or (0, 0)
            case StateSet():
                self.partitions = event.value or NO_STATE
                self.has_state = event.value is not None

    def _set_member(self, member_id: str, member: Member | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._count(before, -1)
        _put(self.members, member_id, member)
        if member is not None:
            self._count(member, 1)

    def _count(self, member: Member, step: int) -> None:
        for topic in member.topics:
            left = self.topic_members.get(topic, 0) + step
            if left:
                self.topic_members[topic] = left
            else:
                del self.topic_members[topic]


def _put(table: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
