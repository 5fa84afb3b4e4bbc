"""Who gets what: even, with the least movement, and never two leaders for one epoch."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.assignment import (
    Assigned,
    Assignment,
    AssignmentFormatError,
    new_assignment,
)
from broker.cluster.balance import (
    BrokerState,
    Candidate,
    Electorate,
    spread,
    without_broker,
)

RUNNING, CORDONED, DRAINING = BrokerState.RUNNING, BrokerState.CORDONED, BrokerState.DRAINING

brokers = st.dictionaries(
    st.integers(0, 9),
    st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from(list(BrokerState))),
    min_size=1,
    max_size=7,
).map(lambda found: [Candidate(n, rack, state) for n, (rack, state) in found.items()])
lists = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple)
assigned = st.builds(Assigned, st.integers(-1, 9), st.integers(0, 99), lists)


def leaders(made):
    return Counter(one.leader for one in made)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 7), st.integers(0, 999))
def test_new_partitions_are_spread_evenly(count, length, broker_count, start):
    live = [Candidate(n) for n in range(broker_count)]
    made = spread(count, length, live, {}, start=start)
    assert all(len(set(one)) == len(one) == min(length, broker_count) for one in made)
    first = Counter(one[0] for one in made)
    assert max(first.values()) - min(first[n] for n in range(broker_count)) <= 1


@given(st.integers(1, 40), brokers, st.dictionaries(st.integers(0, 9), st.integers(0, 30)))
def test_new_partitions_level_what_there_is(count, live, leading):
    made = spread(count, 3, live, leading)
    usable = {one.node_id for one in live if one.state is RUNNING}
    if not usable:
        usable = {one.node_id for one in live if one.state is CORDONED}
    usable = usable or {one.node_id for one in live}
    assert {n for one in made for n in one} <= usable
    after = {n: leading.get(n, 0) for n in usable}
    for one in made:
        assert after[one[0]] == min(after.values())
        after[one[0]] += 1


def test_a_list_has_all_racks_before_one_twice():
    live = [Candidate(n, "ab"[n % 2]) for n in range(6)]
    for one in spread(60, 2, live, {}):
        assert {n % 2 for n in one} == {0, 1}
    alone = [Candidate(0, "a"), Candidate(1, "a"), Candidate(2, "b")]
    for one in spread(30, 3, alone, {}):
        assert sorted(one) == [0, 1, 2]


def test_the_second_of_the_lists_are_spread_too():
    """Those whom a dead broker's partitions fall to."""
    made = spread(60, 2, [Candidate(n) for n in range(4)], {})
    for leader in range(4):
        second = Counter(one[1] for one in made if one[0] == leader)
        assert len(second) == 3
        assert max(second.values()) - min(second.values()) <= 2


def test_nobody_there():
    assert spread(2, 3, [], {}) == [(), ()]
    made = new_assignment("t", [(), ()])
    assert [one.leader for one in made.partitions] == [-1, -1]


@given(st.lists(assigned, max_size=40), brokers)
def test_an_election_moves_what_it_must_and_nothing_else(before, live):
    states = {one.node_id: one.state for one in live}
    electorate = Electorate(live, leaders(before))
    after = [electorate.elect(one) for one in before]
    may_take = [n for n, state in states.items() if state is RUNNING]
    may_take = may_take or [n for n, state in states.items() if state is CORDONED]
    for old, new in zip(before, after, strict=True):
        assert new.replicas == old.replicas
        if states.get(old.leader) in (RUNNING, CORDONED) or not may_take:
            assert new is old
        else:
            assert new.leader in may_take
            assert new.epoch == old.epoch + 1
            listed = [n for n in old.replicas if states.get(n) is RUNNING]
            if listed:
                assert new.leader == (old.replicas[0] if old.replicas[0] in listed else new.leader)
                assert new.leader in listed


@given(st.integers(1, 60), st.integers(2, 6))
def test_a_dead_brokers_partitions_fall_to_all_others_evenly(count, broker_count):
    live = [Candidate(n) for n in range(broker_count)]
    made = new_assignment("t", spread(count, broker_count, live, {}))
    electorate = Electorate(live[1:], leaders(made.partitions))
    after = leaders([electorate.elect(one) for one in made.partitions])
    assert 0 not in after
    found = [after[n] for n in range(1, broker_count)]
    assert max(found) - min(found) <= 1


@given(st.lists(assigned, max_size=30), st.lists(st.tuples(st.integers(0, 4), brokers), max_size=8))
def test_epochs_only_rise_and_an_epoch_has_one_leader(before, rounds):
    """Whatever is asked, in whatever order."""
    led = {(n, one.epoch): one.leader for n, one in enumerate(before)}
    for action, live in rounds:
        electorate = Electorate(live, leaders(before))
        node_ids = tuple(one.node_id for one in live)
        decide = [
            electorate.elect,
            electorate.elect_preferred,
            lambda one, e=electorate, ids=node_ids: e.reassign(one, ids),
            lambda one, e=electorate: e.cancel(one) if one.before else one,
            lambda one, ids=node_ids, live=live: without_broker(one, ids[0], live[1:], {}),
        ][action]
        after = [decide(one) for one in before]
        for n, (old, new) in enumerate(zip(before, after, strict=True)):
            assert new.epoch >= old.epoch
            assert led.setdefault((n, new.epoch), new.leader) == new.leader
        before = after


def test_preferred_leaders_come_back_only_if_they_may():
    one = Assigned(2, 5, (1, 2))
    for state, leader in ((RUNNING, 1), (CORDONED, 2), (DRAINING, 2)):
        electorate = Electorate([Candidate(1, None, state), Candidate(2)], {2: 1})
        assert electorate.elect_preferred(one).leader == leader
    assert Electorate([Candidate(2)], {2: 1}).elect_preferred(one) is one


def test_a_reassignment_ends_when_its_leader_took_over():
    electorate = Electorate([Candidate(n) for n in (1, 2, 3)], {1: 1})
    one = electorate.reassign(Assigned(1, 0, (1, 2)), (3, 2))
    assert one == Assigned(3, 1, (3, 2), (1, 2))
    assert one.published(1, 9) is one
    assert one.published(3, 1) == Assigned(3, 1, (3, 2))
    assert electorate.cancel(one) == Assigned(1, 2, (1, 2))
    # A leader that is in the new list stays, so there is nothing to wait for.
    assert electorate.reassign(Assigned(1, 0, (1, 2)), (3, 1)) == Assigned(1, 0, (3, 1))


def test_a_second_reassignment_is_cancelled_to_the_first_list():
    electorate = Electorate([Candidate(n) for n in (1, 2, 3, 4)], {1: 1})
    one = electorate.reassign(Assigned(1, 0, (1, 2)), (3,))
    one = electorate.reassign(one, (4,))
    assert (one.leader, one.replicas, one.before) == (4, (4,), (1, 2))


def test_a_broker_that_is_gone_for_good_is_replaced():
    live = [Candidate(2), Candidate(3)]
    assert without_broker(Assigned(2, 1, (1, 2)), 1, live, {}).replicas == (3, 2)
    assert without_broker(Assigned(2, 1, (2, 3)), 1, live, {}).replicas == (2, 3)
    assert without_broker(Assigned(2, 1, (1, 2)), 1, live[:1], {}).replicas == (2,)
    assert without_broker(Assigned(2, 1, (1,)), 1, [], {}).replicas == (2,)


@given(st.lists(assigned, max_size=20), st.text(max_size=20))
def test_the_document_says_it_all(partitions, topic):
    made = Assignment(topic, tuple(partitions))
    assert Assignment.from_bytes(made.to_bytes()) == made


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"format":2,"topic":"t","partitions":[]}',
        b'{"format":1,"topic":"t","partitions":[[1,2]]}',
        b'{"format":1,"topic":"t","partitions":[[1,2,["x"]]]}',
        b'{"format":1,"topic":"t","partitions":[[true,2,[]]]}',
        b'{"format":1,"topic":"t","partitions":[[1,2,3]]}',
        b'{"format":1,"topic":5,"partitions":[]}',
    ],
)
def test_damaged_documents_are_refused(data):
    with pytest.raises(AssignmentFormatError):
        Assignment.from_bytes(data)


def test_an_epoch_that_falls_is_a_bug():
    with pytest.raises(AssertionError):
        Assignment("t", (Assigned(1, 5, (1,)),)).with_partitions({0: Assigned(2, 4, (1,))})


def test_a_document_stays_small():
    """One znode for the largest topic: ZooKeeper's limit is 1 MiB."""
    live = [Candidate(n) for n in range(1000, 1010)]
    assert len(new_assignment("t", spread(10_000, 3, live, {})).to_bytes()) < 300_000
