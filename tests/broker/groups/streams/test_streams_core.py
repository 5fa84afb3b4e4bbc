"""Scenarios of one streams group: who is refused, when the epoch is raised, and how tasks move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.api import all_steps
from broker.groups.streams.endpoints import endpoints
from broker.groups.streams.events import CurrentSet, MemberSet
from broker.groups.streams.group import StreamsGroup
from broker.groups.streams.topology_core import configure
from broker.groups.streams.types import (
    Current,
    Held,
    InternalTopic,
    Member,
    MemberState,
    StatusCode,
    StreamsState,
    Subtopology,
    Target,
    Topology,
)
from wire.kafka.errors import ErrorCode as E

ALL = {("0", number) for number in range(4)} | {("1", 0), ("1", 1)}


def codes(result):
    return [each.code for each in result.statuses]


def test_the_first_member_has_all(driver):
    result = driver.join("a")
    assert (result.epoch, codes(result)) == (2, [])
    assert driver.active("a") == ALL
    assert driver.group.state is StreamsState.STABLE
    assert driver.group.metadata.validated_topology_epoch == 0


def test_a_steady_heartbeat_changes_nothing(driver):
    driver.join("a")
    size = len(driver.log)
    result = driver.beat("a")
    assert (result.tasks, result.epoch, len(driver.log)) == (None, 2, size)


def test_active_exclusive_during_move(driver):
    driver.join("a")
    driver.join("b")
    assert driver.active("b") == set()
    assert driver.state("b") is MemberState.UNRELEASED_TASKS
    moving = ALL - {("0", 0), ("0", 1), ("1", 0)}
    told = driver.beat("a")  # told what to give back; says nothing yet
    assert driver.state("a") is MemberState.UNREVOKED_TASKS
    assert told.epoch == 2, "the epoch waits for the tasks"
    for _ in range(3):
        driver.beat("b")
        driver.beat("a")  # a heartbeat without tasks gives nothing back
        assert driver.active("b") == set()
    driver.ack("a")
    assert (driver.state("a"), driver.epochs["a"]) == (MemberState.STABLE, 3)
    driver.beat("b")
    assert driver.active("b") == ALL - driver.active("a")
    assert len(driver.active("b")) == len(moving) == 3
    assert driver.group.state is StreamsState.STABLE


def test_standby_other_process(make_driver):
    driver = make_driver(standbys=1)
    driver.join("a1", "P")
    driver.join("a2", "P")
    driver.settle()
    assert driver.standby("a1") | driver.standby("a2") == set(), "there is no other process"
    driver.join("b", "Q")
    driver.settle()
    on_p = driver.active("a1") | driver.active("a2")
    stateful = {task for task in ALL if task[0] == "0"}
    assert driver.standby("b") == on_p & stateful
    assert driver.standby("a1") | driver.standby("a2") == driver.active("b") & stateful


def test_a_standby_becomes_active_where_it_is(make_driver):
    driver = make_driver(standbys=1)
    driver.join("a", "P")
    driver.join("b", "Q")
    driver.settle()
    had = driver.standby("b")
    assert had
    driver.leave("a")
    driver.settle("b")
    assert driver.active("b") == ALL
    assert driver.standby("b") == set()


def test_streams_stale_topology(driver):
    driver.topology = replace(driver.topology, epoch=1)
    driver.join("new")
    result = driver.join("old", topology=replace(driver.topology, epoch=0, subtopologies=()))
    assert codes(result) == [StatusCode.STALE_TOPOLOGY]
    assert "old" in driver.group.members
    assert driver.group.topology == driver.topology
    assert codes(driver.beat("old")) == [StatusCode.STALE_TOPOLOGY]
    assert codes(driver.beat("new")) == []


@pytest.mark.parametrize("epoch", [0, 1])
def test_another_topology_is_refused(driver, group_error, epoch):
    driver.join("a")
    other = replace(driver.topology, epoch=epoch, subtopologies=driver.topology.subtopologies[:1])
    with pytest.raises(group_error) as refused:
        driver.join("b", topology=other)
    assert refused.value.code is E.INVALID_REQUEST
    assert "b" not in driver.group.members


def test_streams_missing_source(driver):
    driver.topics.remove("side")
    result = driver.join("a")
    assert codes(result) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert driver.active("a") == set()
    assert driver.group.state is StreamsState.NOT_READY
    driver.topics.add("side", 2)
    result = driver.beat("a")
    assert codes(result) == []
    assert driver.active("a") == ALL
    assert driver.group.state is StreamsState.STABLE


def test_internal_topics_are_asked_for(driver):
    driver.topics.remove("g-store-changelog")
    result = driver.join("a")
    assert codes(result) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert result.to_create == {"g-store-changelog": InternalTopic("g-store-changelog", 4)}
    assert driver.active("a") == set()
    driver.topics.add("g-store-changelog", 4)
    assert driver.beat("a").to_create == {}
    assert driver.active("a") == ALL


def test_a_source_topic_that_grows_is_a_problem_of_its_changelog(driver):
    driver.join("a")
    epoch = driver.group.epoch
    driver.topics.add("in", 5)
    result = driver.beat("a")
    assert codes(result) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert driver.group.epoch == epoch + 1
    driver.settle()
    assert driver.active("a") == set()


def test_settings_of_the_assignor_raise_the_epoch(make_driver):
    driver = make_driver()
    driver.join("a", "P")
    driver.join("b", "Q")
    driver.settle()
    epoch = driver.group.epoch
    driver.standbys = 1
    driver.beat("a")
    assert driver.group.epoch == epoch + 1
    driver.settle()
    assert len(driver.standby("a") | driver.standby("b")) == 4


def test_no_assignment_within_the_delay(driver):
    driver.is_delayed = True
    result = driver.join("a")
    assert (result.epoch, codes(result)) == (1, [StatusCode.ASSIGNMENT_DELAYED])
    assert driver.active("a") == set()
    driver.join("b")
    driver.is_delayed = False
    driver.settle()
    assert {len(driver.active(each)) for each in "ab"} == {3}


def test_joins_within_the_interval_share_a_target(make_driver):
    driver = make_driver(interval_ms=1000)
    driver.join("a")
    epoch = driver.group.assignment_epoch
    for each in "bcd":
        assert codes(driver.join(each)) == [StatusCode.ASSIGNMENT_DELAYED]
    assert driver.group.assignment_epoch == epoch
    driver.now_ms += 1000
    driver.settle()
    assert driver.group.assignment_epoch == driver.group.epoch == epoch + 3


# --- epochs


def test_a_lost_answer_is_told_again(driver):
    driver.join("a")
    driver.join("b")
    driver.beat("a")
    owned = driver.owned["a"]
    first = driver.beat("a", owned=owned)
    assert first.epoch == 3
    again = driver.beat("a", 2, owned=owned)
    assert (again.epoch, again.tasks) == (3, driver.group.current["a"].assigned)


def test_a_lost_answer_that_took_tasks_is_told_again(driver):
    """The epoch is the same, as the member has not given them back: only what it owns tells."""
    driver.join("a")
    driver.now_ms += 600
    owned = driver.owned["a"]
    driver.join("b")
    took = driver.beat("a", owned=owned)
    assert took.tasks is not None
    assert driver.group.current["a"].state is MemberState.UNREVOKED_TASKS
    again = driver.beat("a", owned=owned)
    assert (again.epoch, again.tasks) == (took.epoch, took.tasks)
    driver.settle()
    assert driver.is_stable()


def test_a_lost_answer_that_took_what_was_not_begun_is_told_again(driver):
    """What the member owns is what it has by now; it had been told of more, and goes on to that."""
    driver.join("a")
    driver.now_ms += 600
    told = driver.ack("a").tasks
    begun = {each: numbers for each, numbers in driver.owned["a"].active.items() if each == "0"}
    driver.join("b")
    driver.now_ms += 600
    lost = driver.beat("a", owned=Target(begun))
    assert told is not None
    assert lost.tasks is not None
    has = Target({each: frozenset(dated) for each, dated in lost.tasks.active.items()})
    assert driver.beat("a", lost.epoch, owned=has).tasks is not None


def test_a_lost_answer_that_gave_what_was_free_is_told_again(driver):
    driver.join("a")
    driver.now_ms += 600
    driver.settle()
    driver.join("b")
    driver.now_ms += 600
    driver.settle("b")
    driver.ack("a")
    driver.ack("a")
    before = driver.owned["b"]
    gave = driver.ack("b")
    assert gave.tasks is not None
    again = driver.beat("b", gave.epoch, owned=before)
    assert (again.epoch, again.tasks) == (gave.epoch, gave.tasks)
    assert driver.beat("b", gave.epoch).tasks is None


@pytest.mark.parametrize(
    ("epoch", "owned"),
    [
        (4, Target()),
        (1, Target()),
        (2, None),
        (2, Target({"0": frozenset([3])})),
        (2, Target({}, {"0": frozenset([0])})),
    ],
)
def test_fenced(driver, group_error, epoch, owned):
    driver.join("a")
    driver.join("b")
    driver.settle()
    with pytest.raises(group_error) as refused:
        driver.beat("a", epoch, owned=owned)
    assert refused.value.code is E.FENCED_MEMBER_EPOCH


def test_rejoining_keeps_the_tasks(driver):
    driver.join("a")
    driver.join("b")
    driver.settle()
    had = driver.active("a")
    result = driver.join("a")
    assert result.tasks is not None
    driver.settle()
    assert driver.active("a") == had


def test_unknown_members(driver, group_error):
    driver.join("a")
    for epoch in (1, -1):
        with pytest.raises(group_error) as refused:
            driver.beat("x", epoch)
        assert refused.value.code is E.UNKNOWN_MEMBER_ID


def test_a_full_group(make_driver, group_error):
    driver = make_driver(members_max=1)
    driver.join("a")
    with pytest.raises(group_error) as refused:
        driver.join("b")
    assert refused.value.code is E.GROUP_MAX_SIZE_REACHED
    driver.join("a")


@pytest.mark.parametrize(
    "owned",
    [
        Target({"9": frozenset([0])}),
        Target({"0": frozenset([4])}),
        Target({"0": frozenset([-1])}),
        Target({}, {"1": frozenset([2])}),
    ],
)
def test_tasks_that_there_are_not(driver, group_error, owned):
    driver.join("a")
    with pytest.raises(group_error) as refused:
        driver.beat("a", owned=owned)
    assert refused.value.code is E.INVALID_REQUEST


def test_who_leaves_frees_its_tasks(driver):
    driver.join("a")
    driver.join("b")
    driver.beat("a")  # something is pending
    result = driver.leave("a")
    assert result.epoch == -1
    driver.settle()
    assert driver.active("b") == ALL
    driver.leave("b")
    assert driver.group.state is StreamsState.EMPTY
    assert driver.group.topology is not None


def test_a_process_has_a_task_once():
    group = StreamsGroup("g")
    for member_id, process_id in (("a", "p"), ("b", "p"), ("c", "q")):
        group.apply(MemberSet(member_id, Member(member_id, process_id=process_id)))
    copy = Held(standby={"0": frozenset([1])})
    group.apply(CurrentSet("a", Current(assigned=copy)))
    active = Held(active={"0": {2: 1}})
    group.apply(CurrentSet("b", Current(assigned=active)))
    numbers = frozenset(range(4))
    assert group.free_active("a", "0", numbers) == [0, 1, 3], "its own copy may become active"
    assert group.free_active("b", "0", numbers) == [0, 2, 3], "its neighbour has a copy of 1"
    assert group.free_active("c", "0", numbers) == [0, 1, 3], "others' copies do not count"
    assert group.free_copies("a", "0", numbers) == [0, 1, 3]
    assert group.free_copies("b", "0", numbers) == [0, 2, 3]
    assert group.free_copies("c", "0", numbers) == [0, 1, 2, 3]


def test_endpoints_have_the_partitions_that_there_are(make_driver):
    """A task of a number that only some of its topics have."""
    topology = Topology(0, (Subtopology("0", ("wide", "narrow")),))
    driver = make_driver(topology=topology)
    driver.topics.add("wide", 4)
    driver.topics.add("narrow", 2)
    driver.join("a", user_endpoint=("h", 1))
    steps = endpoints(driver.group, configure(topology, driver.topics))
    [told] = all_steps(steps)
    assert told.active == {"wide": [0, 1, 2, 3], "narrow": [0, 1]}


def test_a_coordinator_that_knows_fewer_partitions_ends_nobody(driver, group_error):
    """One that took over before it heard that a topic grew: what the coordinator before it gave the
    member is taken back and given again. What nobody gave it is refused as ever."""
    driver.join("a")
    driver.topics.add("side", 4)
    driver.settle("a")
    grown = driver.active("a")
    assert grown == ALL | {("1", 2), ("1", 3)}
    driver.topics.add("side", 2)
    driver.settle("a")
    assert driver.active("a") == ALL
    with pytest.raises(group_error) as refused:
        driver.beat("a", owned=Target({"1": frozenset([3])}))
    assert refused.value.code is E.INVALID_REQUEST
    driver.topics.add("side", 4)
    driver.settle("a")
    assert driver.active("a") == grown
