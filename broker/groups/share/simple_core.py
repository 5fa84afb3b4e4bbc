"""The assignor `simple`: which partitions each member of a share group is to read. Pure.

A partition may have many readers. Every partition gets as many as it takes for each member to have
something, and no more: ⌈members / partitions⌉. Nobody has two more than somebody else. Below that,
members keep what they had. If all members are subscribed to the same topics this holds over all
partitions together, otherwise topic by topic, as in Kafka's SimpleAssignor.

The result depends on nothing but the input, not on the order of its mappings, either. A generator:
it yields what each step cost, in units of about a microsecond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from uuid import UUID

    from broker.groups.share.types import Target

#: By member id.
Targets = dict[str, "Target"]
_Key = tuple["UUID", int]


@dataclass(slots=True, frozen=True)
class AssignorMember:
    """`topics`: ids of those it is subscribed to. `target`: what it was to have until now."""

    topics: frozenset[UUID]
    target: Target = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class AssignorInput:
    """Members by their ids; of every topic that somebody is subscribed to the partitions that may
    be assigned, perhaps none."""

    members: Mapping[str, AssignorMember]
    partitions: Mapping[UUID, frozenset[int]]


def assign_simple(given: AssignorInput) -> Generator[int, None, Targets]:
    members = given.members
    order = sorted(members)
    has: dict[str, set[_Key]] = {member_id: set() for member_id in order}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        yield from _assign(given, order, sorted(*subscriptions), has)
    else:
        for topic_id in sorted(given.partitions):
            subscribers = [each for each in order if topic_id in members[each].topics]
            yield len(order)
            yield from _assign(given, subscribers, [topic_id], has)
    targets: Targets = {}
    for member_id, keys in has.items():
        found: dict[UUID, set[int]] = {}
        for topic_id, partition in keys:
            found.setdefault(topic_id, set()).add(partition)
        targets[member_id] = {topic_id: frozenset(found[topic_id]) for topic_id in sorted(found)}
        yield 1 + len(keys)
    return targets


def _assign(
    given: AssignorInput,
    members: Sequence[str],
    topics: Sequence[UUID],
    has: dict[str, set[_Key]],
) -> Generator[int, None, None]:
    """These topics to these members, all of which are subscribed to all of them."""
    keys = [(topic_id, each) for topic_id in topics for each in sorted(given.partitions[topic_id])]
    yield len(keys)
    if not keys or not members:
        return
    sharing = -(-len(members) // len(keys))
    readers: dict[_Key, set[str]] = {key: set() for key in keys}
    old = {
        member_id: [
            (topic_id, partition)
            for topic_id in topics
            for partition in sorted(given.members[member_id].target.get(topic_id, ()))
            if (topic_id, partition) in readers
        ]
        for member_id in members
    }
    yield len(keys) + len(members)
    quota = _quotas(members, sharing * len(keys), old)
    mine: dict[str, set[_Key]] = {member_id: set() for member_id in members}
    for member_id in members:
        for key in old[member_id]:
            if len(mine[member_id]) < quota[member_id] and len(readers[key]) < sharing:
                _give(key, member_id, mine, readers)
        yield 1 + len(old[member_id])
    needy = deque(each for each in members if len(mine[each]) < quota[each])
    for key in keys:
        while len(readers[key]) < sharing:
            yield 1 + _give_to_somebody(key, needy, mine, readers)
            if len(mine[needy[0]]) == quota[needy[0]]:
                needy.popleft()
            else:
                needy.rotate(-1)
    assert not needy
    for member_id in members:
        has[member_id] |= mine[member_id]
        yield 1


def _quotas(
    members: Sequence[str], total: int, old: Mapping[str, Sequence[_Key]]
) -> dict[str, int]:
    """How many each is to have. One more than others has who had most, so that an assignment of
    the same members and partitions moves nothing."""
    least, extra = divmod(total, len(members))
    richest = sorted(members, key=lambda each: (-len(old[each]), each))
    return {member_id: least + (at < extra) for at, member_id in enumerate(richest)}


def _give(
    key: _Key, member_id: str, mine: dict[str, set[_Key]], readers: dict[_Key, set[str]]
) -> None:
    mine[member_id].add(key)
    readers[key].add(member_id)


def _give_to_somebody(
    key: _Key, needy: deque[str], mine: dict[str, set[_Key]], readers: dict[_Key, set[str]]
) -> int:
    """One more reader for a partition that lacks some; who got something is needy[0] after that.
    The number of steps that it took."""
    for steps in range(len(needy)):
        if needy[0] not in readers[key]:
            _give(key, needy[0], mine, readers)
            return steps
        needy.rotate(-1)
    # Everybody who lacks something reads this one already. Then some other partition, which
    # this member does not read, has all its readers, and one of them does not read this one.
    member_id = needy[0]
    for steps, other in enumerate(sorted(readers.keys() - mine[member_id])):
        for each in sorted(readers[other] - readers[key]):
            mine[each].remove(other)
            readers[other].remove(each)
            _give(key, each, mine, readers)
            _give(other, member_id, mine, readers)
            return len(needy) + steps
    raise AssertionError("no partition can be exchanged")
