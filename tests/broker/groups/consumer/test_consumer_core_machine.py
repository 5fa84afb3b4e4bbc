"""Arbitrary histories of one consumer group: members come, go, fall silent and lose answers.

The driver checks after each input that no partition has two owners, that epochs do not go back, and
that the records of all that happened come to the same group (conftest.py). Here: who goes on as a
client does comes to rest, with every partition assigned once and evenly; and replay does not depend
on superseded records being there.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

MEMBERS = st.sampled_from([f"m{number}" for number in range(6)])
SUBSCRIPTIONS = st.sampled_from([("t",), ("t",), ("u",), ("t", "u"), ()])


class GroupMachine(RuleBasedStateMachine):
    driver_class = replay = comparable = group_error = None  # conftest's

    def __init__(self):
        super().__init__()
        self.driver = self.driver_class(interval_ms=500)
        self.driver.topics.add("t", 5)
        self.driver.topics.add("u", 3)
        self.group_epoch = 0

    def attempt(self, function, *arguments, **given):
        """As a client: who is refused comes anew, by the same id."""
        try:
            return function(*arguments, **given)
        except self.group_error as error:
            member_id = arguments[0]
            if error.code.name in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"):
                self.driver.epochs.pop(member_id, None)
                self.driver.owned.pop(member_id, None)
            return None

    @rule(member_id=MEMBERS, topics=SUBSCRIPTIONS, instance=st.sampled_from([None] * 4 + ["s"]))
    def join(self, member_id, topics, instance):
        self.attempt(self.driver.join, member_id, *topics, instance_id=instance)

    @rule(member_id=MEMBERS)
    def join_by_pattern(self, member_id):
        self.attempt(self.driver.join, member_id, regex="[tu]")

    @rule(topics=st.sets(st.sampled_from("tu")))
    def resolve(self, topics):
        self.driver.resolve(**{"[tu]": topics})

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data(), tells=st.booleans())
    def beat(self, data, tells):
        member_id = data.draw(st.sampled_from(sorted(self.driver.epochs)))
        if self.driver.epochs[member_id] > 0:
            self.attempt(self.driver.ack if tells else self.driver.beat, member_id)

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data())
    def lose_an_answer(self, data):
        member_id = data.draw(st.sampled_from(sorted(self.driver.epochs)))
        epoch = self.driver.epochs[member_id]
        if epoch <= 0 or member_id in self.driver.lost:
            return
        owned = self.driver.owned.get(member_id, {})
        if self.attempt(self.driver.ack, member_id) is not None:
            self.driver.epochs[member_id], self.driver.owned[member_id] = epoch, owned
            self.driver.lost.add(member_id)

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data(), topics=SUBSCRIPTIONS)
    def subscribe(self, data, topics):
        member_id = data.draw(st.sampled_from(sorted(self.driver.epochs)))
        if self.driver.epochs[member_id] > 0:
            self.attempt(self.driver.beat, member_id, topics=topics)

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data, for_good):
        member_id = data.draw(st.sampled_from(sorted(self.driver.group.members)))
        instance = self.driver.group.members[member_id].instance_id
        if for_good or instance is None:
            self.attempt(self.driver.leave, member_id)
        else:
            self.attempt(self.driver.leave, member_id, -2, instance_id=instance)

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data())
    def expire(self, data):
        member_id = data.draw(st.sampled_from(sorted(self.driver.group.members)))
        self.driver.fence(member_id)

    @rule(ms=st.sampled_from([1, 100, 600]))
    def wait(self, ms):
        self.driver.now_ms += ms

    @rule(name=st.sampled_from("tu"), more=st.integers(1, 3))
    def grow(self, name, more):
        topic = self.driver.topics.get(name)
        if topic is None:
            self.driver.topics.add(name, more)
        else:
            self.driver.topics.add(name, topic.partition_count + more)

    @rule(name=st.sampled_from("tu"))
    def delete(self, name):
        if self.driver.topics.get(name) is not None:
            self.driver.topics.remove(name)

    @invariant()
    def epochs_of_the_group_never_go_back(self):
        assert self.driver.group.epoch >= self.group_epoch
        self.group_epoch = self.driver.group.epoch

    @rule(data=st.data())
    def load_what_compaction_left(self, data):
        """Any of the superseded records may be missing."""
        last = {key: at for at, (key, _) in enumerate(self.driver.log)}
        superseded = [at for at, (key, _) in enumerate(self.driver.log) if last[key] != at]
        gone = data.draw(st.sets(st.sampled_from(superseded))) if superseded else set()
        left = [each for at, each in enumerate(self.driver.log) if at not in gone]
        found, known = self.replay(left), self.driver.group
        assert self.comparable(found) == self.comparable(known)

    def teardown(self):
        """Everybody comes to rest."""
        driver = self.driver
        driver.now_ms += 1000
        for member_id in sorted(driver.group.members):
            if driver.epochs.get(member_id, 0) <= 0:
                driver.fence(member_id)
        for _ in range(30):
            size = len(driver.log)
            driver.now_ms += 1000
            for member_id in sorted(driver.group.members):
                if member_id not in driver.epochs:
                    self.attempt(driver.join, member_id)
                self.attempt(driver.ack, member_id)
            if len(driver.log) == size:
                break
        else:
            raise AssertionError("does not come to rest")
        group = driver.group
        if not group.members:
            return
        assert driver.is_stable()
        wanted = {}
        for member in group.members.values():
            for name in group.topics_of(member):
                topic = driver.topics.get(name)
                if topic is not None:
                    wanted.update(((topic.id, p), 1) for p in range(topic.partition_count))
        had = {(t, p) for t, owners in group.owners.items() for p in owners}
        assert had == wanted.keys()


def test_histories(make_driver, replay, comparable, group_error):
    GroupMachine.driver_class = staticmethod(make_driver)
    GroupMachine.replay = staticmethod(replay)
    GroupMachine.comparable = staticmethod(comparable)
    GroupMachine.group_error = group_error
    run_state_machine_as_test(
        GroupMachine, settings=settings(stateful_step_count=40, deadline=None)
    )
