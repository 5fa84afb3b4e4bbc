"""Events as they are made: each is in force in the group at once, and kept for the log. Pure.

Also what several inputs have in common: members that are removed, an epoch that is raised, and the
hash of the metadata that an epoch stands for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from broker.groups.consumer.events import (
    CurrentSet,
    Event,
    GroupEpoch,
    MemberSet,
    RegexSet,
    TargetSet,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.groups.consumer.group import ConsumerGroup
    from broker.groups.consumer.types import Context, Topics


class Changes:
    """The events of one input to a group."""

    __slots__ = ("events", "group")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.group.apply(event)
        self.events.append(event)

    def remove_member(self, member_id: str) -> None:
        """In the order that Kafka's records of a member go: 8, 7, 5. Raises no epoch."""
        member = self.group.members[member_id]
        self.add(CurrentSet(member_id, None))
        if member_id in self.group.targets:
            self.add(TargetSet(member_id, None))
        self.add(MemberSet(member_id, None))
        self.forget_regex(member.regex)

    def forget_regex(self, regex: str) -> None:
        """With its last subscriber goes what a pattern stands for."""
        if regex in self.group.regexes and regex not in self.group.regex_members:
            self.add(RegexSet(regex, None))

    def bump(self, context: Context) -> None:
        """The group's epoch is raised: there has to be a new assignment."""
        topics = self.group.subscribed_topics()
        self.add(GroupEpoch((self.group.epoch + 1, metadata_hash(topics, context.topics))))

    def bump_if_topics_differ(self, context: Context) -> None:
        """The same, if the metadata are no longer those of the epoch."""
        found = metadata_hash(self.group.subscribed_topics(), context.topics)
        if found != self.group.metadata_hash:
            self.add(GroupEpoch((self.group.epoch + 1, found)))


def fence(changes: Changes, member_ids: Iterable[str], context: Context) -> None:
    """Members that left, or were not heard of: one epoch for all of them."""
    before = len(changes.events)
    for member_id in member_ids:
        changes.remove_member(member_id)
    if len(changes.events) > before:
        changes.bump(context)


#: Also of a group whose targets were not made for its topics: they differ from any.
NO_TOPICS_HASH = 0


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Of what an assignment depends on: ids and partition counts. A signed 64-bit number, 0 for no
    topics. Topics that do not exist count as none. Kafka's are XXH3-64 of the same and more; a hash
    is only ever compared with one that this server made, so after a change of servers there is one
    assignment more."""
    found = [topic for topic in map(topics.get, names) if topic is not None]
    if not found:
        return NO_TOPICS_HASH
    parts = sorted(b"%s%d" % (topic.id.bytes, topic.partition_count) for topic in found)
    digest = hashlib.blake2b(b"".join(parts), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
