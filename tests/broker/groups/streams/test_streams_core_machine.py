"""Arbitrary histories of one streams group: members come, go, fall silent and lose answers.

The driver checks after each input that no task is active twice, that no process has a task twice,
that epochs do not go back, and that the records of all that happened come to the same group
(conftest.py). Here: who goes on as a client does comes to rest, with every task active once; and
replay does not depend on superseded records being there.
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
PROCESSES = st.sampled_from("PQR")


class GroupMachine(RuleBasedStateMachine):
    make_driver = replay = comparable = group_error = None  # conftest's

    def __init__(self):
        super().__init__()
        self.driver = self.make_driver(interval_ms=500, standbys=1)
        self.group_epoch = 0

    def attempt(self, function, *arguments, **given):
        """As a client: who is refused comes anew, by the same id. INVALID_REQUEST gets who has a
        task that there is no more, as its topic was made anew with fewer partitions."""
        try:
            return function(*arguments, **given)
        except self.group_error as error:
            member_id = arguments[0]
            if error.code.name in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "INVALID_REQUEST"):
                self.driver.epochs.pop(member_id, None)
                self.driver.owned.pop(member_id, None)
                self.driver.lost.discard(member_id)
            return None

    @rule(member_id=MEMBERS, process_id=PROCESSES)
    def join(self, member_id, process_id):
        member = self.driver.group.members.get(member_id)
        # A member is a thread of one process, for all its life.
        process_id = process_id if member is None else member.process_id
        self.attempt(self.driver.join, member_id, process_id)

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data(), tells=st.booleans())
    def beat(self, data, tells):
        member_id = data.draw(st.sampled_from(sorted(self.driver.epochs)))
        tells = tells or member_id in self.driver.lost
        self.attempt(self.driver.ack if tells else self.driver.beat, member_id)

    @precondition(lambda self: self.driver.epochs)
    @rule(data=st.data())
    def lose_an_answer(self, data):
        member_id = data.draw(st.sampled_from(sorted(self.driver.epochs)))
        if member_id in self.driver.lost:
            return
        epoch, owned = self.driver.epochs[member_id], self.driver.owned.get(member_id)
        if self.attempt(self.driver.ack, member_id) is not None:
            self.driver.epochs[member_id] = epoch
            if owned is not None:
                self.driver.owned[member_id] = owned
            self.driver.lost.add(member_id)

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data())
    def leave(self, data):
        member_id = data.draw(st.sampled_from(sorted(self.driver.group.members)))
        self.attempt(self.driver.leave, member_id)

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data())
    def expire(self, data):
        self.driver.fence(data.draw(st.sampled_from(sorted(self.driver.group.members))))

    @rule(ms=st.sampled_from([1, 100, 600]))
    def wait(self, ms):
        self.driver.now_ms += ms

    @rule(standbys=st.integers(0, 2))
    def reconfigure(self, standbys):
        self.driver.standbys = standbys

    @rule(count=st.integers(1, 4))
    def grow(self, count):
        """Or delete and make anew: with fewer partitions."""
        self.driver.topics.add("side", count)

    @rule(is_there=st.booleans())
    def delete(self, is_there):
        if is_there:
            self.driver.topics.add("side", 2)
        elif self.driver.topics.get("side") is not None:
            self.driver.topics.remove("side")

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
        driver.topics.add("side", 2)
        for member_id in sorted(driver.group.members):
            if member_id not in driver.epochs:
                driver.fence(member_id)
        quiet_rounds = 0  # who lost an answer says what he said before, and nothing is written
        for _ in range(40):
            size = len(driver.log)
            driver.now_ms += 1000
            for member_id in sorted(driver.group.members):
                if member_id not in driver.epochs:
                    process_id = driver.group.members[member_id].process_id
                    self.attempt(driver.join, member_id, process_id)
                self.attempt(driver.ack, member_id)
            is_quiet = len(driver.log) == size
            is_quiet &= driver.group.members.keys() <= driver.epochs.keys()
            quiet_rounds = quiet_rounds + 1 if is_quiet else 0
            if quiet_rounds == 2:
                break
        else:
            raise AssertionError("does not come to rest")
        group = driver.group
        if not group.members:
            return
        assert driver.is_stable()
        assert group.owners.keys() == {("0", n) for n in range(4)} | {("1", 0), ("1", 1)}
        copies = min(driver.standbys, len(group.processes) - 1)
        assert {task: len(group.copies.get(task, ())) for task in group.owners} == {
            task: copies if task[0] == "0" else 0 for task in group.owners
        }


def test_histories(make_driver, replay, comparable, group_error):
    GroupMachine.make_driver = staticmethod(make_driver)
    GroupMachine.replay = staticmethod(replay)
    GroupMachine.comparable = staticmethod(comparable)
    GroupMachine.group_error = group_error
    run_state_machine_as_test(
        GroupMachine, settings=settings(stateful_step_count=40, deadline=None)
    )
