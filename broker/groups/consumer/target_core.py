"""When a group gets a new target assignment, and what that is made of. Pure.

At most one in `consumer.assignment.interval.ms` (KIP-1263): members that join together share one.
A small group's is made within the request that finds it due; a large one's in slices, from a copy
of all that it depends on, and counts only if the group's epoch is still the same at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.assignors.input import AssignorInput, AssignorMember
from broker.groups.consumer.assignors.table import ASSIGNORS
from broker.groups.consumer.events import Event, TargetEpoch, TargetSet

if TYPE_CHECKING:
    from uuid import UUID

    from broker.groups.consumer.assignors.input import Targets
    from broker.groups.consumer.group import ConsumerGroup
    from broker.groups.consumer.types import Context, Topics

#: Members and partitions of a group whose assignment is made at once: together 1 to 2 ms.
INLINE_MEMBERS_MAX = 100
INLINE_PARTITIONS_MAX = 1000


def target_due_at_ms(group: ConsumerGroup, interval_ms: int) -> int | None:
    """Wall-clock time from which there may be a new target; None: there is to be none."""
    if group.epoch <= group.assignment_epoch or not group.members:
        return None
    if not group.assignment_timestamp_ms or not interval_ms:
        return 0
    return group.assignment_timestamp_ms + interval_ms


def is_target_due(group: ConsumerGroup, context: Context) -> bool:
    interval_ms = context.times.assignment_interval_ms
    due_at_ms = target_due_at_ms(group, interval_ms)
    if due_at_ms is None:
        return False
    # A clock that was set back must not stop assignments for longer than an interval.
    return context.now_ms >= due_at_ms or context.now_ms < group.assignment_timestamp_ms


def takes_long(group: ConsumerGroup, topics: Topics) -> bool:
    if len(group.members) > INLINE_MEMBERS_MAX:
        return True
    left = INLINE_PARTITIONS_MAX
    for name in group.subscribed_topics():
        topic = topics.get(name)
        left -= 1 if topic is None else 1 + topic.partition_count
        if left < 0:
            return True
    return False


def assignor_input(group: ConsumerGroup, topics: Topics) -> AssignorInput:
    """All that the assignment depends on, as it is now."""
    ids: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
    counts: dict[UUID, int] = {}
    members = {}
    for member_id, member in group.members.items():
        subscription = (member.topics, member.regex)
        topic_ids = ids.get(subscription)
        if topic_ids is None:
            found = [t for t in map(topics.get, group.topics_of(member)) if t is not None]
            counts.update((topic.id, topic.partition_count) for topic in found)
            ids[subscription] = topic_ids = frozenset(topic.id for topic in found)
        target = group.targets.get(member_id, {})
        members[member_id] = AssignorMember(topic_ids, target, member.instance_id)
    return AssignorInput(members, counts)


def target_events(group: ConsumerGroup, targets: Targets, epoch: int, now_ms: int) -> list[Event]:
    """One event for each member whose target is another, and one for the epoch."""
    events: list[Event] = []
    for member_id in sorted(targets):
        before = group.targets.get(member_id)
        after = targets[member_id]
        if before is None or (before is not after and before != after):
            events.append(TargetSet(member_id, after))
    events.append(TargetEpoch((epoch, now_ms)))
    return events


def make_target(group: ConsumerGroup, context: Context) -> list[Event]:
    """The same, computed at once."""
    steps = ASSIGNORS[group.assignor(context.assignors)](assignor_input(group, context.topics))
    try:
        while True:
            next(steps)
    except StopIteration as end:
        targets: Targets = end.value
    return target_events(group, targets, group.epoch, context.now_ms)
