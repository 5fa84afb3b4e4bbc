"""What a consumer group is: the state that its events come to, and what is derived from it.

Pure. Everything here is a function of the events in their order, so a load of the log comes to the
state that the server had. Events come from a log that was compacted at any point, in any order that
this allows: any may be the first, tombstones may be of what was never seen, and a partition may be
given to a member before the one that had it gave it back. So nothing is asserted of them.

Owner: the group's shell (live.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

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
    ConsumerState,
    Current,
    Member,
    MemberState,
    ResolvedRegex,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from broker.groups.consumer.assignors.input import Target

V = TypeVar("V")

NOTHING_ASSIGNED = Current()


class ConsumerGroup:
    """Plain reads are fine at any time; only `apply` changes it."""

    __slots__ = (
        "_state",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "assignor_votes",
        "classic_count",
        "current",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "owners",
        "regex_members",
        "regexes",
        "static_ids",
        "targets",
        "topic_members",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: 0: there is no such group yet.
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        #: 0: the targets were not made by an assignor.
        self.assignment_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.current: dict[str, Current] = {}
        self.targets: dict[str, Target] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        # Derived:
        self.static_ids: dict[str, str] = {}
        #: Topic id -> partition -> the member that has it, or is still to give it back.
        self.owners: dict[UUID, dict[int, str]] = {}
        #: How many members name a topic, a pattern, an assignor.
        self.topic_members: dict[str, int] = {}
        self.regex_members: dict[str, int] = {}
        self.assignor_votes: dict[str, int] = {}
        self.classic_count = 0
        self._state: ConsumerState | None = None

    def copy(self) -> ConsumerGroup:
        other = ConsumerGroup(self.group_id)
        other.epoch, other.metadata_hash = self.epoch, self.metadata_hash
        other.assignment_epoch = self.assignment_epoch
        other.assignment_timestamp_ms = self.assignment_timestamp_ms
        other.members, other.current = dict(self.members), dict(self.current)
        other.targets, other.regexes = dict(self.targets), dict(self.regexes)
        other.static_ids = dict(self.static_ids)
        other.owners = {topic: dict(owners) for topic, owners in self.owners.items()}
        other.topic_members = dict(self.topic_members)
        other.regex_members = dict(self.regex_members)
        other.assignor_votes = dict(self.assignor_votes)
        other.classic_count = self.classic_count
        return other

    # --- what follows from it

    @property
    def state(self) -> ConsumerState:
        if self._state is None:
            self._state = self._derived_state()
        return self._state

    def _derived_state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        for member_id in self.members:
            current = self.current.get(member_id, NOTHING_ASSIGNED)
            if current.state is not MemberState.STABLE or current.epoch not in (
                self.assignment_epoch,
                -2,
            ):
                return ConsumerState.RECONCILING
        return ConsumerState.STABLE

    @property
    def is_all_classic(self) -> bool:
        """Members are left, and none of them speaks the consumer protocol."""
        return 0 < self.classic_count == len(self.members)

    def topics_of(self, member: Member) -> frozenset[str]:
        """Names of all that a member is subscribed to; a pattern that nobody has resolved yet
        stands for nothing."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        if resolved is None:
            return frozenset(member.topics)
        return resolved.topics.union(member.topics) if member.topics else resolved.topics

    def subscribed_topics(self) -> set[str]:
        topics = set(self.topic_members)
        for regex in self.regex_members:
            resolved = self.regexes.get(regex)
            if resolved is not None:
                topics |= resolved.topics
        return topics

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_members or any(
            topic in self.regexes[regex].topics
            for regex in self.regex_members
            if regex in self.regexes
        )

    def is_held_by_other(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        owner = self.owners.get(topic_id, {}).get(partition)
        return owner is not None and owner != member_id

    def assignor(self, offered: tuple[str, ...]) -> str:
        """The one that most members ask for, of those that are offered; without any, or of a tie,
        the first."""
        return max(offered, key=lambda name: self.assignor_votes.get(name, 0))

    # --- events

    def apply(self, event: Event) -> None:
        self._state = None
        match event:
            case CurrentSet():
                self._set_current(event.member_id, event.value)
            case TargetSet():
                _put(self.targets, event.member_id, event.value)
            case MemberSet():
                self._set_member(event.member_id, event.value)
            case GroupEpoch():
                self.epoch, self.metadata_hash = event.value or (0, 0)
            case TargetEpoch():
                self.assignment_epoch, self.assignment_timestamp_ms = event.value or (0, 0)
            case RegexSet():
                _put(self.regexes, event.regex, event.value)

    def _set_member(self, member_id: str, member: Member | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._count(before, -1)
            # Another may have become the instance since.
            instance_id = before.instance_id
            if instance_id is not None and self.static_ids.get(instance_id) == member_id:
                del self.static_ids[instance_id]
        _put(self.members, member_id, member)
        if member is not None:
            self._count(member, 1)
            if member.instance_id is not None:
                self.static_ids[member.instance_id] = member_id

    def _count(self, member: Member, step: int) -> None:
        for topic in member.topics:
            _add(self.topic_members, topic, step)
        if member.regex:
            _add(self.regex_members, member.regex, step)
        if member.server_assignor is not None:
            _add(self.assignor_votes, member.server_assignor, step)
        if member.classic is not None:
            self.classic_count += step

    def _set_current(self, member_id: str, current: Current | None) -> None:
        before = self.current.get(member_id)
        if before is not None:
            for topic_id, partition in _partitions(before):
                owners = self.owners.get(topic_id)
                # Another may have it by now: see above.
                if owners is not None and owners.get(partition) == member_id:
                    del owners[partition]
                    if not owners:
                        del self.owners[topic_id]
        _put(self.current, member_id, current)
        if current is not None:
            for topic_id, partition in _partitions(current):
                self.owners.setdefault(topic_id, {})[partition] = member_id


def _partitions(current: Current) -> Iterator[tuple[UUID, int]]:
    parts: tuple[Assigned, Assigned] = (current.assigned, current.pending)
    for part in parts:
        for topic_id, partitions in part.items():
            for partition in partitions:
                yield topic_id, partition


def _put(table: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _add(counts: dict[str, int], name: str, step: int) -> None:
    left = counts.get(name, 0) + step
    if left:
        counts[name] = left
    else:
        del counts[name]
