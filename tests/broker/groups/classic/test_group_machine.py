"""Arbitrary histories of one group, against what a naive reading of the protocol demands.

The model is a plain record of what was asked and answered. It knows no states of the group; it
knows only what a client may rely on:
- a request is answered once (the driver checks), and in the end every request is answered;
- a generation has one leader, and only the leader is told the members, who are the same that were
  told this generation;
- a member gets the assignment that the leader of its generation made for it, or nothing;
- generations only grow; the selected protocol is spoken by every member;
- whoever was told that it is no member is none; the group's size stays within its limit.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.types import (
    GroupLimits,
    GroupState,
    JoinResult,
    LeavingMember,
    OwnershipShown,
    SyncResult,
)
from wire.kafka.errors import ErrorCode

PROTOCOLS = st.sampled_from(
    [
        (("a", b"1"),),
        (("a", b"1"), ("b", b"2")),
        (("b", b"2"), ("a", b"1")),
        (("b", b"x"), ("a", b"x"), ("c", b"x")),
    ]
)
INSTANCES = st.sampled_from([None, None, None, "s", "t"])
MEMBERS_MAX = 4


class GroupMachine(RuleBasedStateMachine):
    driver_class = None  # conftest's, which a test module cannot import

    def __init__(self):
        super().__init__()
        limits = GroupLimits(
            initial_rebalance_delay_ms=500,
            members_max=MEMBERS_MAX,
            new_member_join_timeout_ms=30_000,
        )
        self.driver = self.driver_class(limits, auto_store=False)
        self.ids = []  # member ids that were ever handed out
        self.seen = set()  # tokens whose answers were checked
        self.asker = {}  # token of a join -> instance id
        self.syncer = {}  # token of a sync -> (member id, generation)
        self.static_id = {}  # instance -> the id it was last told
        self.leaders = {}  # generation -> leader, as the first answer said
        self.told = defaultdict(set)  # generation -> ids that were told it
        self.assigned = defaultdict(list)  # generation -> assignments that leaders sent
        self.generation = 0

    # --- what clients do

    @rule(
        protocols=PROTOCOLS,
        known=st.booleans(),
        instance=st.sampled_from([None] * 3 + ["s", "t"]),
    )
    def join_new(self, protocols, known, instance):
        token = self.driver.join(
            protocols=protocols,
            instance_id=instance,
            requires_known_member_id=known,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=9_000,
            supports_skip_assignment=known,
        )
        self.asker[token] = instance
        self.ids.append(f"new-{token}")
        self.look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), protocols=PROTOCOLS)
    def join_again(self, data, protocols):
        member = data.draw(st.sampled_from(self.ids[-8:]))
        instance = next(
            (i for i, m in self.driver.group.members.static_ids.items() if m == member), None
        )
        token = self.driver.join(
            member,
            instance_id=instance,
            protocols=protocols,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=9_000,
        )
        self.asker[token] = instance
        self.look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), all_members=st.booleans())
    def sync(self, data, all_members):
        group = self.driver.group
        member = data.draw(st.sampled_from([*group.members.by_id, *self.ids[-2:]]))
        generation = group.generation_id
        given = {}
        if member == group.members.leader_id:
            names = list(group.members.by_id) if all_members else [member]
            given = {each: f"{generation}/{each}".encode() for each in names}
            self.assigned[generation].append(given)
        token = self.driver.sync(member, assignments=given)
        self.syncer[token] = (member, generation)
        self.look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), behind=st.integers(0, 1))
    def heartbeat(self, data, behind):
        group = self.driver.group
        member = data.draw(st.sampled_from([*group.members.by_id, *self.ids[-3:]]))
        answer = self.driver.heartbeat(member, group.generation_id - behind)
        if member not in group.members.by_id:
            assert answer is ErrorCode.UNKNOWN_MEMBER_ID
        elif behind:
            assert answer is ErrorCode.ILLEGAL_GENERATION
        else:
            busy = group.state is GroupState.PREPARING_REBALANCE
            assert answer is (ErrorCode.REBALANCE_IN_PROGRESS if busy else ErrorCode.NONE)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def leave(self, data):
        member = data.draw(st.sampled_from([*self.driver.group.members.by_id, *self.ids[-2:]]))
        self.driver.leave(LeavingMember(member))
        assert member not in self.driver.group.members.by_id
        assert member not in self.driver.group.pending_join
        self.look()

    @rule(instance=st.sampled_from(["s", "t"]))
    def leave_static(self, instance):
        self.driver.leave(LeavingMember("", instance))
        assert instance not in self.driver.group.members.static_ids
        self.look()

    # --- what the world does

    @rule(ms=st.sampled_from([1, 500, 2_000, 5_999, 9_000]))
    def pass_time(self, ms):
        self.driver.pass_time(ms)
        self.look()

    @rule(error=st.sampled_from([ErrorCode.NONE] * 4 + [ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def store(self, error):
        self.driver.store(error)
        self.look()

    # --- what must hold

    def look(self):
        """Checks the answers that have come since the last look."""
        for token, result in self.driver.answers.items():
            if token in self.seen:
                continue
            self.seen.add(token)
            if isinstance(result, JoinResult):
                self.check_join(token, result)
            else:
                assert isinstance(result, SyncResult)
                self.check_sync(token, result)

    def check_join(self, token, result):
        if result.error:
            assert not result.members
            return
        instance = self.asker[token]
        if instance is not None:
            self.static_id[instance] = result.member_id
        generation = result.generation_id
        assert generation >= 1
        assert generation >= self.generation
        self.told[generation].add(result.member_id)
        leader = self.leaders.setdefault(generation, result.leader_id)
        assert self.origin(result.leader_id) == self.origin(leader)
        if result.members:
            assert result.member_id == result.leader_id
            assert result.member_id in [each[0] for each in result.members]

    def origin(self, member_id):
        """The first id of a static member; a dynamic member's only one."""
        group = self.driver.group
        for instance, each in group.members.static_ids.items():
            if each == member_id:
                return instance
        for instance, each in self.static_id.items():
            if each == member_id:
                return instance
        for token, instance in self.asker.items():
            if instance is not None and f"new-{token}" == member_id:
                return instance
        return member_id

    def check_sync(self, token, result):
        if result.error:
            assert result.assignment == b""
            return
        member, generation = self.syncer[token]
        if not result.assignment:
            return
        made_in, made_for = result.assignment.decode().split("/")
        assert int(made_in) == generation
        assert self.origin(made_for) == self.origin(member)
        sent = self.assigned[generation]
        assert any(given.get(made_for) == result.assignment for given in sent)

    @invariant()
    def the_group_is_whole(self):
        group = self.driver.group
        group.members.check()
        assert group.generation_id >= self.generation
        self.generation = group.generation_id
        assert group.members.awaiting_join_count <= MEMBERS_MAX
        if group.state is not GroupState.PREPARING_REBALANCE:
            assert len(group.members) <= MEMBERS_MAX + 2  # static members that are absent
        assert not group.pending_sync - group.members.by_id.keys()
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.members
            for member in group.members.by_id.values():
                assert group.protocol_name in dict(member.protocols)
            if not self.driver.unstored:
                restored = ClassicGroup.restore(group.snapshot(), self.driver.limits)
                assert restored.snapshot() == group.snapshot()
        if group.state is GroupState.STABLE:
            unstored = [each.then for each in self.driver.unstored]
            asked = {then.token for then in unstored if isinstance(then, OwnershipShown)}
            for member in group.members.by_id.values():
                assert member.sync_token is None or member.sync_token in asked

    @invariant()
    def somebody_watches(self):
        """As long as there are members, or ids handed out, the timer is armed, or a store is
        under way, whose end arms it."""
        group = self.driver.group
        if (group.members or group.pending_join) and not self.driver.unstored:
            assert self.driver.timer_ms is not None

    def teardown(self):
        for _ in range(12):
            self.driver.store()
            self.driver.pass_time(30_000)
            self.look()
        self.driver.store()
        assert not self.driver.unanswered()
        assert self.driver.group.state is GroupState.EMPTY
        assert self.driver.group.is_forgettable


@pytest.mark.hypothesis
def test_arbitrary_histories(make_driver):
    GroupMachine.driver_class = make_driver
    run_state_machine_as_test(GroupMachine, settings=settings(stateful_step_count=40))
