"""The assignor of share groups, against what it promises."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.share.simple_core import AssignorInput, AssignorMember, assign_simple

TOPICS = [uuid.UUID(int=number) for number in (1, 2, 3)]
TARGETS = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 6), max_size=4))


def assign(members, partitions):
    used = {topic for member in members.values() for topic in member.topics}
    found = AssignorInput(members, {topic: partitions[topic] for topic in used})
    steps = assign_simple(found)
    try:
        while True:
            assert next(steps) >= 0
    except StopIteration as end:
        return end.value


@st.composite
def groups(draw, *, alike=False):
    partitions = {topic: frozenset(range(draw(st.integers(0, 6)))) for topic in TOPICS}
    topics = st.just(frozenset(TOPICS)) if alike else st.frozensets(st.sampled_from(TOPICS))
    count = draw(st.integers(1, 14))
    members = {f"m{number}": AssignorMember(draw(topics), draw(TARGETS)) for number in range(count)}
    return members, partitions


def readers_of(targets):
    readers = {}
    for member_id, target in targets.items():
        for topic, partitions in target.items():
            for partition in partitions:
                readers.setdefault((topic, partition), set()).add(member_id)
    return readers


@given(groups(alike=True))
def test_all_partitions_are_shared_evenly(group):
    members, partitions = group
    targets = assign(members, partitions)
    keys = {(topic, each) for topic in TOPICS for each in partitions[topic]}
    sharing = -(-len(members) // len(keys)) if keys else 0
    readers = readers_of(targets)
    assert readers.keys() == keys
    assert all(len(each) == sharing for each in readers.values())
    counts = [sum(map(len, target.values())) for target in targets.values()]
    assert max(counts) - min(counts) <= 1
    assert targets.keys() == members.keys()


@given(groups())
def test_each_topic_is_shared_evenly_by_its_subscribers(group):
    members, partitions = group
    if len({member.topics for member in members.values()}) == 1:
        return
    targets = assign(members, partitions)
    readers = readers_of(targets)
    for topic in TOPICS:
        subscribers = [each for each, member in members.items() if topic in member.topics]
        count = len(partitions[topic])
        if not subscribers or not count:
            continue
        sharing = -(-len(subscribers) // count)
        for partition in partitions[topic]:
            assert len(readers[topic, partition]) == sharing
        counts = [len(targets[each].get(topic, ())) for each in subscribers]
        assert max(counts) - min(counts) <= 1
        assert all(topic not in targets[each] for each in members.keys() - set(subscribers))


@given(groups())
def test_what_is_assigned_stays(group):
    """The same members and partitions again: nothing moves, whatever it came from."""
    members, partitions = group
    once = assign(members, partitions)
    again = {each: AssignorMember(members[each].topics, once[each]) for each in members}
    assert assign(again, partitions) == once


@given(groups(alike=True))
def test_who_joins_takes_from_others_only_what_is_too_much(group):
    members, partitions = group
    once = assign(members, partitions)
    again = {each: AssignorMember(members[each].topics, once[each]) for each in members}
    again["n"] = AssignorMember(frozenset(TOPICS))
    after = assign(again, partitions)
    keys = sum(map(len, partitions.values()))
    if not keys:
        return
    quota = -(-(-(-len(again) // keys) * keys) // len(again))
    for member_id, target in once.items():
        had = {(topic, each) for topic, parts in target.items() for each in parts}
        has = {(topic, each) for topic, parts in after[member_id].items() for each in parts}
        if len(had) <= quota - 1:
            assert had <= has


def test_the_order_of_members_and_topics_does_not_count():
    members = {f"m{each}": AssignorMember(frozenset(TOPICS)) for each in range(5)}
    partitions = {topic: frozenset(range(3)) for topic in TOPICS}
    turned = dict(reversed(members.items()))
    back = dict(reversed(partitions.items()))
    assert assign(members, partitions) == assign(turned, back)


def test_nobody_and_nothing():
    assert assign({}, {}) == {}
    alone = {"m": AssignorMember(frozenset(TOPICS))}
    assert assign(alone, dict.fromkeys(TOPICS, frozenset())) == {"m": {}}
