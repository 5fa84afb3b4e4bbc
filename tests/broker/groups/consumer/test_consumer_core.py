"""Scenarios of one consumer group, each by its name: what must hold."""

from __future__ import annotations

import uuid

import pytest

from broker.groups.consumer.events import CurrentSet
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.consumer.target_core import is_target_due
from broker.groups.consumer.types import ConsumerState, Current, GroupError, GroupTimes, MemberState
from wire.kafka.errors import ErrorCode as E

STABLE, UNREVOKED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS


def told(result):
    return {(t.int, p) for t, partitions in result.assignment.items() for p in partitions}


def refused(driver, code, *arguments, **keywords):
    log = list(driver.log)
    with pytest.raises(GroupError) as caught:
        driver.beat(*arguments, **keywords)
    assert caught.value.code is code
    assert driver.log == log
    return caught.value


def test_first_epoch_is_two(driver):
    """KAFKA-20268: a group is made at epoch 1, and its first member raises it."""
    result = driver.join("a", "t")
    assert (result.error, result.member_id, result.epoch) == (E.NONE, "a", 2)
    assert told(result) == {(1, 0), (1, 1), (1, 2), (1, 3)}
    assert driver.group.state is ConsumerState.STABLE


def test_join_lost_response(driver):
    first = driver.join("a", "t")
    size = len(driver.log)
    again = driver.join("a", "t")
    assert (again.epoch, told(again)) == (first.epoch, told(first))
    assert len(driver.log) == size
    assert list(driver.group.members) == ["a"]


def test_heartbeat_lost_response(driver):
    driver.join("a", "t")
    driver.join("b", "t")
    driver.settle()
    driver.leave("b")
    before = driver.epochs["a"]
    owned = {t: set(p) for t, p in driver.owned["a"].items()}
    driver.beat("a", owned=owned)  # its answer is lost
    assert driver.epochs["a"] > before
    topic = driver.topics.get("t").id
    foreign = {topic: {0, 1, 2, 3, 9}}
    refused(driver, E.FENCED_MEMBER_EPOCH, "a", before, owned=foreign)
    refused(driver, E.FENCED_MEMBER_EPOCH, "a", before)
    assert driver.beat("a", before, owned=owned).epoch == driver.epochs["a"]
    refused(driver, E.FENCED_MEMBER_EPOCH, "a", before - 1, owned=owned)
    refused(driver, E.FENCED_MEMBER_EPOCH, "a", driver.epochs["a"] + 1, owned=owned)


def test_revoke_needs_owned(driver):
    driver.join("a", "t")
    driver.join("b", "t")
    epoch = driver.epochs["a"]
    for _ in range(3):
        result = driver.beat("a")
        assert result.epoch == epoch
        assert driver.state("a") is UNREVOKED
    assert len(driver.partitions("a")) == 2
    assert driver.ack("a").epoch == epoch + 1
    assert driver.state("a") is STABLE


def test_unreleased_until_ack(driver):
    driver.join("a", "t")
    assert told(driver.join("b", "t")) == set()
    assert driver.state("b") is UNRELEASED
    assert driver.beat("b").assignment is None
    driver.beat("a")
    assert driver.beat("b").assignment is None, "it is told, and has not given anything back"
    driver.ack("a")
    assert len(told(driver.beat("b"))) == 2
    assert driver.is_stable()


def test_leave_while_pending(driver):
    driver.join("a", "t")
    driver.join("b", "t")
    driver.beat("a")
    assert driver.state("a") is UNREVOKED
    assert driver.leave("a").epoch == -1
    driver.settle("b")
    assert len(driver.partitions("b")) == 4


def test_rejoin_epoch0_same_id(driver):
    driver.join("a", "t")
    driver.join("b", "t")
    driver.beat("a")
    assert driver.state("a") is UNREVOKED
    # Its client lost everything: what it was to give back is free with that.
    result = driver.join("a", "t")
    assert result.member_id == "a"
    assert len(told(result)) == 2
    assert driver.state("a") is STABLE
    assert len(told(driver.beat("b"))) == 2


def test_an_unknown_member_and_group_epochs(driver):
    driver.join("a", "t")
    refused(driver, E.UNKNOWN_MEMBER_ID, "b", 1)
    refused(driver, E.UNKNOWN_MEMBER_ID, "b", -1)


def test_static_bounce(driver):
    driver.join("a", "t", instance_id="i")
    driver.join("b", "t", instance_id="j")
    driver.settle()
    had, epoch = driver.partitions("a"), driver.group.epoch
    assert driver.leave("a", -2, instance_id="i").epoch == -2
    assert driver.group.state is ConsumerState.STABLE
    result = driver.join("a2", "t", instance_id="i")
    assert driver.group.epoch == epoch
    assert driver.partitions("a2") == had
    assert result.epoch == epoch
    assert "a" not in driver.group.members
    driver.leave("a2", -2, instance_id="i")
    assert driver.join("a2", "t", instance_id="i").epoch == epoch, "by the same id, too"


def test_static_conflict(driver):
    driver.join("a", "t", instance_id="i")
    error = refused(
        driver, E.UNRELEASED_INSTANCE_ID, "b", 0,
        topics=("t",), instance_id="i", rebalance_timeout_ms=1, owned={},
    )  # fmt: skip
    assert "a" in error.message
    assert driver.beat("a", instance_id="i").error is E.NONE
    refused(driver, E.FENCED_INSTANCE_ID, "b", 2, instance_id="i")
    refused(driver, E.FENCED_INSTANCE_ID, "b", -2, instance_id="i")
    refused(driver, E.UNKNOWN_MEMBER_ID, "a", 2, instance_id="x")


def test_static_expired(driver):
    driver.join("a", "t", instance_id="i")
    driver.join("b", "t")
    driver.settle()
    driver.leave("a", -2, instance_id="i")
    driver.settle("b")
    assert len(driver.partitions("b")) == 2
    driver.fence("a")
    driver.settle("b")
    assert len(driver.partitions("b")) == 4


def test_instance_id_change(driver):
    """KAFKA-20747: the old mapping is gone."""
    driver.join("a", "t", instance_id="i")
    driver.join("a", "t", instance_id="j")
    assert driver.group.static_ids == {"j": "a"}
    driver.join("b", "t", instance_id="i")
    assert driver.group.static_ids == {"i": "b", "j": "a"}


def test_interval_batches(make_driver):
    driver = make_driver(interval_ms=1000)
    driver.topics.add("t", 10)
    driver.join("m0", "t")
    for number in range(1, 10):
        driver.now_ms += 50
        driver.join(f"m{number}", "t")
        assert driver.group.state is ConsumerState.ASSIGNING
    targets = {id(target) for target in driver.group.targets.values()}
    assert len(targets) == 1
    epoch = driver.group.assignment_epoch
    driver.now_ms += 1000
    driver.settle()
    assert driver.group.assignment_epoch == driver.group.epoch == epoch + 9
    assert all(len(driver.partitions(f"m{number}")) == 1 for number in range(10))


def test_interval_zero(make_driver):
    """Whoever comes has a target of his own at once, and there is nothing to wait for."""
    driver = make_driver(interval_ms=0)
    driver.topics.add("t", 12)
    for number in range(4):
        driver.join(f"m{number}", "t")
        assert driver.group.epoch == driver.group.assignment_epoch == 2 + number
        assert not is_target_due(driver.group, driver.context())
    driver.settle()
    assert [len(driver.partitions(f"m{number}")) for number in range(4)] == [3] * 4


def test_topic_grows(driver):
    driver.join("a", "t")
    epoch = driver.group.epoch
    driver.topics.add("t", 6)
    assert len(told(driver.beat("a"))) == 6
    assert driver.group.epoch == epoch + 1


def test_topic_deleted(driver):
    driver.topics.add("u", 1)
    driver.join("a", "t", "u")
    driver.topics.remove("u")
    driver.settle()
    assert driver.partitions("a") == {("t", number) for number in range(4)}


def test_topic_recreated(driver):
    driver.join("a", "t")
    old = driver.topics.get("t").id
    driver.topics.remove("t")
    new = driver.topics.add("t", 4).id
    assert new != old
    driver.settle()
    assert set(driver.group.current["a"].assigned) == {new}


def test_assignor_majority_change(driver):
    driver.join("a", "t")
    driver.join("b", "t")
    driver.settle()
    epoch = driver.group.epoch
    driver.beat("a", server_assignor="range")
    assert driver.group.assignor(driver.assignors) == "range"
    assert driver.group.epoch == epoch + 1


def test_narrower_subscription(driver):
    driver.topics.add("u", 2)
    driver.join("a", "t", "u")
    result = driver.beat("a", topics=("u",))
    assert {t for t, _ in told(result)} == {2}
    driver.settle()
    assert driver.partitions("a") == {("u", 0), ("u", 1)}


def test_regex_resolves(driver):
    result = driver.join("a", regex="t.*")
    assert (result.epoch, told(result)) == (1, set())
    driver.resolve(**{"t.*": ["t"]})
    assert len(told(driver.beat("a"))) == 4
    size = len(driver.log)
    driver.resolve(**{"t.*": ["t"]})
    assert len(driver.log) == size, "nothing changed, nothing is written"


def test_regex_to_none_bumps(driver):
    driver.join("a", regex="t.*")
    driver.resolve(**{"t.*": ["t"]})
    driver.settle()
    epoch = driver.group.epoch
    driver.resolve(**{"t.*": []})
    assert driver.group.epoch == epoch + 1
    driver.settle()
    assert driver.partitions("a") == set()


def test_regex_forbidden_topic(driver):
    """A pattern stands for what it was resolved to, whatever topics its words match: whoever
    resolves it leaves out what a member may not see, and nothing else brings that in."""
    driver.topics.add("t-secret", 4)
    driver.join("a", regex="t.*")
    driver.resolve(**{"t.*": ["t"]})
    driver.join("b", regex="t.*")
    driver.settle()
    seen = driver.partitions("a") | driver.partitions("b")
    assert seen == {("t", number) for number in range(4)}
    driver.topics.add("t-secret", 8)
    driver.settle()
    assert driver.partitions("a") | driver.partitions("b") == seen


def test_regex_invalid(driver):
    driver.join("a", "t")
    refused(driver, E.INVALID_REGULAR_EXPRESSION, "a", regex="[")
    assert driver.beat("a").error is E.NONE


def test_names_plus_regex_overlap(driver):
    driver.topics.add("u", 2)
    driver.join("a", "t", regex="[tu]")
    driver.resolve(**{"[tu]": ["t", "u"]})
    driver.settle()
    assert len(driver.partitions("a")) == 6


def test_the_last_subscriber_takes_the_regex_with_it(driver):
    driver.join("a", regex="t.*")
    driver.join("b", regex="t.*")
    driver.resolve(**{"t.*": ["t"]})
    driver.settle()
    driver.leave("a")
    assert "t.*" in driver.group.regexes
    driver.beat("b", regex="")
    assert driver.group.regexes == {}
    driver.settle("b")
    assert driver.partitions("b") == set()


def test_size_limit(make_driver):
    driver = make_driver(members_max=1)
    driver.topics.add("t", 1)
    driver.join("a", "t", instance_id="i")
    refused(
        driver, E.GROUP_MAX_SIZE_REACHED, "b", 0, topics=("t",), rebalance_timeout_ms=1, owned={}
    )
    driver.join("a", "t", instance_id="i")
    driver.leave("a", -2, instance_id="i")
    driver.join("b", "t", instance_id="i")


def test_a_state_that_is_not_known_owns_nothing(driver):
    from broker.groups.consumer.events import CurrentSet
    from broker.groups.consumer.types import Current

    driver.join("a", "t")
    current = driver.group.current["a"]
    driver.group.apply(
        CurrentSet("a", Current(current.epoch, current.previous_epoch, MemberState.UNKNOWN, {}, {}))
    )
    with pytest.raises(GroupError, match="state"):
        driver.beat("a")


def test_a_narrower_subscription_waits_for_its_member(driver):
    """Who does not say what he has still has it."""
    driver.topics.add("u", 2)
    driver.join("a", "t", "u")
    driver.settle()
    epoch = driver.epochs["a"]
    driver.times = GroupTimes(assignment_interval_ms=60_000)
    narrow = driver.beat("a", topics=("t",), owned=None)
    assert driver.group.assignment_epoch == epoch, "before there is a new target"
    current = driver.group.current["a"]
    assert (current.state, narrow.epoch) == (UNREVOKED, epoch)
    assert {topic.int for topic in current.pending} == {driver.topics.get("u").id.int}


def test_who_loses_what_another_has_by_now_takes_nothing_from_it():
    """Records of a log that was compacted come in any order."""
    group, topic = ConsumerGroup("g"), uuid.UUID(int=1)
    given = Current(3, 3, STABLE, {topic: {0: 3}}, {})
    group.apply(CurrentSet("a", given))
    group.apply(CurrentSet("b", given))
    group.apply(CurrentSet("a", None))
    assert group.owners == {topic: {0: "b"}}
    assert group.is_held_by_other("a", topic, 0)
