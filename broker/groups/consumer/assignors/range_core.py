"""The assignor `range`: of each topic every subscriber gets a run of neighbouring partitions.

Members are in one order for all topics, static ones first by their instance ids, then the others by
member id. So of topics with as many partitions each and the same subscribers a member gets the same
partitions (it is *co-partitioned*: joins by key need that). Nothing is sticky, and racks do not
count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from broker.groups.consumer.assignors.input import AssignorInput, Steps, Targets


def assign_range(given: AssignorInput) -> Steps:
    """Of n partitions and m subscribers each gets n // m, and the first n % m one more."""
    members = given.members
    order = sorted(
        members,
        key=lambda member_id: (
            members[member_id].instance_id is None,
            members[member_id].instance_id or member_id,
        ),
    )
    subscribers: dict[UUID, list[str]] = {}
    targets: Targets = {}
    for member_id in order:
        targets[member_id] = {}
        topics = members[member_id].topics
        for topic_id in topics:
            subscribers.setdefault(topic_id, []).append(member_id)
        yield 1 + len(topics)
    for topic_id in sorted(subscribers):
        ids = subscribers[topic_id]
        count = given.partition_counts[topic_id]
        quota, extra = divmod(count, len(ids))
        start = 0
        for at, member_id in enumerate(ids):
            end = start + quota + (at < extra)
            if end > start:
                targets[member_id][topic_id] = frozenset(range(start, end))
            start = end
        yield len(ids) + count // 8
    return targets
