"""The assignor `uniform`: partitions are spread evenly over members, and stay where they are.

Two ways, as in Kafka. If all members read the same topics (*homogeneous*), each gets the number of
all partitions divided by that of members, some get one more; balance goes before stickiness, and
who has the one more keeps it (KAFKA-18688). Otherwise (*heterogeneous*) free partitions go to the
least loaded subscriber, topics with few subscribers first; then partitions move from members with
more to subscribers with at least two fewer, topic by topic, for at most 16 passes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from uuid import UUID

    from broker.groups.consumer.assignors.input import AssignorInput, Steps, Target, Targets

    Partitions = dict[UUID, set[int]]

#: Of the heterogeneous way: one pass looks at every topic.
PASSES_MAX = 16


def assign_uniform(given: AssignorInput) -> Steps:
    """The targets of all members; one whose target does not change keeps the very object."""
    if len({member.topics for member in given.members.values()}) <= 1:
        return (yield from _assign_homogeneous(given))
    return (yield from _assign_heterogeneous(given))


# --- all members read the same


def _assign_homogeneous(given: AssignorInput) -> Steps:
    ids = sorted(given.members)
    if not ids:
        return {}
    topics = sorted(given.members[ids[0]].topics)
    quota, extra = divmod(sum(given.partition_counts[each] for each in topics), len(ids))
    free: Partitions = {}
    for topic_id in topics:
        count = given.partition_counts[topic_id]
        free[topic_id] = set(range(count))
        yield 1 + count // 16
    kept: dict[str, Partitions] = {}
    counts: dict[str, int] = {}
    for member_id in ids:
        kept[member_id] = _still_free(given.members[member_id].target, free)
        counts[member_id] = sum(map(len, kept[member_id].values()))
        yield 1 + counts[member_id]
    quotas = _quotas(ids, counts, quota, extra)
    for member_id in ids:
        surplus = counts[member_id] - quotas[member_id]
        if surplus > 0:
            _give_back(kept[member_id], free, surplus)
            counts[member_id] = quotas[member_id]
            yield surplus
    rest = [(topic_id, p) for topic_id in topics for p in sorted(free[topic_id], reverse=True)]
    rest.reverse()
    yield len(rest)
    for member_id in ids:
        missing = max(quotas[member_id] - counts[member_id], 0)
        for _ in range(missing):
            topic_id, partition = rest.pop()
            kept[member_id].setdefault(topic_id, set()).add(partition)
        yield 1 + missing
    assert not rest, "quotas are as many as partitions"
    return (yield from _targets(given, kept))


def _quotas(ids: list[str], counts: dict[str, int], quota: int, extra: int) -> dict[str, int]:
    """How many partitions each is to have: the quota, and `extra` of them one more.

    One more is for those who have that already; what is left of it, for the first of the others.
    So as few partitions move as can be, and the next assignment moves none of them back."""
    with_more = [member_id for member_id in ids if counts[member_id] > quota]
    others = [member_id for member_id in ids if counts[member_id] <= quota]
    lucky = {*with_more[:extra], *others[: max(extra - len(with_more), 0)]}
    return {member_id: quota + (member_id in lucky) for member_id in ids}


def _still_free(target: Target, free: Partitions) -> Partitions:
    """What of a target there is, taken out of what is free."""
    kept: Partitions = {}
    for topic_id, partitions in target.items():
        there = free.get(topic_id)
        if there is None:
            continue
        mine = there & partitions
        if mine:
            there -= mine
            kept[topic_id] = mine
    return kept


def _give_back(kept: Partitions, free: Partitions, count: int) -> None:
    """The last `count` partitions of the last topics."""
    for topic_id in sorted(kept, reverse=True):
        mine = kept[topic_id]
        for partition in sorted(mine, reverse=True)[:count]:
            mine.remove(partition)
            free[topic_id].add(partition)
            count -= 1
        if not mine:
            del kept[topic_id]
        if not count:
            return


def _targets(given: AssignorInput, kept: dict[str, Partitions]) -> Steps:
    targets: Targets = {}
    for member_id, partitions in kept.items():
        before = given.members[member_id].target
        after = {topic_id: frozenset(mine) for topic_id, mine in partitions.items() if mine}
        targets[member_id] = before if before == after else after
        yield 1 + len(after)
    return targets


# --- they read different topics


def _assign_heterogeneous(given: AssignorInput) -> Steps:
    ids = sorted(given.members)
    subscribers: dict[UUID, list[str]] = {}
    for member_id in ids:
        for topic_id in given.members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
        yield 1 + len(given.members[member_id].topics)
    free: Partitions = {}
    for topic_id in subscribers:
        count = given.partition_counts[topic_id]
        free[topic_id] = set(range(count))
        yield 1 + count // 16
    kept: dict[str, Partitions] = {}
    load: dict[str, int] = {}
    for member_id in ids:
        member = given.members[member_id]
        mine = {t: each for t, each in member.target.items() if t in member.topics}
        kept[member_id] = _still_free(mine, free)
        load[member_id] = sum(map(len, kept[member_id].values()))
        yield 1 + load[member_id]
    order = sorted(
        subscribers,
        key=lambda each: (
            -given.partition_counts[each] / len(subscribers[each]),
            len(subscribers[each]),
            each,
        ),
    )
    for topic_id in order:
        yield from _fill(topic_id, subscribers[topic_id], sorted(free[topic_id]), kept, load)
    for _ in range(PASSES_MAX):
        moved = 0
        for topic_id in order:
            moved += yield from _even_out(topic_id, subscribers[topic_id], kept, load)
        if not moved:
            break
    return (yield from _targets(given, kept))


def _fill(
    topic_id: UUID,
    subscribers: list[str],
    partitions: list[int],
    kept: dict[str, Partitions],
    load: dict[str, int],
) -> Generator[int, None, None]:
    if partitions:
        heap = [(load[member_id], member_id) for member_id in subscribers]
        heapq.heapify(heap)
        yield len(heap)
        for partition in partitions:
            count, member_id = heap[0]
            kept[member_id].setdefault(topic_id, set()).add(partition)
            load[member_id] = count + 1
            heapq.heapreplace(heap, (count + 1, member_id))
            yield 1


def _even_out(
    topic_id: UUID, subscribers: list[str], kept: dict[str, Partitions], load: dict[str, int]
) -> Generator[int, None, int]:
    """Moves partitions of a topic; how many."""
    least = [(load[member_id], member_id) for member_id in subscribers]
    most = [(-load[m], m) for m in subscribers if kept[m].get(topic_id)]
    heapq.heapify(least)
    heapq.heapify(most)
    yield 2 * len(subscribers)
    moved = 0
    while most:
        count, giver = most[0]
        mine = kept[giver].get(topic_id)
        if not mine or -count != load[giver]:
            heapq.heappop(most)
            if mine:
                heapq.heappush(most, (-load[giver], giver))
            continue
        low, taker = least[0]
        if low != load[taker]:
            heapq.heapreplace(least, (load[taker], taker))
            continue
        if load[giver] - load[taker] < 2:
            break
        partition = max(mine)
        mine.remove(partition)
        kept[taker].setdefault(topic_id, set()).add(partition)
        load[giver] -= 1
        load[taker] += 1
        heapq.heappush(most, (-load[taker], taker))
        heapq.heappush(least, (load[giver], giver))
        moved += 1
        yield 3
    return moved
