"""Partitions spread over brokers that start together, where they were another set the last time.

Brokers that join a cluster are given new partitions only, as Kafka's are. The processes of one
server are another matter: who starts it with more of them wants all to have a share. So whoever
starts them calls this once they are all there. It is a reassignment like an administrator's
(broker/handlers/leaders.py): one compare-and-set a topic, one take-over a partition that moves.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from broker.cluster.assignment import Assignment, new_assignment
from broker.cluster.balance import Electorate, spread_each
from broker.cluster.placing import UNITS_PER_LIST, UNITS_PER_TURN
from runtime.logs import kv
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from broker.cluster.assigned import AssignedOwnership
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.membership import Membership

logger = logging.getLogger(__name__)


def is_uneven(assignments: Iterable[Assignment], node_ids: Iterable[int]) -> bool:
    """A broker that is not there is preferred, or one is preferred by none while another has two
    or more. What an administrator has put unevenly over all of them stays."""
    counts = Counter(
        one.replicas[0] for each in assignments for one in each.partitions if one.replicas
    )
    ours = [counts.pop(node_id, 0) for node_id in node_ids]
    return bool(counts) or (min(ours, default=0) == 0 and max(ours, default=0) > 1)


async def spread_if_uneven(
    catalog: TopicCatalog, membership: Membership, ownership: AssignedOwnership
) -> bool:
    """Whether partitions were given other lists; those of all topics, then. MetadataError."""
    topics = sorted(catalog.all(), key=lambda topic: topic.name)
    known = [ownership.get(topic.id) for topic in topics]
    assigned = [one for one in known if one is not None]
    if len(assigned) == len(topics) and not is_uneven(assigned, membership.live):
        return False
    brokers = membership.candidates()
    slices = Slices(max(UNITS_PER_TURN, UNITS_PER_LIST + len(brokers)))
    electorate = Electorate(brokers, ownership.leading)
    counts: Counter[int] = Counter()
    changes = {}
    for topic in topics:
        lists = []
        length = topic.replication_factor or 1
        start = topic.id.int % 997
        for one in spread_each(topic.partition_count, length, brokers, counts, start=start):
            lists.append(one)
            if slices.due(UNITS_PER_LIST + len(brokers)):
                await slices.turn()
        counts.update(one[0] for one in lists if one)
        changes[topic.id] = partial(_with_lists, topic.name, lists, electorate)
    await ownership.change_many(changes)
    logger.info("partitions_spread", kv(topics=len(topics), brokers=len(brokers)))
    return True


def _with_lists(
    topic: str,
    lists: Sequence[tuple[int, ...]],
    electorate: Electorate,
    assignment: Assignment | None,
) -> Assignment:
    """Its leaders are the first of each list. The same document comes to the same."""
    if assignment is None:
        return new_assignment(topic, list(lists))
    missing = list(lists[len(assignment.partitions) :])
    moved: Mapping[int, tuple[int, ...]] = dict(enumerate(lists[: len(assignment.partitions)]))
    changed = {
        number: electorate.elect_preferred(
            electorate.reassign(assignment.partitions[number], replicas)
        )
        for number, replicas in moved.items()
    }
    return assignment.with_partitions(changed).grown(missing)
