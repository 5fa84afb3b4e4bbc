"""Events as they are made: each is in force in the group at once, and kept for the log. Pure.

Also what several inputs have in common: members that are removed, an epoch that is raised, and a
new target.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.groups.streams.events import (
    CurrentSet,
    Event,
    GroupSet,
    MemberSet,
    TargetEpoch,
    TargetSet,
)
from broker.groups.streams.group import NO_TARGET
from broker.groups.streams.task_assignor_core import (
    AssignorInput,
    AssignorMember,
    SubtopologyTasks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.groups.streams.group import StreamsGroup
    from broker.groups.streams.task_assignor_core import Targets
    from broker.groups.streams.topology_core import Configured
    from broker.groups.streams.types import GroupMetadata, StreamsTimes


class Changes:
    """The events of one input to a group."""

    __slots__ = ("events", "group")

    def __init__(self, group: StreamsGroup) -> None:
        self.group = group
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.group.apply(event)
        self.events.append(event)

    def remove_member(self, member_id: str) -> None:
        """In the order that Kafka's records of a member go: 22, 21, 19. Raises no epoch."""
        self.add(CurrentSet(member_id, None))
        if member_id in self.group.targets:
            self.add(TargetSet(member_id, None))
        self.add(MemberSet(member_id, None))

    def bump(self, metadata: GroupMetadata) -> None:
        """The group's epoch is raised: there has to be a new assignment."""
        self.add(GroupSet(replace(metadata, epoch=self.group.epoch + 1)))


def fence(changes: Changes, member_ids: Iterable[str]) -> None:
    """Members that left, or were not heard of: one epoch for all of them."""
    before = len(changes.events)
    for member_id in member_ids:
        changes.remove_member(member_id)
    if len(changes.events) > before:
        changes.bump(changes.group.metadata)


# --- targets: at most one in `streams.assignment.interval.ms` (KIP-1263)


def target_due_at_ms(group: StreamsGroup, interval_ms: int) -> int | None:
    """Wall-clock time from which there may be a new target; None: there is to be none."""
    if group.epoch <= group.assignment_epoch or not group.members:
        return None
    if not group.assignment_timestamp_ms or not interval_ms:
        return 0
    return group.assignment_timestamp_ms + interval_ms


def is_target_due(group: StreamsGroup, times: StreamsTimes, now_ms: int) -> bool:
    due_at_ms = target_due_at_ms(group, times.assignment_interval_ms)
    if due_at_ms is None:
        return False
    # A clock that was set back must not stop assignments for longer than an interval.
    return now_ms >= due_at_ms or now_ms < group.assignment_timestamp_ms


def assignor_input(
    group: StreamsGroup, configured: Configured, times: StreamsTimes
) -> AssignorInput:
    """All that the assignment depends on, as it is now. While topics are missing nobody has
    anything to do."""
    members = {
        member_id: AssignorMember(member.process_id, group.targets.get(member_id, NO_TARGET))
        for member_id, member in group.members.items()
    }
    subtopologies = {}
    if configured.is_ready:
        subtopologies = {
            each: SubtopologyTasks(known.task_count, known.subtopology.is_stateful)
            for each, known in configured.subtopologies.items()
        }
    return AssignorInput(members, subtopologies, times.num_standby_replicas)


def target_events(group: StreamsGroup, targets: Targets, epoch: int, now_ms: int) -> list[Event]:
    """One event for each member whose target is another, and one for the epoch."""
    events: list[Event] = []
    for member_id in sorted(targets):
        if targets[member_id] != group.targets.get(member_id):
            events.append(TargetSet(member_id, targets[member_id]))
    events.append(TargetEpoch((epoch, now_ms)))
    return events
