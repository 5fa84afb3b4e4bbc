"""The assignor `uniform`: balance, stickiness, and that nothing depends on an order."""

from __future__ import annotations

import random
import uuid

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer.assignors.input import AssignorInput, AssignorMember
from broker.groups.consumer.assignors.uniform_core import assign_uniform


def run(assign, given_input):
    steps = assign(given_input)
    try:
        while True:
            assert next(steps) >= 0
    except StopIteration as end:
        return end.value


def topic(number):
    return uuid.UUID(int=number + 1)


def owners(targets):
    found = {}
    for member_id, target in targets.items():
        for topic_id, partitions in target.items():
            for partition in partitions:
                assert (topic_id, partition) not in found, "two owners"
                found[topic_id, partition] = member_id
    return found


def load(target):
    return sum(map(len, target.values()))


COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@st.composite
def histories(draw):
    """Partition counts, and who is in the group in each round."""
    counts = draw(COUNTS)
    rounds = draw(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=2, max_size=6))
    return counts, rounds


@given(histories())
def test_homogeneous_balance_and_stickiness(history):
    counts, rounds = history
    by_id = {topic(number): count for number, count in enumerate(counts)}
    topics = frozenset(by_id)
    before = {}
    for members in rounds:
        ids = [f"m{number}" for number in members]
        given_input = AssignorInput(
            {each: AssignorMember(topics, before.get(each, {})) for each in ids}, by_id
        )
        after = run(assign_uniform, given_input)
        found = owners(after)
        assert found.keys() == {(t, p) for t, count in by_id.items() for p in range(count)}
        loads = [load(target) for target in after.values()]
        assert max(loads) - min(loads) <= 1
        # What moves is what has to: partitions of those who left, and what is above the balance.
        kept = {each: before.get(each, {}) for each in ids}
        quota, extra = divmod(sum(counts), len(ids))
        surpluses = sorted((load(target) - quota for target in kept.values()), reverse=True)
        least = sum(max(each, 0) for each in surpluses)
        least -= min(extra, sum(each > 0 for each in surpluses))
        moved = sum(
            found[t, p] != each for each, target in kept.items() for t in target for p in target[t]
        )
        assert moved == least
        again = run(
            assign_uniform,
            AssignorInput({each: AssignorMember(topics, after[each]) for each in ids}, by_id),
        )
        assert all(again[each] is after[each] for each in ids), "nothing moves for nothing"
        before = after


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_count(history, random):
    counts, rounds = history
    by_id = {topic(number): count for number, count in enumerate(counts)}
    members = {
        f"m{number}": AssignorMember(frozenset(random.sample(sorted(by_id), len(by_id) - 1)))
        for number in rounds[0]
    }
    one = run(assign_uniform, AssignorInput(members, by_id))
    names = list(members)
    random.shuffle(names)
    other = run(assign_uniform, AssignorInput({each: members[each] for each in names}, by_id))
    assert one == other


@given(st.data())
def test_heterogeneous_terminates(data):
    """Nobody reads what it did not subscribe to, all that somebody reads is read, and no two
    subscribers of a topic are apart by two of what one of them could give the other."""
    counts = data.draw(COUNTS)
    by_id = {topic(number): count for number, count in enumerate(counts)}
    subscriptions = data.draw(
        st.dictionaries(
            st.integers(0, 8).map("m{}".format), st.sets(st.sampled_from(sorted(by_id))), min_size=1
        )
    )
    used = frozenset().union(*subscriptions.values())
    by_id = {t: count for t, count in by_id.items() if t in used}
    before = {}
    for _ in range(2):
        given_input = AssignorInput(
            {
                m: AssignorMember(frozenset(ts), before.get(m, {}))
                for m, ts in subscriptions.items()
            },
            by_id,
        )
        after = run(assign_uniform, given_input)
        found = owners(after)
        assert found.keys() == {(t, p) for t, count in by_id.items() for p in range(count)}
        for (topic_id, _), member_id in found.items():
            assert topic_id in subscriptions[member_id]
            for other, topics in subscriptions.items():
                if topic_id in topics:
                    assert load(after[member_id]) - load(after[other]) <= 1
        before = after


def test_uniform_stable():
    """A thousand joins and leaves: each moves no more than it has to."""
    rng = random.Random(1)
    by_id = {topic(0): 60, topic(1): 47}
    topics = frozenset(by_id)
    ids, targets, number = [], {}, 0
    for _ in range(1000):
        if not ids or (rng.random() < 0.5 and len(ids) < 40):
            number += 1
            ids.append(f"m{number}")
        else:
            ids.remove(rng.choice(ids))
        if not ids:
            targets = {}
            continue
        after = run(
            assign_uniform,
            AssignorInput({m: AssignorMember(topics, targets.get(m, {})) for m in ids}, by_id),
        )
        now = owners(after)
        moved = sum(
            now[key] != member for key, member in owners(targets).items() if member in after
        )
        assert moved <= 107 // len(ids) + 1, "as many as a newcomer gets"
        targets = after
