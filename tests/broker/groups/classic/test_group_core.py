"""Scenarios of one classic group, by Kafka's rules (features as named in group_core)."""

from __future__ import annotations

import struct

import pytest

from broker.groups.classic import group_core
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.members import PROTOCOLS_MAX
from broker.groups.classic.subscription import subscribed_topics
from broker.groups.classic.types import GroupLimits, GroupState, LeavingMember
from wire.kafka.errors import ErrorCode as E


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


# --- joining a new group


def test_a_dynamic_member_gets_its_id_first_and_joins_by_it(driver):
    first = driver.answers[driver.join(new_member_id="c-1")]
    assert (first.error, first.member_id, first.generation_id) == (E.MEMBER_ID_REQUIRED, "c-1", -1)
    assert driver.group.state is GroupState.EMPTY
    token = driver.join("c-1")
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.pass_time(2_999)
    assert token not in driver.answers
    driver.pass_time(1)
    joined = driver.answers[token]
    assert (joined.error, joined.member_id, joined.leader_id) == (E.NONE, "c-1", "c-1")
    assert joined.generation_id == 1
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert joined.members == [("c-1", None, b"m")]


def test_clients_before_v4_are_added_at_once(driver):
    token = driver.join(requires_known_member_id=False, new_member_id="old-1")
    driver.pass_time(3_000)
    assert driver.answers[token].member_id == "old-1"


def test_only_the_leader_learns_the_members(driver):
    a = driver.join(requires_known_member_id=False, new_member_id="a")
    b = driver.join(requires_known_member_id=False, new_member_id="b")
    driver.pass_time(6_000)
    assert [m[0] for m in driver.answers[a].members] == ["a", "b"]
    assert driver.answers[b].members == []
    assert driver.answers[a].leader_id == driver.answers[b].leader_id == "a"


def test_the_initial_delay_is_extended_by_each_newcomer_up_to_the_rebalance_timeout(driver):
    first = driver.join(requires_known_member_id=False, rebalance_timeout_ms=7_000)
    for _ in range(2):
        driver.pass_time(2_000)
        driver.join(requires_known_member_id=False, rebalance_timeout_ms=7_000)
    driver.pass_time(2_900)  # 6.9 s: 3 s, extended by 3 s, extended by the last second
    assert first not in driver.answers
    driver.pass_time(100)
    assert driver.answers[first].error is E.NONE
    assert len(driver.group.members) == 3


def test_without_newcomers_the_delay_is_not_extended(driver):
    token = driver.join(requires_known_member_id=False)
    driver.pass_time(3_000)
    assert token in driver.answers


def test_no_delay_when_it_is_configured_away(make_driver):
    driver = make_driver(GroupLimits(initial_rebalance_delay_ms=0))
    token = driver.join(requires_known_member_id=False)
    driver.pass_time(0)
    assert driver.answers[token].error is E.NONE


def test_a_handed_out_id_lapses_after_a_session_timeout(driver):
    driver.join(new_member_id="c-1", session_timeout_ms=6_000)
    driver.pass_time(6_000)
    assert driver.answers[driver.join("c-1")].error is E.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_handed_out_ids(driver):
    (a,) = driver.stable(1)
    driver.join(new_member_id="late", session_timeout_ms=20_000)
    token = driver.join(a)
    assert token not in driver.answers
    late = driver.join("late")
    assert driver.answers[token].generation_id == driver.answers[late].generation_id == 2


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", (("range", b""),)), ("consumer", ()), ("connect", (("range", b""),))],
)
def test_inconsistent_protocols_are_refused(driver, protocol_type, protocols):
    if protocol_type == "connect":
        driver.stable(1)
    answer = driver.answers[driver.join(protocol_type=protocol_type, protocols=protocols)]
    assert answer.error is E.INCONSISTENT_GROUP_PROTOCOL


def test_more_protocols_than_can_be_looked_through_are_refused(driver):
    protocols = tuple((f"p{number}", b"") for number in range(PROTOCOLS_MAX + 1))
    answer = driver.answers[driver.join(protocols=protocols)]
    assert answer.error is E.INCONSISTENT_GROUP_PROTOCOL
    driver.stable(1, protocols=protocols[:-1])
    assert driver.group.protocol_name == "p0"


def test_a_member_must_share_a_protocol_with_all(driver):
    driver.stable(1, protocols=(("range", b""), ("sticky", b"")))
    refused = driver.join(protocols=(("roundrobin", b""),))
    assert driver.answers[refused].error is E.INCONSISTENT_GROUP_PROTOCOL
    accepted = driver.join(protocols=(("roundrobin", b""), ("sticky", b"")))
    assert driver.answers[accepted].error is E.MEMBER_ID_REQUIRED


def test_the_protocol_with_most_votes_among_those_all_speak_wins(driver):
    for protocols in (("a", "b", "c"), ("b", "a", "c"), ("c", "b"), ("b", "c")):
        given = tuple((name, name.encode()) for name in protocols)
        driver.join(requires_known_member_id=False, protocols=given)
    driver.pass_time(6_000)
    assert driver.group.protocol_name == "b"  # «a» is not spoken by the last two


def test_group_max_size_counts_members(make_driver):
    driver = make_driver(GroupLimits(members_max=2))
    a, _b = driver.stable(2)
    refused = driver.answers[driver.join()]
    assert (refused.error, refused.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert driver.heartbeat(a) is E.NONE


def test_group_max_size_while_preparing_counts_who_waits(make_driver):
    driver = make_driver(GroupLimits(members_max=2))
    driver.join(requires_known_member_id=False)
    driver.join(requires_known_member_id=False)
    third = driver.join(requires_known_member_id=False)
    assert driver.answers[third].error is E.GROUP_MAX_SIZE_REACHED


def test_a_group_loaded_over_a_lowered_limit_lets_the_last_to_rejoin_go(make_driver):
    driver = make_driver()
    members = driver.stable(3)
    driver.group = ClassicGroup.restore(driver.group.snapshot(), GroupLimits(members_max=2))
    driver.apply(group_core.start(driver.group, driver.now_ms))
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    tokens = [driver.join(member) for member in members]
    errors = [driver.answers[token].error for token in tokens]
    assert errors == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]


# --- assignment


def test_assignments_go_out_once_the_leaders_is_stored(make_driver):
    driver = make_driver(auto_store=False)
    a, b = driver.join_all(2)
    follower = driver.sync(b)
    leader = driver.sync(a, assignments={a: b"A", b: b"B"})
    assert driver.unanswered() == {follower, leader}
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.store()
    assert driver.answers[leader].assignment == b"A"
    assert driver.answers[follower].assignment == b"B"
    assert driver.group.state is GroupState.STABLE
    (snapshot,) = driver.stored
    assert [(m.member_id, m.assignment) for m in snapshot.members] == [(a, b"A"), (b, b"B")]
    assert (snapshot.generation_id, snapshot.leader_id) == (1, a)


def test_a_member_that_the_leader_forgot_gets_nothing(driver):
    a, b = driver.join_all(2)
    follower = driver.sync(b)
    driver.sync(a, assignments={a: b"A", "stranger": b"X"})
    assert (driver.answers[follower].error, driver.answers[follower].assignment) == (E.NONE, b"")


def test_sync_in_a_stable_group_gives_the_same_assignment_again(driver):
    a, b = driver.stable(2)
    answer = driver.answers[driver.sync(b, assignments={b: b"other"})]
    assert (answer.assignment, answer.protocol_name) == (b.encode(), "range")
    assert driver.heartbeat(a) is E.NONE


def test_who_asks_again_is_answered_when_the_generation_is_stored_again(make_driver):
    """Its first SyncGroup may have been answered by another broker that led the group."""
    driver = make_driver(auto_store=False)
    a, b = driver.join_all(2)
    driver.sync(a, assignments={a: b"A", b: b"B"})
    driver.store()
    first = driver.sync(b)
    assert driver.answers[first].assignment == b"B", "part of the generation that was just stored"
    again = driver.sync(b)
    assert driver.unanswered() == {again}
    driver.store()
    assert driver.answers[again].assignment == b"B"
    assert driver.stored[0] == driver.stored[1]
    driver.group = ClassicGroup.restore(driver.group.snapshot(), GroupLimits())
    elsewhere = driver.sync(a)
    assert driver.unanswered() == {elsewhere}
    driver.store(E.NOT_COORDINATOR)
    assert driver.answers[elsewhere].error is E.NOT_COORDINATOR
    assert driver.group.state is GroupState.STABLE


@pytest.mark.parametrize("event", ["rebalance", "leave", "sync", "close"])
def test_who_asks_again_is_answered_once_whatever_comes_first(event, make_driver):
    driver = make_driver(auto_store=False)
    a, b = driver.join_all(2)
    driver.sync(a, assignments={a: b"A", b: b"B"})
    driver.store()
    driver.sync(b)
    again = driver.sync(b)
    if event == "rebalance":
        driver.join(a)
    elif event == "leave":
        driver.leave(b)
    elif event == "sync":
        driver.sync(b)
    else:
        driver.apply(group_core.close(driver.group, E.NOT_COORDINATOR))
    expected = {"leave": E.UNKNOWN_MEMBER_ID, "close": E.NOT_COORDINATOR}
    assert driver.answers[again].error is expected.get(event, E.REBALANCE_IN_PROGRESS)
    driver.store()
    if event == "sync":
        assert not driver.unanswered()


def test_sync_errors(driver):
    a, _b = driver.stable(2)
    cases = [
        (("nobody",), {}, E.UNKNOWN_MEMBER_ID),
        ((a, 7), {}, E.ILLEGAL_GENERATION),
        ((a,), {"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ((a,), {"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ((a,), {"instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ]
    for args, kwargs, expected in cases:
        assert driver.answers[driver.sync(*args, **kwargs)].error is expected
    driver.join(a)  # the leader rejoins: a rebalance
    assert driver.answers[driver.sync(a)].error is E.REBALANCE_IN_PROGRESS


def test_a_failed_store_tells_the_members_and_rebalances(make_driver):
    driver = make_driver(auto_store=False)
    a, b = driver.join_all(2)
    tokens = [driver.sync(b), driver.sync(a, assignments={})]
    driver.store(E.COORDINATOR_NOT_AVAILABLE)
    assert {driver.answers[t].error for t in tokens} == {E.COORDINATOR_NOT_AVAILABLE}
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_stored_too_late_for_its_generation_changes_nothing(make_driver):
    driver = make_driver(auto_store=False)
    a, b = driver.join_all(2)
    follower, leader = driver.sync(b), driver.sync(a, assignments={a: b"A", b: b"B"})
    driver.join(b, protocols=(("range", b"changed"),))
    assert driver.answers[follower].error is E.REBALANCE_IN_PROGRESS
    assert driver.answers[leader].error is E.REBALANCE_IN_PROGRESS
    driver.store()
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_dies_before_its_sync_is_replaced(driver):
    a, b = driver.join_all(2)
    waiting = driver.sync(b)
    driver.pass_time(10_000)  # a's session; b waits for it and is excused
    assert driver.answers[waiting].error is E.REBALANCE_IN_PROGRESS
    token = driver.join(b)
    assert driver.answers[token].leader_id == b
    assert [m[0] for m in driver.answers[token].members] == [b]
    assert driver.heartbeat(a, 2) is E.UNKNOWN_MEMBER_ID


def test_who_heartbeats_but_never_syncs_is_removed_at_the_rebalance_timeout(driver):
    a, b = driver.join_all(2, rebalance_timeout_ms=12_000)
    driver.sync(a, assignments={})
    for _ in range(4):
        driver.pass_time(2_900)
        driver.heartbeat(a)
        driver.heartbeat(b)
    driver.pass_time(400)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert list(driver.group.members.by_id) == [a]


# --- generations and rebalances


def test_heartbeat_errors(driver):
    a, _b = driver.stable(2)
    assert driver.heartbeat("nobody") is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(a, 99) is E.ILLEGAL_GENERATION
    assert driver.heartbeat(a, instance_id="i") is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(a) is E.NONE
    driver.join(a)
    assert driver.heartbeat(a) is E.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(a, 99) is E.ILLEGAL_GENERATION


def test_heartbeats_keep_a_session_and_silence_ends_it(driver):
    a, b = driver.stable(2)
    for _ in range(5):
        driver.pass_time(9_000)
        assert driver.heartbeat(a) in (E.NONE, E.REBALANCE_IN_PROGRESS)
    assert list(driver.group.members.by_id) == [a]
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.heartbeat(b) is E.UNKNOWN_MEMBER_ID


def test_a_member_that_stops_polling_costs_one_rebalance(driver):
    """max.poll.interval: its client leaves; the other rejoins; there is one new generation."""
    a, b = driver.stable(2)
    assert driver.leave(b) == [E.NONE]
    token = driver.join(a)
    assert driver.answers[token].generation_id == 2
    driver.stabilize([a])
    driver.pass_time(9_000)
    assert driver.heartbeat(a) is E.NONE
    assert driver.group.generation_id == 2


def test_who_misses_the_rebalance_timeout_is_removed(driver):
    a, b = driver.stable(2, rebalance_timeout_ms=20_000)
    token = driver.join(a, rebalance_timeout_ms=20_000)
    for _ in range(3):
        driver.pass_time(6_000)
        assert driver.heartbeat(b) is E.REBALANCE_IN_PROGRESS
    driver.pass_time(2_000)
    assert driver.answers[token].generation_id == 2
    assert list(driver.group.members.by_id) == [a]
    assert driver.answers[driver.join(b)].error is E.UNKNOWN_MEMBER_ID


def test_a_follower_that_joins_unchanged_learns_its_generation_without_a_rebalance(driver):
    a, b = driver.stable(2)
    answer = driver.answers[driver.join(b)]
    assert (answer.error, answer.generation_id, answer.leader_id) == (E.NONE, 1, a)
    assert answer.members == []
    assert driver.group.state is GroupState.STABLE


def test_a_follower_that_joins_changed_rebalances(driver):
    _a, b = driver.stable(2)
    driver.join(b, protocols=(("range", b"new topics"),))
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_rejoins_before_its_sync_is_told_the_members_again(driver):
    a, b = driver.join_all(2)
    assert [m[0] for m in driver.answers[driver.join(a)].members] == [a, b]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_a_second_request_of_a_member_supersedes_its_first(driver):
    a, _b = driver.stable(2)
    first = driver.join(a)
    second = driver.join(a)
    assert driver.answers[first].error is E.REBALANCE_IN_PROGRESS
    assert second not in driver.answers


def test_the_last_member_leaves_an_empty_generation_stored(driver):
    (a,) = driver.stable(1)
    assert driver.leave(a) == [E.NONE]
    assert (driver.group.state, driver.group.generation_id) == (GroupState.EMPTY, 2)
    last = driver.stored[-1]
    assert (last.members, last.protocol_name, last.leader_id) == ((), None, None)
    assert last.protocol_type == "consumer"
    assert last.state_timestamp_ms == driver.now_ms


def test_leaving_wakes_a_rebalance_that_waited_only_for_the_leaver(driver):
    a, b = driver.stable(2)
    token = driver.join(a)
    driver.leave(b)
    assert driver.answers[token].generation_id == 2


def test_leave_answers_per_member(driver):
    a, b = driver.stable(2)
    driver.join(new_member_id="pending")
    errors = driver.leave("pending", "nobody", b, LeavingMember("", "no such instance"))
    assert errors == [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE, E.UNKNOWN_MEMBER_ID]
    assert list(driver.group.members.by_id) == [a]


def test_who_leaves_while_it_waits_is_answered(driver):
    a, b = driver.join_all(2)
    waiting = driver.sync(b)
    driver.leave(b)
    assert driver.answers[waiting].error is E.UNKNOWN_MEMBER_ID
    driver.join(new_member_id="x")
    token = driver.join("x")
    driver.leave("x")
    assert driver.answers[token].error is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(a) is E.REBALANCE_IN_PROGRESS


def test_a_new_member_that_disappeared_does_not_hold_the_group_for_ever(make_driver):
    driver = make_driver(GroupLimits(new_member_join_timeout_ms=30_000))
    (a,) = driver.stable(1, rebalance_timeout_ms=600_000)
    lost = driver.join(requires_known_member_id=False, rebalance_timeout_ms=600_000)
    for _ in range(4):
        driver.pass_time(9_000)
        driver.heartbeat(a)
    assert driver.answers[lost].error is E.UNKNOWN_MEMBER_ID
    assert list(driver.group.members.by_id) == [a]


def test_an_old_members_wait_is_no_silence(driver):
    a, b = driver.stable(2, rebalance_timeout_ms=60_000)
    token = driver.join(a)
    for _ in range(5):
        driver.pass_time(9_000)
        driver.heartbeat(b)
    assert token not in driver.answers  # 45 s without a heartbeat of a, which waits
    driver.join(b)
    assert driver.answers[token].error is E.NONE
    driver.pass_time(10_000)  # and now its session counts again
    assert driver.heartbeat(a) is E.UNKNOWN_MEMBER_ID


# --- static members (KIP-345, KIP-814)


def static_pair(driver):
    tokens = [driver.join(instance_id=i, new_member_id=f"{i}-1") for i in ("s0", "s1")]
    driver.pass_time(0)
    assert [driver.answers[t].error for t in tokens] == [E.NONE, E.NONE]
    driver.stabilize(["s0-1", "s1-1"])


@pytest.fixture
def static(make_driver):
    driver = make_driver(GroupLimits(initial_rebalance_delay_ms=0), auto_store=True)
    static_pair(driver)
    return driver


def test_a_static_member_comes_back_without_a_rebalance(static):
    static.auto_store = False
    token = static.join(instance_id="s1", new_member_id="s1-2")
    assert token not in static.answers  # its id is stored first
    static.store()
    answer = static.answers[token]
    assert (answer.error, answer.member_id, answer.generation_id) == (E.NONE, "s1-2", 1)
    assert (answer.leader_id, answer.skip_assignment, answer.members) == ("s0-1", False, [])
    assert [m.member_id for m in static.stored[-1].members] == ["s0-1", "s1-2"]
    token = static.sync("s1-2", instance_id="s1")
    assert token not in static.answers
    static.store()
    assert static.answers[token].assignment == b"s1-1"
    assert static.group.state is GroupState.STABLE
    assert static.heartbeat("s1-1", instance_id="s1") is E.FENCED_INSTANCE_ID
    assert static.heartbeat("s1-1") is E.UNKNOWN_MEMBER_ID
    assert static.answers[static.join("s1-1", instance_id="s1")].error is E.FENCED_INSTANCE_ID
    assert static.answers[static.sync("s1-1", instance_id="s1")].error is E.FENCED_INSTANCE_ID
    assert static.leave(LeavingMember("s1-1", "s1")) == [E.FENCED_INSTANCE_ID]
    assert static.group.commit_error("s1-1", "s1", 1) is E.FENCED_INSTANCE_ID


def test_a_static_leader_skips_the_assignment_if_it_can(static):
    answer = static.answers[static.join(instance_id="s0", new_member_id="s0-2")]
    assert (answer.leader_id, answer.skip_assignment) == ("s0-2", True)
    assert [m[0] for m in answer.members] == ["s0-2", "s1-1"]
    token = static.join(instance_id="s0", new_member_id="s0-3", supports_skip_assignment=False)
    older = static.answers[token]
    assert (older.leader_id, older.skip_assignment, older.members) == ("s0-2", False, [])


def test_a_static_member_whose_new_id_cannot_be_stored_is_the_old_one(static):
    static.auto_store = False
    token = static.join(instance_id="s1", new_member_id="s1-2", protocols=(("range", b"x"),))
    static.store(E.COORDINATOR_NOT_AVAILABLE)
    assert static.answers[token].error is E.COORDINATOR_NOT_AVAILABLE
    assert static.heartbeat("s1-1", instance_id="s1") is E.NONE
    assert static.group.members.by_id["s1-1"].protocols == (("range", b"m"),)


def test_a_static_member_that_changes_the_protocol_rebalances(make_driver):
    driver = make_driver(GroupLimits(initial_rebalance_delay_ms=0))
    both = (("range", b""), ("sticky", b""))
    driver.join(instance_id="s0", new_member_id="s0-1", protocols=both)
    driver.pass_time(0)
    driver.stabilize(["s0-1"])
    assert driver.group.protocol_name == "range"
    token = driver.join(instance_id="s0", new_member_id="s0-2", protocols=both[::-1])
    assert driver.answers[token].generation_id == 2
    assert driver.group.protocol_name == "sticky"


def test_two_who_claim_one_instance_fence_each_other(make_driver):
    driver = make_driver()
    first = driver.join(instance_id="s0", new_member_id="s0-1")
    second = driver.join(instance_id="s0", new_member_id="s0-2")
    assert driver.answers[first].error is E.FENCED_INSTANCE_ID
    driver.pass_time(60_000)
    assert driver.answers[second].member_id == "s0-2"


def test_a_static_member_that_comes_back_during_completing_rebalances(make_driver):
    driver = make_driver(GroupLimits(initial_rebalance_delay_ms=0))
    driver.join(instance_id="s0", new_member_id="s0-1")
    driver.join(instance_id="s1", new_member_id="s1-1")
    driver.pass_time(0)
    waiting = driver.sync("s1-1", instance_id="s1")
    driver.join(instance_id="s1", new_member_id="s1-2")
    assert driver.answers[waiting].error is E.FENCED_INSTANCE_ID
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_an_absent_static_member_stays_until_its_session_ends(static):
    token = static.join("s0-1", instance_id="s0")
    static.pass_time(9_999)
    assert token not in static.answers
    assert static.heartbeat("s1-1", instance_id="s1") is E.REBALANCE_IN_PROGRESS
    for _ in range(6):
        static.pass_time(9_000)
        static.heartbeat("s1-1", instance_id="s1")
    # the rebalance timeout is over: who did not rejoin, but is static and alive, stays in
    assert static.answers[token].generation_id == 2
    assert list(static.group.members.by_id) == ["s0-1", "s1-1"]


def test_the_lead_goes_to_who_has_joined(static):
    static.join("s0-1", instance_id="s0")  # the leader starts a rebalance ...
    static.leave(LeavingMember("", "s0"))  # ... and an administrator removes it
    token = static.join("s1-1", instance_id="s1")
    assert static.answers[token].leader_id == "s1-1"


def test_an_administrator_removes_a_static_member_by_its_instance(static):
    assert static.leave(LeavingMember("", "s1")) == [E.NONE]
    assert list(static.group.members.by_id) == ["s0-1"]


# --- commits


def test_who_may_commit(driver):
    group = driver.group
    assert group.commit_error("", None, -1) is E.NONE  # simple consumer, empty group
    assert group.commit_error("x", None, 3) is E.UNKNOWN_MEMBER_ID
    a, b = driver.join_all(2)
    assert group.commit_error(a, None, 1) is E.REBALANCE_IN_PROGRESS
    driver.stabilize([a, b])
    assert group.commit_error("", None, -1) is E.UNKNOWN_MEMBER_ID
    assert group.commit_error(a, None, 0) is E.ILLEGAL_GENERATION
    assert group.commit_error("x", None, 1) is E.UNKNOWN_MEMBER_ID
    assert group.commit_error(a, "i", 1) is E.UNKNOWN_MEMBER_ID
    assert group.commit_error(a, None, 1) is E.NONE
    driver.join(a)  # while a rebalance is prepared, members still commit what they did
    assert group.commit_error(b, None, 1) is E.NONE


def test_a_commit_keeps_the_session(driver):
    a, _b = driver.stable(2)
    for _ in range(3):
        driver.pass_time(9_000)
        group_core.touch(driver.group, a, driver.now_ms)
    assert a in driver.group.members.by_id


# --- stored form, end


def test_a_restored_group_is_the_group(driver):
    members = driver.stable(3, protocols=(("range", subscription("t", "u")),))
    snapshot = driver.stored[-1]
    group = ClassicGroup.restore(snapshot, driver.limits)
    assert group.snapshot() == snapshot
    assert group.state is GroupState.STABLE
    assert group.is_subscribed_to("t")
    assert not group.is_subscribed_to("v")
    driver.group, driver.timer_ms = group, None
    driver.apply(group_core.start(group, driver.now_ms))
    assert driver.answers[driver.sync(members[1])].assignment == members[1].encode()
    driver.pass_time(10_000)
    assert group.state is GroupState.EMPTY  # nobody was heard of


def test_closing_answers_everybody(driver):
    a, b = driver.join_all(2)
    waiting = driver.sync(b)
    driver.apply(group_core.close(driver.group, E.NOT_COORDINATOR))
    assert driver.answers[waiting].error is E.NOT_COORDINATOR
    assert driver.heartbeat(a) is E.COORDINATOR_NOT_AVAILABLE
    assert driver.answers[driver.join(a)].error is E.COORDINATOR_NOT_AVAILABLE
    assert driver.answers[driver.sync(a)].error is E.COORDINATOR_NOT_AVAILABLE


# --- subscriptions


def test_subscriptions_are_read_and_anything_else_is_unknown():
    assert subscribed_topics(subscription("a", "b")) == {"a", "b"}
    assert subscribed_topics(subscription()) == frozenset()
    good = subscription("topic", "other")
    cut = len(good) - 4  # the user data's length is not looked at
    for size in range(cut):
        assert subscribed_topics(good[:size]) is None
    assert subscribed_topics(struct.pack(">hih", 0, 1, 2) + b"\xff\xff") is None
    assert subscribed_topics(struct.pack(">hi", 0, -1)) is None


def test_a_subscription_that_cannot_be_read_counts_as_all_topics(driver):
    driver.stable(1, protocols=(("range", b"?"),))
    assert driver.group.is_subscribed_to("anything")
