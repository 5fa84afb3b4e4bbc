"""Share groups: a core with topics and time of the test's, and a share coordinator in memory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest
import trio

from broker.groups.consumer.types import GroupError
from broker.groups.share import share_group_core, state_core
from broker.groups.share.changes import Changes, fence
from broker.groups.share.group import ShareGroup
from broker.groups.share.ports import ShareNeighbours
from broker.groups.share.records import event_record, parse_event
from broker.groups.share.types import Context, HeartbeatInput, ShareTimes
from broker.share.ports import ShareState
from wire.kafka.errors import ErrorCode
from wire.kafka.records.coordinator import decode_group_key


class MemoryPersister:
    """What the share coordinators keep, by the rules of epochs. `fail`: what every call is answered
    from now on. `hold()`: until `let_go()` no call is heard. `lose_answer`: the next call is heard,
    and answered as if nobody had been there."""

    def __init__(self):
        self.states = {}  # key -> (state epoch, start offset, delivery complete count)
        self.calls = []
        self.fail = None
        self.lose_answer = False
        self.held = None

    def hold(self):
        self.held = trio.Event()

    def let_go(self):
        self.held.set()
        self.held = None

    async def _heard(self, name, keys):
        await trio.lowlevel.checkpoint()
        if self.held is not None:
            await self.held.wait()
        self.calls.append((name, list(keys)))

    def _told(self, answers, failed):
        if self.lose_answer:
            self.lose_answer = False
            return dict.fromkeys(answers, failed)
        return answers

    async def initialize(self, keys):
        await self._heard("initialize", keys)
        if self.fail is not None:
            return dict.fromkeys((key for key, _, _ in keys), self.fail)
        answers = {}
        for key, epoch, start in keys:
            known = self.states.get(key)
            if known is not None and known[0] > epoch:
                answers[key] = ErrorCode.FENCED_STATE_EPOCH
            else:
                self.states[key] = (epoch, start, -1 if start == -1 else 0)
                answers[key] = ErrorCode.NONE
        return self._told(answers, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def delete(self, keys):
        await self._heard("delete", keys)
        if self.fail is not None:
            return dict.fromkeys(keys, self.fail)
        for key in keys:
            self.states.pop(key, None)
        return self._told(dict.fromkeys(keys, ErrorCode.NONE), ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def read_summary(self, keys):
        await self._heard("read_summary", keys)
        if self.fail is not None:
            return {key: ShareState(self.fail) for key in keys}
        return {
            key: ShareState(ErrorCode.NONE, *self.states.get(key, (0, -1, -1)), (), 3)
            for key in keys
        }

    def of(self, group_id):
        """(topic id, partition) -> start offset."""
        return {
            (key.topic_id, key.partition): state[1]
            for key, state in self.states.items()
            if key.group_id == group_id
        }


class MemoryEnds:
    """Where partitions end: `known`, by (topic, partition)."""

    def __init__(self):
        self.known = {}

    async def read(self, partitions):
        await trio.lowlevel.checkpoint()
        return {each: self.known[each] for each in partitions if each in self.known}


@pytest.fixture
def persister():
    return MemoryPersister()


@pytest.fixture
def ends():
    return MemoryEnds()


@pytest.fixture
async def share_world(make_world, persister, ends):
    world = make_world()
    world.times = ShareTimes()
    world.share = ShareNeighbours(persister, ends, lambda _: world.times)
    await world.start()
    return world


# --- a core alone


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
        known = self.by_name.get(name)
        if known is None:
            self.count += 1
        topic_id = known.id if known else uuid.UUID(int=self.count)
        self.by_name[name] = Topic(topic_id, name, partition_count)
        return self.by_name[name]

    def remove(self, name):
        return self.by_name.pop(name)

    def get(self, name):
        return self.by_name.get(name)

    def get_by_id(self, topic_id):
        return next((t for t in self.by_name.values() if t.id == topic_id), None)


def replayed(log):
    """What the records of a group come to."""
    group = ShareGroup("g")
    for key, value in log:
        group.apply(parse_event(decode_group_key(key), value))
    return group


def state_of(group):
    return (
        group.epoch, group.metadata_hash, group.assignment_epoch, group.assignment_timestamp_ms,
        group.members, group.current, group.targets, group.partitions, group.has_state,
        group.topic_members, group.state,
    )  # fmt: skip


class Driver:
    """One group. `begin` and `begun` are what the shell does about the share coordinator."""

    def __init__(self, *, interval_ms=0, members_max=100):
        self.topics = TopicTable()
        self.group = ShareGroup("g")
        self.now_ms = 1_000_000
        self.times = ShareTimes(assignment_interval_ms=interval_ms)
        self.members_max = members_max
        self.log = []
        self.epochs = {}  # member id -> the epoch it was told last
        self.has = {}  # member id -> {topic id: partitions}, as the client knows it
        self.attempts = {}  # key -> (epoch, start offset) of those on their way

    def context(self):
        return Context(self.topics, self.times, self.now_ms, self.members_max)

    def beat(self, member_id, epoch=None, **given):
        if epoch is None:
            epoch = self.epochs.get(member_id, 0)
        given.setdefault("client_id", "c")
        given.setdefault("client_host", "/h")
        if given.get("topics") is not None:
            given["topics"] = tuple(sorted(set(given["topics"])))
        before = {each: current.epoch for each, current in self.group.current.items()}
        changes, result = share_group_core.heartbeat(
            self.group, HeartbeatInput(member_id, epoch, **given), self.context()
        )
        self.take(changes, before)
        if epoch >= 0:
            self.epochs[member_id] = result.epoch
            if result.assignment is not None:
                self.has[member_id] = {t: set(p) for t, p in result.assignment.items()}
        return result

    def join(self, member_id, *topics, **given):
        self.has.pop(member_id, None)
        return self.beat(member_id, 0, topics=topics, **given)

    def leave(self, member_id):
        self.epochs.pop(member_id, None)
        self.has.pop(member_id, None)
        return self.beat(member_id, -1)

    def fence(self, *member_ids):
        changes = Changes(self.group)
        fence(changes, member_ids, self.topics)
        self.take(changes, {})

    # --- the share coordinator's part

    def begin(self):
        changes = Changes(self.group)
        busy = {}
        for topic_id, partition in self.attempts:
            busy.setdefault(topic_id, set()).add(partition)
        wanted = state_core.wanting(self.group, self.topics, busy)
        if not wanted:
            return {}
        offsets = state_core.start_offsets(self.group, wanted)
        state_core.begin(changes, wanted, self.topics, above=0)
        self.take(changes, {})
        begun = {key: (self.group.epoch, offset) for key, offset in offsets.items()}
        self.attempts.update(begun)
        return begun

    def begun(self, keys):
        changes = Changes(self.group)
        state_core.initialized(changes, keys, self.topics)
        for key in keys:
            self.attempts.pop(key, None)
        self.take(changes, {})

    def begin_all(self):
        self.begun(list(self.begin()))

    def forget(self, topic_id):
        changes = Changes(self.group)
        state_core.forget_topic(changes, topic_id)
        self.take(changes, {})

    # --- what always holds

    def take(self, changes, before):
        self.log += [event_record("g", event) for event in changes.events]
        group = self.group
        for member_id, current in group.current.items():
            assert current.epoch <= group.assignment_epoch
            assert current.epoch >= before.get(member_id, -1), "epochs never go back"
        assert group.epoch >= group.assignment_epoch
        assert group.members.keys() == group.current.keys()
        assert group.targets.keys() <= group.members.keys()
        state = group.partitions
        assert not set(state.deleting) & {*state.initializing, *state.initialized}
        assert state_of(replayed(self.log)) == state_of(group)

    def readers(self):
        """{(topic id, partition): members that have it}."""
        found = {}
        for member_id, current in self.group.current.items():
            for topic_id, partitions in current.assigned.items():
                for partition in partitions:
                    found.setdefault((topic_id, partition), set()).add(member_id)
        return found


@pytest.fixture
def make_driver():
    return Driver


@pytest.fixture
def driver():
    made = Driver()
    made.topics.add("t", 4)
    return made


@pytest.fixture
def group_error():
    return GroupError


@pytest.fixture
def replay():
    return replayed


@pytest.fixture
def comparable():
    return state_of
