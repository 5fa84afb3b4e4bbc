"""Which member is to have which tasks: Kafka's sticky task assignor of streams groups. Pure.

1. An active task stays where the target had it, as long as the member has room for it.
2. Otherwise it goes to a member that had it as a standby: its state is there.
3. Otherwise to the process with the least load: tasks per member. Within a process it is the member
   with the fewest tasks.

Then standby tasks, of stateful subtopologies only: to who had the task before, active or standby,
as long as there is room; otherwise to the process with the least load that has no part of the task.
With fewer processes than copies there are fewer copies.

A member's room is what is even; who is full is left out of the sum, so that the others get what is
left. It is a generator: it yields what each step cost, in units of about a microsecond, so that a
large group's assignment can be made in slices. The result depends on nothing but the input: ties
go by the names of members and processes.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Mapping
from dataclasses import field

from broker.groups.streams.types import Target, Tasks
from wire.dataclass import dataclass

#: (subtopology id, number)
TaskId = tuple[str, int]
#: By member id.
Targets = dict[str, Target]
Steps = Generator[int, None, Targets]

_TASK_UNITS = 4


@dataclass(slots=True, frozen=True)
class AssignorMember:
    """`target`: what it was to have until now."""

    process_id: str
    target: Target = field(default_factory=Target)


@dataclass(slots=True, frozen=True)
class SubtopologyTasks:
    count: int
    is_stateful: bool


@dataclass(slots=True, frozen=True)
class AssignorInput:
    """Members and subtopologies by their ids; a topology that is not ready has no tasks."""

    members: Mapping[str, AssignorMember]
    subtopologies: Mapping[str, SubtopologyTasks]
    standby_replicas: int = 0

    @property
    def cost(self) -> int:
        """About how many tasks are assigned."""
        copies = 1 + self.standby_replicas
        return len(self.members) + copies * sum(each.count for each in self.subtopologies.values())


class _Process:
    """An instance of the application, and what its members are to have."""

    __slots__ = ("_least", "counts", "held", "process_id")

    def __init__(self, process_id: str) -> None:
        self.process_id = process_id
        #: Tasks of each member.
        self.counts: dict[str, int] = {}
        #: Tasks that it has in any way.
        self.held: set[TaskId] = set()
        #: (tasks, member): with older entries, which no longer count.
        self._least: list[tuple[int, str]] = []

    @property
    def load(self) -> float:
        return len(self.held) / len(self.counts)

    def join(self, member_id: str) -> None:
        self.counts[member_id] = 0
        heapq.heappush(self._least, (0, member_id))

    def least_loaded(self) -> str:
        while True:
            count, member_id = self._least[0]
            if self.counts[member_id] == count:
                return member_id
            heapq.heappop(self._least)

    def take(self, member_id: str, task: TaskId) -> int:
        """The member's tasks with this one."""
        self.held.add(task)
        self.counts[member_id] += 1
        heapq.heappush(self._least, (self.counts[member_id], member_id))
        return self.counts[member_id]


class _Quota:
    """How many tasks a member may keep: what is left, evenly among those who have room."""

    __slots__ = ("_members", "_tasks", "each")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.each = _ceil(tasks, members)

    def count(self, member_tasks: int) -> None:
        """A member has so many now."""
        if member_tasks == self.each:
            self._members -= 1
            self._tasks -= member_tasks
            self.each = _ceil(self._tasks, self._members)


class _Assignment:
    """What is assigned so far."""

    def __init__(self, given: AssignorInput) -> None:
        self.active: dict[str, list[TaskId]] = {member_id: [] for member_id in given.members}
        self.standby: dict[str, list[TaskId]] = {member_id: [] for member_id in given.members}
        self.processes: dict[str, _Process] = {}
        self.process_of: dict[str, _Process] = {}
        self.had_active: dict[TaskId, str] = {}
        self.had_standby: dict[TaskId, list[str]] = {}
        for member_id in sorted(given.members):
            member = given.members[member_id]
            process = self.processes.get(member.process_id)
            if process is None:
                process = self.processes[member.process_id] = _Process(member.process_id)
            process.join(member_id)
            self.process_of[member_id] = process
            for task in _tasks_of(member.target.active):
                self.had_active[task] = member_id
            for part in (member.target.standby, member.target.warmup):
                for task in _tasks_of(part):
                    self.had_standby.setdefault(task, []).append(member_id)
        actives = sum(each.count for each in given.subtopologies.values())
        stateful = sum(each.count for each in given.subtopologies.values() if each.is_stateful)
        self.active_quota = _Quota(actives, len(given.members))
        self.quota = _Quota(actives + stateful * given.standby_replicas, len(given.members))

    def add_active(self, member_id: str, task: TaskId) -> None:
        count = self.process_of[member_id].take(member_id, task)
        self.active[member_id].append(task)
        self.active_quota.count(count)
        self.quota.count(count)

    def add_standby(self, member_id: str, task: TaskId) -> None:
        count = self.process_of[member_id].take(member_id, task)
        self.standby[member_id].append(task)
        self.quota.count(count)

    def has_room(self, member_id: str, quota: _Quota) -> bool:
        return self.process_of[member_id].counts[member_id] < quota.each

    def least_loaded_of(self, task: TaskId) -> str | None:
        """Of the members that had the task as a standby, and whose process does not have it."""
        best, best_load = None, (0.0, 0)
        for member_id in self.had_standby.get(task, ()):
            process = self.process_of[member_id]
            load = (process.load, process.counts[member_id])
            if task not in process.held and (best is None or load < best_load):
                best, best_load = member_id, load
        return best

    def targets(self) -> Targets:
        return {
            member_id: Target(_by_subtopology(tasks), _by_subtopology(self.standby[member_id]))
            for member_id, tasks in self.active.items()
        }


def assign(given: AssignorInput) -> Steps:
    """The targets of all members, which there must be at least one of."""
    assignment = _Assignment(given)
    yield given.cost
    yield from _assign_active(given, assignment)
    if given.standby_replicas:
        yield from _assign_standby(given, assignment)
    return assignment.targets()


def _assign_active(given: AssignorInput, assignment: _Assignment) -> Generator[int, None, None]:
    tasks = [
        (subtopology_id, number)
        for subtopology_id, each in given.subtopologies.items()
        for number in range(each.count)
    ]
    tasks.sort(key=_by_number)
    rest = []
    for task in tasks:
        yield _TASK_UNITS
        had = assignment.had_active.get(task)
        if had is not None and assignment.has_room(had, assignment.active_quota):
            assignment.add_active(had, task)
        else:
            rest.append(task)
    left = []
    for task in rest:
        yield _TASK_UNITS
        had = assignment.least_loaded_of(task)
        if had is not None and assignment.has_room(had, assignment.active_quota):
            assignment.add_active(had, task)
        else:
            left.append(task)
    by_load = [(each.load, each.process_id) for each in assignment.processes.values()]
    heapq.heapify(by_load)
    # In the order of subtopologies, so that at first everybody has some of each.
    for task in sorted(left):
        yield _TASK_UNITS
        process = assignment.processes[by_load[0][1]]
        assignment.add_active(process.least_loaded(), task)
        heapq.heapreplace(by_load, (process.load, process.process_id))


def _assign_standby(given: AssignorInput, assignment: _Assignment) -> Generator[int, None, None]:
    tasks = [
        (subtopology_id, number)
        for subtopology_id, each in given.subtopologies.items()
        if each.is_stateful
        for number in range(each.count)
    ]
    # From the other end than active ones: who has the first of those has the last of these.
    tasks.sort(key=_by_number, reverse=True)
    left: list[tuple[TaskId, int]] = []
    for task in tasks:
        for replica in range(given.standby_replicas):
            yield _TASK_UNITS
            member_id = _former_holder(assignment, task)
            if member_id is None:
                left.append((task, given.standby_replicas - replica))
                break
            assignment.add_standby(member_id, task)
    by_load = [(each.load, each.process_id) for each in assignment.processes.values()]
    heapq.heapify(by_load)
    left.sort(reverse=True)
    for task, replicas in left:
        for _ in range(replicas):
            passed: list[tuple[float, str]] = []
            while by_load and task in assignment.processes[by_load[0][1]].held:
                passed.append(heapq.heappop(by_load))
            yield _TASK_UNITS * (1 + len(passed))
            is_placed = bool(by_load)
            if is_placed:
                process = assignment.processes[by_load[0][1]]
                assignment.add_standby(process.least_loaded(), task)
                heapq.heapreplace(by_load, (process.load, process.process_id))
            for entry in passed:
                heapq.heappush(by_load, entry)
            if not is_placed:
                break


def _former_holder(assignment: _Assignment, task: TaskId) -> str | None:
    """A member that has the task's state, and room for it."""
    active = assignment.had_active.get(task)
    if (
        active is not None
        and task not in assignment.process_of[active].held
        and assignment.has_room(active, assignment.quota)
    ):
        return active
    standby = assignment.least_loaded_of(task)
    if standby is not None and assignment.has_room(standby, assignment.quota):
        return standby
    return None


def _tasks_of(tasks: Tasks) -> Generator[TaskId, None, None]:
    for subtopology_id, numbers in tasks.items():
        for number in numbers:
            yield subtopology_id, number


def _by_subtopology(tasks: list[TaskId]) -> Tasks:
    found: dict[str, set[int]] = {}
    for subtopology_id, number in tasks:
        found.setdefault(subtopology_id, set()).add(number)
    return {each: frozenset(found[each]) for each in sorted(found)}


def _by_number(task: TaskId) -> tuple[int, str]:
    return task[1], task[0]


def _ceil(tasks: int, members: int) -> int:
    return -(-tasks // members) if members > 0 else 0
