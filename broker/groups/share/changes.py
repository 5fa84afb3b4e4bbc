"""Events as they are made: each is in force in the group at once, and kept for the log. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.changes import metadata_hash
from broker.groups.share.events import CurrentSet, Event, GroupEpoch, MemberSet, TargetSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.groups.consumer.types import Topics
    from broker.groups.share.group import ShareGroup


class Changes:
    """The events of one input to a group."""

    __slots__ = ("events", "group")

    def __init__(self, group: ShareGroup) -> None:
        self.group = group
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.group.apply(event)
        self.events.append(event)

    def bump(self, topics: Topics, *, above: int = 0) -> None:
        """The group's epoch is raised: there has to be a new assignment. `above`: it must be
        greater than this, too."""
        found = metadata_hash(self.group.topic_members, topics)
        self.add(GroupEpoch((max(self.group.epoch, above) + 1, found)))

    def bump_if_topics_differ(self, topics: Topics) -> None:
        """The same, if the metadata are no longer those of the epoch."""
        found = metadata_hash(self.group.topic_members, topics)
        if found != self.group.metadata_hash:
            self.add(GroupEpoch((self.group.epoch + 1, found)))


def fence(changes: Changes, member_ids: Iterable[str], topics: Topics) -> None:
    """Members that left, or were not heard of: one epoch for all of them. In the order that Kafka's
    records of a member go: 14, 13, 10."""
    before = len(changes.events)
    for member_id in member_ids:
        changes.add(CurrentSet(member_id, None))
        if member_id in changes.group.targets:
            changes.add(TargetSet(member_id, None))
        changes.add(MemberSet(member_id, None))
    if len(changes.events) > before:
        changes.bump(topics)
