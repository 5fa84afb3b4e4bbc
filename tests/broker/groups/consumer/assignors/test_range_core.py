"""The assignor `range`: runs of neighbours, and co-partitioned topics."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer.assignors.input import AssignorInput, AssignorMember
from broker.groups.consumer.assignors.range_core import assign_range


def run(given_input):
    steps = assign_range(given_input)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


@given(st.integers(1, 9), st.integers(1, 30), st.data())
def test_range_copartition(members_count, partition_count, data):
    topics = [uuid.UUID(int=number) for number in (1, 2, 3)]
    names = st.none() | st.sampled_from("pqrstuvwxyz")
    instances = data.draw(st.lists(names, min_size=members_count, max_size=members_count))
    members = {
        f"m{number}": AssignorMember(frozenset(topics), instance_id=instances[number])
        for number in range(members_count)
    }
    targets = run(AssignorInput(members, dict.fromkeys(topics, partition_count)))
    quota, extra = divmod(partition_count, members_count)
    sizes = []
    for target in targets.values():
        first = target.get(topics[0], frozenset())
        assert all(target.get(each, frozenset()) == first for each in topics)
        assert first == frozenset(range(min(first, default=0), max(first, default=-1) + 1))
        sizes.append(len(first))
    assert sorted(sizes) == [quota] * (members_count - extra) + [quota + 1] * extra
    found = [p for target in targets.values() for p in target.get(topics[0], ())]
    assert sorted(found) == list(range(partition_count))


def test_static_members_come_first_by_their_instances():
    topic = uuid.UUID(int=1)
    members = {
        "a": AssignorMember(frozenset([topic])),
        "z": AssignorMember(frozenset([topic]), instance_id="one"),
        "y": AssignorMember(frozenset([topic]), instance_id="two"),
    }
    targets = run(AssignorInput(members, {topic: 3}))
    assert {member: set(target[topic]) for member, target in targets.items()} == {
        "z": {0}, "y": {1}, "a": {2},
    }  # fmt: skip


def test_topics_of_some():
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    members = {
        "a": AssignorMember(frozenset([one])),
        "b": AssignorMember(frozenset([one, two])),
        "c": AssignorMember(frozenset()),
    }
    assert run(AssignorInput(members, {one: 1, two: 3})) == {
        "a": {one: frozenset([0])},
        "b": {two: frozenset([0, 1, 2])},
        "c": {},
    }
