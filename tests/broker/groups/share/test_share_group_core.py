"""Heartbeats of share groups: the table of epochs, what is assigned, and which partitions are to be
begun where."""

from __future__ import annotations

import pytest

from broker.groups.share import state_core
from broker.groups.share.changes import Changes
from wire.kafka.errors import ErrorCode as E


def test_the_first_member_and_its_partitions(driver):
    told = driver.join("a", "t")
    assert (told.epoch, told.heartbeat_interval_ms, told.assignment) == (1, 5_000, {})
    topic = driver.topics.get("t")
    assert driver.begin() == {(topic.id, each): (1, -1) for each in range(4)}
    driver.begun([(topic.id, each) for each in range(4)])
    told = driver.beat("a")
    assert told.epoch == 2
    assert told.assignment == {topic.id: frozenset(range(4))}
    told = driver.beat("a")
    assert (told.epoch, told.assignment) == (2, None)


def test_a_steady_group_changes_nothing(driver):
    driver.join("a", "t")
    driver.begin_all()
    driver.beat("a")
    size = len(driver.log)
    for _ in range(3):
        assert driver.beat("a").assignment is None
    assert len(driver.log) == size
    assert driver.beat("a", topics=("t",)).assignment, "who tells everything is told everything"
    assert len(driver.log) == size


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, None), (3, None), (2, None), (1, E.FENCED_MEMBER_EPOCH), (4, E.FENCED_MEMBER_EPOCH)],
)
def test_epochs(driver, group_error, epoch, error):
    """Its own, the one before, and 0, by which anybody may come back."""
    driver.join("a", "t")
    driver.begin_all()
    driver.beat("a")
    driver.join("b", "t")
    driver.beat("a")
    assert driver.epochs["a"] == 3
    if error is None:
        assert driver.beat("a", epoch).epoch == 3
    else:
        size = len(driver.log)
        with pytest.raises(group_error) as caught:
            driver.beat("a", epoch)
        assert caught.value.code is error
        assert len(driver.log) == size


@pytest.mark.parametrize(("epoch", "error"), [(1, E.UNKNOWN_MEMBER_ID), (-1, E.UNKNOWN_MEMBER_ID)])
def test_unknown_members(driver, group_error, epoch, error):
    driver.join("a", "t")
    with pytest.raises(group_error) as caught:
        driver.beat("b", epoch)
    assert caught.value.code is error


def test_a_full_group(make_driver, group_error):
    driver = make_driver(members_max=2)
    driver.topics.add("t", 1)
    driver.join("a", "t")
    driver.join("b", "t")
    with pytest.raises(group_error) as caught:
        driver.join("c", "t")
    assert caught.value.code is E.GROUP_MAX_SIZE_REACHED
    assert driver.join("a", "t").epoch, "a member may come back"


def test_partitions_have_many_readers(driver):
    for member_id in ("a", "b", "c", "d", "e", "f"):
        driver.join(member_id, "t")
    driver.begin_all()
    for member_id in sorted(driver.epochs):
        driver.beat(member_id)
    readers = driver.readers()
    assert len(readers) == 4
    assert all(len(each) == 2 for each in readers.values())


def test_who_leaves_is_replaced(driver):
    driver.join("a", "t")
    driver.join("b", "t")
    driver.begin_all()
    driver.beat("a")
    driver.beat("b")
    assert driver.leave("a").epoch == -1
    told = driver.beat("b")
    assert {each for parts in told.assignment.values() for each in parts} == {0, 1, 2, 3}
    driver.leave("b")
    assert driver.group.state.value == "Empty"
    assert driver.group.partitions.initialized, "what was begun stays"


def test_a_narrower_subscription_counts_at_once(make_driver):
    driver = make_driver(interval_ms=60_000)
    t, u = driver.topics.add("t", 2), driver.topics.add("u", 2)
    driver.join("a", "t", "u")
    driver.begin_all()
    driver.now_ms += 60_000
    assert driver.beat("a").assignment.keys() == {t.id, u.id}
    told = driver.beat("a", topics=("u",))
    assert told.assignment == {u.id: frozenset({0, 1})}
    assert driver.group.epoch > driver.group.assignment_epoch, "the others wait for their time"


def test_assignments_wait_for_their_interval(make_driver):
    driver = make_driver(interval_ms=1_000)
    driver.topics.add("t", 4)
    driver.join("a", "t")
    driver.begin_all()
    assert driver.beat("a").assignment is None
    driver.now_ms += 1_000
    assert driver.beat("a").assignment
    epoch = driver.group.assignment_epoch
    for member_id in ("b", "c"):
        driver.join(member_id, "t")
    assert driver.group.assignment_epoch == epoch
    driver.now_ms += 1_000
    driver.beat("b")
    assert driver.group.assignment_epoch == driver.group.epoch


# --- states of partitions


def test_partition_added_latest_loses_nothing(driver):
    """Scenario 61."""
    driver.join("a", "t")
    driver.begin_all()
    topic = driver.topics.add("t", 6)
    assert driver.begin() == {(topic.id, 4): (2, 0), (topic.id, 5): (2, 0)}
    driver.begun([(topic.id, 4), (topic.id, 5)])
    assert set(driver.beat("a").assignment[topic.id]) == set(range(6))


def test_topic_recreated_fresh(driver):
    """Scenario 62: another id is another topic, and begins where new topics do."""
    driver.join("a", "t")
    driver.begin_all()
    driver.beat("a")
    gone = driver.topics.remove("t")
    driver.forget(gone.id)
    new = driver.topics.add("t", 2)
    told = driver.beat("a")
    assert told.assignment == {}
    begun = driver.begin()
    assert {key: start for key, (_, start) in begun.items()} == {(new.id, 0): -1, (new.id, 1): -1}
    driver.begun(list(begun))
    assert driver.beat("a").assignment == {new.id: frozenset({0, 1})}
    assert gone.id not in driver.group.partitions.initialized


def test_only_what_is_begun_is_assigned(driver):
    driver.join("a", "t")
    topic = driver.topics.get("t")
    begun = driver.begin()
    assert not driver.begin(), "on their way"
    driver.begun([(topic.id, 2)])
    assert driver.beat("a").assignment == {topic.id: frozenset({2})}
    driver.begun([key for key in begun if key[1] != 2])
    assert driver.beat("a").assignment == {topic.id: frozenset(range(4))}


def test_an_attempt_after_another_has_a_later_epoch(driver):
    driver.join("a", "t")
    first = driver.begin()
    driver.attempts.clear()  # nobody answered
    second = driver.begin()
    assert second.keys() == first.keys()
    assert all(second[key][0] > first[key][0] for key in first)


def test_of_very_many_partitions_whole_topics_are_begun_together(driver):
    for number in range(3):
        driver.topics.add(f"u{number}", 400)
    driver.join("a", "u0", "u1", "u2")
    first = driver.begin()
    assert len(first) == 800
    driver.begun(list(first))
    second = driver.begin()
    assert len(second) == 400
    assert {start for _, start in second.values()} == {-1}


def test_deletion_keeps_what_is_not_known_to_be_gone(driver):
    driver.join("a", "t")
    driver.begin_all()
    driver.leave("a")
    topic = driver.topics.get("t")
    changes = Changes(driver.group)
    state_core.begin_deletion(changes, [topic.id])
    driver.take(changes, {})
    assert driver.group.partitions.deleting == {topic.id: "t"}
    keys = state_core.keys_of(driver.group.partitions, driver.topics, [topic.id])
    assert keys == [(topic.id, each) for each in range(4)], "of a topic that is there, all"
    changes = Changes(driver.group)
    state_core.deleted(changes, [topic.id])
    state_core.end(changes)
    driver.take(changes, {})
    assert driver.group.epoch == 0
    assert not driver.group.has_state
