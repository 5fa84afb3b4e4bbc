"""What a streams group is: the state that its events come to, and what is derived from it.

Pure. Everything here is a function of the events in their order, so a load of the log comes to the
state that the server had. Events come from a log that was compacted at any point, in any order that
this allows: any may be the first, tombstones may be of what was never seen, and a task may be given
to a member before the one that had it gave it back. So nothing is asserted of them.

Owner: the group's shell (live.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from broker.groups.streams.events import (
    CurrentSet,
    Event,
    GroupSet,
    MemberSet,
    TargetEpoch,
    TargetSet,
    TopologySet,
)
from broker.groups.streams.types import (
    Current,
    GroupMetadata,
    Held,
    Member,
    MemberState,
    StreamsState,
    Target,
    Topology,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

V = TypeVar("V")
#: (subtopology id, number)
TaskId = tuple[str, int]

NOTHING_HELD = Current()
NO_GROUP = GroupMetadata(0)
NO_TARGET = Target()


class StreamsGroup:
    """Plain reads are fine at any time; only `apply` changes it."""

    __slots__ = (
        "_state",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "copies",
        "current",
        "group_id",
        "members",
        "metadata",
        "owners",
        "processes",
        "readers",
        "targets",
        "topology",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: Of epoch 0: there is no such group yet.
        self.metadata = NO_GROUP
        self.topology: Topology | None = None
        self.assignment_epoch = 0
        #: 0: the targets were not made by an assignor.
        self.assignment_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.current: dict[str, Current] = {}
        self.targets: dict[str, Target] = {}
        # Derived:
        #: The member that has a task as an active one, or is still to give it back.
        self.owners: dict[TaskId, str] = {}
        #: The members that have a task otherwise, or are still to give it back.
        self.copies: dict[TaskId, frozenset[str]] = {}
        #: How many members a process has.
        self.processes: dict[str, int] = {}
        #: Topic -> the subtopology that reads it; a topology has one for each.
        self.readers: Mapping[str, str] = {}
        self._state: StreamsState | None = None

    def copy(self) -> StreamsGroup:
        other = StreamsGroup(self.group_id)
        other.metadata, other.topology = self.metadata, self.topology
        other.readers = self.readers
        other.assignment_epoch = self.assignment_epoch
        other.assignment_timestamp_ms = self.assignment_timestamp_ms
        other.members, other.current = dict(self.members), dict(self.current)
        other.targets = dict(self.targets)
        other.owners, other.copies = dict(self.owners), dict(self.copies)
        other.processes = dict(self.processes)
        return other

    # --- what follows from it

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def state(self) -> StreamsState:
        if self._state is None:
            self._state = self._derived_state()
        return self._state

    def _derived_state(self) -> StreamsState:
        if not self.members:
            return StreamsState.EMPTY
        if self.topology is None or self.metadata.validated_topology_epoch != self.topology.epoch:
            return StreamsState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsState.ASSIGNING
        for member_id in self.members:
            current = self.current.get(member_id, NOTHING_HELD)
            if current.state is not MemberState.STABLE or current.epoch != self.assignment_epoch:
                return StreamsState.RECONCILING
        return StreamsState.STABLE

    def is_subscribed_to(self, topic: str) -> bool:
        """Of a group without members Kafka counts no topic: its offsets expire."""
        return bool(self.members) and topic in self.readers

    def process_of(self, member_id: str) -> str:
        """A member that is gone, or of which no record was left, is a process of its own."""
        member = self.members.get(member_id)
        return member_id if member is None else member.process_id

    def free_active(
        self, member_id: str, subtopology_id: str, numbers: Collection[int]
    ) -> list[int]:
        """Of these tasks, ascending, those that no other member computes, or has not said yet that
        it no longer does, and that no other one of the same process has a copy of."""
        owners, copies = self.owners, self.copies
        free = []
        for number in sorted(numbers):
            task = subtopology_id, number
            if owners.get(task, member_id) == member_id and (
                task not in copies or not self._is_copied_beside(member_id, task)
            ):
                free.append(number)
        return free

    def free_copies(
        self, member_id: str, subtopology_id: str, numbers: Collection[int]
    ) -> list[int]:
        """Of these tasks, ascending, those that no other member of the same process has, whatever
        they are there."""
        process_id = self.process_of(member_id)
        free = []
        for number in sorted(numbers):
            task = subtopology_id, number
            owner = self.owners.get(task, member_id)
            if owner != member_id and self.process_of(owner) == process_id:
                continue
            if task not in self.copies or not self._is_copied_beside(member_id, task):
                free.append(number)
        return free

    def _is_copied_beside(self, member_id: str, task: TaskId) -> bool:
        process_id = self.process_of(member_id)
        return any(
            each != member_id and self.process_of(each) == process_id
            for each in self.copies.get(task, ())
        )

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
            case GroupSet():
                self.metadata = event.value or NO_GROUP
            case TargetEpoch():
                self.assignment_epoch, self.assignment_timestamp_ms = event.value or (0, 0)
            case TopologySet():
                self.topology = event.value
                self.readers = _readers(event.value)

    def _set_member(self, member_id: str, member: Member | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            left = self.processes[before.process_id] - 1
            if left:
                self.processes[before.process_id] = left
            else:
                del self.processes[before.process_id]
        _put(self.members, member_id, member)
        if member is not None:
            self.processes[member.process_id] = self.processes.get(member.process_id, 0) + 1

    def _set_current(self, member_id: str, current: Current | None) -> None:
        before = self.current.get(member_id)
        if before is not None:
            for held in (before.assigned, before.pending):
                self._release(member_id, held)
        _put(self.current, member_id, current)
        if current is not None:
            for held in (current.assigned, current.pending):
                for task in active_tasks(held):
                    self.owners[task] = member_id
                for task in copied_tasks(held):
                    self.copies[task] = self.copies.get(task, frozenset()) | {member_id}

    def _release(self, member_id: str, held: Held) -> None:
        for task in active_tasks(held):
            # Another may have it by now: see above.
            if self.owners.get(task) == member_id:
                del self.owners[task]
        for task in copied_tasks(held):
            left = self.copies.get(task, frozenset()) - {member_id}
            if left:
                self.copies[task] = left
            else:
                self.copies.pop(task, None)


def active_tasks(held: Held) -> Iterator[TaskId]:
    for subtopology_id, numbers in held.active.items():
        for number in numbers:
            yield subtopology_id, number


def copied_tasks(held: Held) -> Iterator[TaskId]:
    for part in (held.standby, held.warmup):
        for subtopology_id, numbers in part.items():
            for number in numbers:
                yield subtopology_id, number


def _readers(topology: Topology | None) -> dict[str, str]:
    if topology is None:
        return {}
    return {
        name: each.subtopology_id for each in topology.subtopologies for name in each.read_topics()
    }


def _put(table: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
