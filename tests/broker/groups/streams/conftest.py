"""One streams group's core, driven as a coordinator drives it, with topics and time of the test's.

Every answer is compared with what must always hold, and the records of all that happened, loaded
anew, must come to the same group.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest

from broker.groups.streams import streams_core
from broker.groups.streams.changes import Changes, fence
from broker.groups.streams.events import ClassicGone
from broker.groups.streams.group import StreamsGroup, active_tasks, copied_tasks
from broker.groups.streams.records import event_record, parse_event
from broker.groups.streams.types import (
    Context,
    GroupError,
    HeartbeatInput,
    InternalTopic,
    MemberState,
    StreamsTimes,
    Subtopology,
    Target,
    Topology,
)
from wire.kafka.records.coordinator import decode_group_key


@dataclass(frozen=True)
class Topic:
    id: uuid.UUID
    name: str
    partition_count: int


class TopicTable:
    def __init__(self):
        self.by_name = {}
        self.count = 0

    def add(self, name, partition_count):
        self.count += 1
        known = self.by_name.get(name)
        topic_id = known.id if known else uuid.UUID(int=self.count)
        self.by_name[name] = Topic(topic_id, name, partition_count)
        return self.by_name[name]

    def remove(self, name):
        del self.by_name[name]

    def get(self, name):
        return self.by_name.get(name)

    def get_by_id(self, topic_id):
        return next((t for t in self.by_name.values() if t.id == topic_id), None)


#: A stateful subtopology that reads a topic, and a stateless one that reads another.
TOPOLOGY = Topology(
    0,
    (
        Subtopology("0", ("in",), changelog_topics=(InternalTopic("g-store-changelog"),)),
        Subtopology("1", ("side",)),
    ),
)
NO_TASKS = Target()


def replayed(log):
    """What the records of a group come to."""
    group = StreamsGroup("g")
    for key, value in log:
        group.apply(parse_event(decode_group_key(key), value))
    return group


def state_of(group):
    return (
        group.metadata, group.topology, group.assignment_epoch, group.assignment_timestamp_ms,
        group.members, group.current, group.targets, group.owners, group.copies, group.processes,
        group.state,
    )  # fmt: skip


class Driver:
    def __init__(self, *, interval_ms=0, standbys=0, members_max=100, topology=TOPOLOGY):
        self.topics = TopicTable()
        self.group = StreamsGroup("g")
        self.topology = topology
        self.now_ms = 1_000_000
        self.interval_ms, self.standbys = interval_ms, standbys
        self.members_max = members_max
        self.is_delayed = False
        self.log = []
        self.epochs = {}  # member id -> the epoch it was told last
        self.lost = set()  # member ids whose last answer was
        self.owned = {}  # member id -> Target, as a real client has it

    def context(self):
        times = StreamsTimes(
            assignment_interval_ms=self.interval_ms, num_standby_replicas=self.standbys
        )
        return Context(self.topics, times, self.now_ms, self.members_max, self.is_delayed)

    # --- inputs

    def beat(self, member_id, epoch=None, **given):
        """A heartbeat as it is; the answer, or a GroupError."""
        if epoch is None:
            epoch = self.epochs.get(member_id, 0)
        before = {each: current.epoch for each, current in self.group.current.items()}
        request = HeartbeatInput(member_id, epoch, "c", "/h", **given)
        if epoch == -1:
            changes, result = streams_core.leave(self.group, request)
        else:
            changes, result, _ = streams_core.heartbeat(self.group, request, self.context(), None)
        self.take(changes, before)
        if epoch >= 0:
            self.epochs[member_id] = result.epoch
            if result.tasks is not None:
                self.owned[member_id] = told(result.tasks)
        return result

    def join(self, member_id, process_id=None, **given):
        given.setdefault("rebalance_timeout_ms", 30_000)
        given.setdefault("topology", self.topology)
        self.owned.pop(member_id, None)
        self.lost.discard(member_id)
        return self.beat(
            member_id, 0, owned=NO_TASKS, process_id=process_id or f"p-{member_id}", **given
        )

    def ack(self, member_id):
        """A heartbeat that tells what the client has, which is what it was told last."""
        self.lost.discard(member_id)
        return self.beat(member_id, owned=self.owned.get(member_id, NO_TASKS))

    def leave(self, member_id):
        self.epochs.pop(member_id, None)
        self.owned.pop(member_id, None)
        self.lost.discard(member_id)
        return self.beat(member_id, -1)

    def fence(self, *member_ids):
        changes = Changes(self.group)
        fence(changes, member_ids)
        self.take(changes, {})

    def settle(self, *member_ids):
        """Everybody acknowledges until nothing changes any more."""
        for _ in range(20):
            size = len(self.log)
            for member_id in member_ids or sorted(self.epochs):
                self.ack(member_id)
            if len(self.log) == size:
                return
        raise AssertionError("does not come to rest")

    # --- what always holds

    def take(self, changes, before):
        assert ClassicGone() not in changes.events
        self.log += [event_record("g", event) for event in changes.events]
        group = self.group
        owners = {}
        on_process = {}
        for member_id, current in group.current.items():
            process_id = group.members[member_id].process_id
            for held in (current.assigned, current.pending):
                for task in active_tasks(held):
                    assert task not in owners, f"{task} of {owners[task]} and {member_id}"
                    owners[task] = member_id
                for task in (*active_tasks(held), *copied_tasks(held)):
                    holder = on_process.setdefault((process_id, task), member_id)
                    assert holder == member_id, f"{task} twice on {process_id}"
            assert current.epoch <= group.assignment_epoch
            assert current.epoch >= before.get(member_id, -1), "epochs never go back"
        assert group.epoch >= group.assignment_epoch
        assert group.members.keys() == group.current.keys()
        assert group.targets.keys() <= group.members.keys()
        assert group.owners == owners
        assert state_of(replayed(self.log)) == state_of(group)

    def active(self, member_id):
        """Of a member, as the server has it."""
        return set(active_tasks(self.group.current[member_id].assigned))

    def standby(self, member_id):
        return set(copied_tasks(self.group.current[member_id].assigned))

    def state(self, member_id):
        return self.group.current[member_id].state

    def is_stable(self):
        return all(c.state is MemberState.STABLE for c in self.group.current.values())


def told(held):
    return Target(
        {each: frozenset(numbers) for each, numbers in held.active.items()},
        held.standby,
        held.warmup,
    )


@pytest.fixture
def make_driver():
    def make(**given):
        made = Driver(**given)
        made.topics.add("in", 4)
        made.topics.add("side", 2)
        made.topics.add("g-store-changelog", 4)
        return made

    return make


@pytest.fixture
def driver(make_driver):
    return make_driver()


@pytest.fixture
def group_error():
    return GroupError


@pytest.fixture
def replay():
    return replayed


@pytest.fixture
def comparable():
    return state_of
