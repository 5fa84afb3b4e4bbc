"""When a share group gets a new target assignment, and what that is made of. Pure.

At most one in `share.assignment.interval.ms` (KIP-1263): members that join together share one. Only
partitions whose state the share coordinator has begun are assigned. A small group's assignment is
made within the request that finds it due; a large one's in slices, from a copy of all that it
depends on, and counts only if the group's epoch is still the same at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.share.events import Event, TargetEpoch, TargetSet
from broker.groups.share.simple_core import AssignorInput, AssignorMember, assign_simple

if TYPE_CHECKING:
    from uuid import UUID

    from broker.groups.consumer.types import Topics
    from broker.groups.share.group import ShareGroup
    from broker.groups.share.simple_core import Targets
    from broker.groups.share.types import Context

#: Members and partitions of a group whose assignment is made at once: together 1 to 2 ms.
INLINE_MEMBERS_MAX = 100
INLINE_PARTITIONS_MAX = 500


def target_due_at_ms(group: ShareGroup, interval_ms: int) -> int | None:
    """Wall-clock time from which there may be a new target; None: there is to be none."""
    if group.epoch <= group.assignment_epoch or not group.members:
        return None
    if not group.assignment_timestamp_ms or not interval_ms:
        return 0
    return group.assignment_timestamp_ms + interval_ms


def is_target_due(group: ShareGroup, context: Context) -> bool:
    due_at_ms = target_due_at_ms(group, context.times.assignment_interval_ms)
    if due_at_ms is None:
        return False
    # A clock that was set back must not stop assignments for longer than an interval.
    return context.now_ms >= due_at_ms or context.now_ms < group.assignment_timestamp_ms


def takes_long(group: ShareGroup) -> bool:
    left = INLINE_PARTITIONS_MAX
    if len(group.members) > INLINE_MEMBERS_MAX or len(group.topic_members) > left:
        return True
    for each in group.partitions.initialized.values():
        left -= 1 + len(each.partitions)
        if left < 0:
            return True
    return False


def assignor_input(group: ShareGroup, topics: Topics) -> AssignorInput:
    """All that the assignment depends on, as it is now."""
    ids: dict[tuple[str, ...], frozenset[UUID]] = {}
    partitions: dict[UUID, frozenset[int]] = {}
    members = {}
    for member_id, member in group.members.items():
        topic_ids = ids.get(member.topics)
        if topic_ids is None:
            found = [topic.id for topic in map(topics.get, member.topics) if topic is not None]
            ids[member.topics] = topic_ids = frozenset(found)
            for topic_id in found:
                known = group.partitions.initialized.get(topic_id)
                partitions[topic_id] = frozenset() if known is None else known.partitions
        members[member_id] = AssignorMember(topic_ids, group.targets.get(member_id, {}))
    return AssignorInput(members, partitions)


def target_events(group: ShareGroup, targets: Targets, epoch: int, now_ms: int) -> list[Event]:
    """One event for each member whose target is another, and one for the epoch."""
    events: list[Event] = []
    for member_id in sorted(targets):
        before = group.targets.get(member_id)
        after = targets[member_id]
        if before is None or before != after:
            events.append(TargetSet(member_id, after))
    events.append(TargetEpoch((epoch, now_ms)))
    return events


def make_target(group: ShareGroup, context: Context) -> list[Event]:
    """The same, computed at once."""
    steps = assign_simple(assignor_input(group, context.topics))
    try:
        while True:
            next(steps)
    except StopIteration as end:
        targets: Targets = end.value
    return target_events(group, targets, group.epoch, context.now_ms)
