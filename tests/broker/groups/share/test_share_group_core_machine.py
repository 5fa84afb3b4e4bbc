"""Arbitrary histories of one share group: members come, go, fall silent and lose answers; topics
grow, go and come again; the share coordinator answers late, in part, or not at all.

The driver checks after each input that epochs do not go back and that the records of all that
happened come to the same group (conftest.py). Here: who goes on comes to rest, with every begun
partition read by as many as it takes; and replay does not depend on superseded records.
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
SUBSCRIPTIONS = st.sampled_from([("t",), ("t",), ("u",), ("t", "u")])


class ShareGroupMachine(RuleBasedStateMachine):
    driver_class = replay = comparable = group_error = None  # conftest's

    def __init__(self):
        super().__init__()
        self.driver = self.driver_class(interval_ms=500)
        self.driver.topics.add("t", 5)
        self.driver.topics.add("u", 3)
        self.group_epoch = 0
        self.state_epochs = {}  # key -> the latest epoch that it was begun with

    def attempt(self, function, *arguments, **given):
        """As a client: who is refused comes anew, by the same id."""
        try:
            return function(*arguments, **given)
        except self.group_error as error:
            if error.code.name in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"):
                self.driver.epochs.pop(arguments[0], None)
                self.driver.has.pop(arguments[0], None)
            return None

    @rule(member_id=MEMBERS, topics=SUBSCRIPTIONS)
    def join(self, member_id, topics):
        self.attempt(self.driver.join, member_id, *topics)

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data(), loses=st.booleans())
    def beat(self, data, loses):
        driver = self.driver
        member_id = data.draw(st.sampled_from(sorted(driver.epochs)))
        before = driver.epochs[member_id]
        if before <= 0:
            return
        told = self.attempt(driver.beat, member_id)
        if told is None:
            return
        if loses:
            driver.epochs[member_id] = before
        else:
            current = driver.group.current[member_id]
            assert driver.has[member_id] == {t: set(p) for t, p in current.assigned.items()}

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data(), topics=st.one_of(SUBSCRIPTIONS, st.just(())))
    def subscribe(self, data, topics):
        member_id = data.draw(st.sampled_from(sorted(self.driver.epochs)))
        if self.driver.epochs[member_id] > 0:
            self.attempt(self.driver.beat, member_id, topics=topics)

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data(), is_fenced=st.booleans())
    def leave(self, data, is_fenced):
        member_id = data.draw(st.sampled_from(sorted(self.driver.group.members)))
        if is_fenced:
            self.driver.fence(member_id)
        else:
            self.attempt(self.driver.leave, member_id)

    @rule()
    def begin(self):
        """Each attempt at a partition has a later epoch than the one before."""
        for key, (epoch, _) in self.driver.begin().items():
            assert epoch > self.state_epochs.get(key, 0)
            self.state_epochs[key] = epoch

    @precondition(lambda self: self.driver.attempts)
    @rule(data=st.data())
    def begun(self, data):
        keys = sorted(self.driver.attempts)
        self.driver.begun(data.draw(st.lists(st.sampled_from(keys), unique=True)))

    @precondition(lambda self: self.driver.attempts)
    @rule()
    def nobody_answers(self):
        self.driver.attempts.clear()

    @rule(ms=st.sampled_from([1, 100, 600]))
    def wait(self, ms):
        self.driver.now_ms += ms

    @rule(name=st.sampled_from("tu"), more=st.integers(1, 3))
    def grow(self, name, more):
        topic = self.driver.topics.get(name)
        self.driver.topics.add(name, more + (0 if topic is None else topic.partition_count))

    @rule(name=st.sampled_from("tu"))
    def delete(self, name):
        if self.driver.topics.get(name) is not None:
            gone = self.driver.topics.remove(name)
            self.driver.forget(gone.id)
            for key in [each for each in self.driver.attempts if each[0] == gone.id]:
                del self.driver.attempts[key]

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
        assert self.comparable(self.replay(left)) == self.comparable(self.driver.group)

    def teardown(self):
        """Everybody comes to rest."""
        driver = self.driver
        for member_id in sorted(driver.group.members):
            if driver.epochs.get(member_id, 0) <= 0:
                driver.fence(member_id)
        driver.attempts.clear()
        for _ in range(30):
            size = len(driver.log)
            driver.now_ms += 1000
            driver.begin_all()
            for member_id in sorted(driver.group.members):
                if self.attempt(driver.beat, member_id) is None:
                    topics = driver.group.members[member_id].topics
                    self.attempt(driver.join, member_id, *topics)
            if len(driver.log) == size:
                break
        else:
            raise AssertionError("does not come to rest")
        wanted = set()
        for member in driver.group.members.values():
            for topic in filter(None, map(driver.topics.get, member.topics)):
                wanted |= {(topic.id, each) for each in range(topic.partition_count)}
        assert driver.readers().keys() == wanted


def test_histories(make_driver, replay, comparable, group_error):
    ShareGroupMachine.driver_class = staticmethod(make_driver)
    ShareGroupMachine.replay = staticmethod(replay)
    ShareGroupMachine.comparable = staticmethod(comparable)
    ShareGroupMachine.group_error = group_error
    run_state_machine_as_test(
        ShareGroupMachine, settings=settings(stateful_step_count=40, deadline=None)
    )
