"""One consumer group's core, driven as a coordinator drives it, with topics and time of the test's.

Every answer is compared with what must always hold, and the records of all that happened, loaded
anew, must come to the same group.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest

from broker.groups.consumer import consumer_core, regex_core
from broker.groups.consumer.changes import Changes, fence
from broker.groups.consumer.events import ClassicSet
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.consumer.records import event_record, parse_event
from broker.groups.consumer.types import (
    Context,
    GroupError,
    GroupTimes,
    HeartbeatInput,
    MemberState,
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


def replayed(log):
    """What the records of a group come to."""
    group = ConsumerGroup("g")
    for key, value in log:
        group.apply(parse_event(decode_group_key(key), value))
    return group


def state_of(group):
    return (
        group.epoch, group.metadata_hash, group.assignment_epoch, group.assignment_timestamp_ms,
        group.members, group.current, group.targets, group.regexes, group.static_ids,
        group.owners, group.topic_members, group.regex_members, group.assignor_votes,
        group.classic_count, group.state,
    )  # fmt: skip


class Driver:
    def __init__(self, *, interval_ms=0, assignors=("uniform", "range"), members_max=100):
        self.topics = TopicTable()
        self.group = ConsumerGroup("g")
        self.now_ms = 1_000_000
        self.times = GroupTimes(assignment_interval_ms=interval_ms)
        self.assignors = assignors
        self.members_max = members_max
        self.log = []
        self.epochs = {}  # member id -> the epoch it was told last
        self.lost = set()  # member ids whose last answer was
        self.owned = {}  # member id -> {topic id: set of partitions}, as a real client has it

    def context(self, *, topics_changed=True):
        return Context(
            self.topics,
            self.times,
            self.now_ms,
            self.assignors,
            self.members_max,
            topics_changed,
            lambda pattern: "it is bad" if pattern == "[" else None,
        )

    # --- inputs

    def beat(self, member_id, epoch=None, **given):
        """A heartbeat as it is; the answer, or a GroupError."""
        given.setdefault("client_id", "c")
        given.setdefault("client_host", "/h")
        if epoch is None:
            epoch = self.epochs.get(member_id, 0)
        if given.get("topics") is not None:
            given["topics"] = tuple(sorted(set(given["topics"])))
        before = {each: current.epoch for each, current in self.group.current.items()}
        changes, result = consumer_core.heartbeat(
            self.group, HeartbeatInput(member_id, epoch, **given), self.context()
        )
        self.take(changes, before)
        if epoch >= 0:
            self.epochs[member_id] = result.epoch
            if result.assignment is not None:
                self.owned[member_id] = {t: set(p) for t, p in result.assignment.items()}
        return result

    def join(self, member_id, *topics, **given):
        given.setdefault("rebalance_timeout_ms", 30_000)
        given.setdefault("owned", {})
        self.owned.pop(member_id, None)
        return self.beat(member_id, 0, topics=topics, **given)

    def ack(self, member_id):
        """A heartbeat that tells what the client has, which is what it was told last."""
        owned = {t: set(p) for t, p in self.owned.get(member_id, {}).items()}
        if member_id not in self.lost:
            return self.beat(member_id, owned=owned)
        # Without an answer a client says everything anew, and is told everything.
        self.lost.discard(member_id)
        member = self.group.members.get(member_id)
        topics, regex = ((), "") if member is None else (member.topics, member.regex)
        return self.beat(
            member_id, owned=owned, rebalance_timeout_ms=30_000, topics=topics, regex=regex
        )

    def leave(self, member_id, epoch=-1, **given):
        self.epochs.pop(member_id, None)
        self.owned.pop(member_id, None)
        return self.beat(member_id, epoch, **given)

    def fence(self, *member_ids):
        changes = Changes(self.group)
        fence(changes, member_ids, self.context())
        self.take(changes, {})

    def resolve(self, **found):
        changes = regex_core.resolved(
            self.group,
            {regex: frozenset(topics) for regex, topics in found.items()},
            self.topics.count,
            self.context(),
        )
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
        assert not any(isinstance(event, ClassicSet) for event in changes.events)
        self.log += [event_record("g", event) for event in changes.events]
        group = self.group
        owners = {}
        for member_id, current in group.current.items():
            for part in (current.assigned, current.pending):
                for topic_id, partitions in part.items():
                    for partition in partitions:
                        key = (topic_id, partition)
                        assert key not in owners, f"{key} of {owners[key]} and {member_id}"
                        owners[key] = member_id
            assert current.epoch <= group.assignment_epoch
            earlier = before.get(member_id, -1)
            assert current.epoch >= earlier or current.epoch == -2, "epochs never go back"
        assert group.epoch >= group.assignment_epoch
        assert group.members.keys() == group.current.keys()
        assert group.targets.keys() <= group.members.keys()
        assert {(t, p): m for t, ps in group.owners.items() for p, m in ps.items()} == owners
        assert state_of(replayed(self.log)) == state_of(group)

    def partitions(self, member_id):
        """Of a member, as the server has it: {(topic name, partition)}."""
        names = {topic.id: topic.name for topic in self.topics.by_name.values()}
        current = self.group.current[member_id]
        return {
            (names.get(topic_id, topic_id), partition)
            for topic_id, partitions in current.assigned.items()
            for partition in partitions
        }

    def state(self, member_id):
        return self.group.current[member_id].state

    def is_stable(self):
        return all(c.state is MemberState.STABLE for c in self.group.current.values())


@pytest.fixture
def driver():
    made = Driver()
    made.topics.add("t", 4)
    return made


@pytest.fixture
def make_driver():
    return Driver


@pytest.fixture
def group_error():
    return GroupError


@pytest.fixture
def replay():
    return replayed


@pytest.fixture
def comparable():
    return state_of
