"""Partitions spread over brokers that start together, where they were another set the last time.

Brokers that join a cluster are given new partitions only, as Kafka's are. The processes of one
server are another matter: who starts it with more of them wants all to have a share. So whoever
starts them calls this once they are all there. It is a reassignment like an administrator's
(broker/handlers/leaders.py): one compare-and-set a topic, one take-over a partition that moves.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from broker.cluster.assignment import Assignment, new_assignment
from broker.cluster.balance import Electorate, spread_each
from broker.cluster.placing import UNITS_PER_LIST, UNITS_PER_TURN
from metadata.store import MetadataError, NoNodeError
from runtime.logs import kv
from runtime.slices import Slices
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from broker.cluster.assigned import AssignedOwnership
    from broker.cluster.balance import Candidate
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.membership import Membership
    from broker.cluster.topic import Topic
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)

#: For which brokers partitions were spread the last time.
SPREAD_PATH = "/quire/spread"
FORMAT = 1


def is_uneven(assignments: Iterable[Assignment], node_ids: Iterable[int]) -> bool:
    """Asked where it is not noted who was there the last time: a broker that is not there is
    preferred, or one is preferred by none while another has two or more. What an administrator has
    put unevenly over all of them stays."""
    counts = Counter(
        one.replicas[0] for each in assignments for one in each.partitions if one.replicas
    )
    ours = [counts.pop(node_id, 0) for node_id in node_ids]
    return bool(counts) or (min(ours, default=0) == 0 and max(ours, default=0) > 1)


async def spread_if_others(
    store: MetadataStore,
    catalog: TopicCatalog,
    membership: Membership,
    ownership: AssignedOwnership,
    node_ids: Collection[int],
) -> bool:
    """Whether partitions were given other lists; those of all topics, then: `node_ids`, the brokers
    that start together, are not those of the last time, or that time did not come to its end. One
    of them that died meanwhile changes nothing. MetadataError."""
    mark = await _read_mark(store)
    wanted = sorted(node_ids)
    topics = sorted(catalog.all(), key=lambda topic: topic.name)
    if mark is None:
        # There was one broker only, or this is an older version's directory.
        known = [ownership.get(topic.id) for topic in topics]
        assigned = [one for one in known if one is not None]
        is_due = len(assigned) != len(topics) or is_uneven(assigned, wanted)
        version = None
    else:
        is_due, version = mark.node_ids != wanted, mark.version
        if not is_due:
            return False
    if is_due:
        version = await _write_mark(store, (), version)
        brokers = membership.candidates()
        await _spread(topics, brokers, ownership)
        if not {one.node_id for one in brokers}.issuperset(wanted):
            return True  # one of them has just died: the next start does it again
    await _write_mark(store, wanted, version)
    return is_due


async def forget_spread(store: MetadataStore) -> None:
    """For a broker that starts alone: others that start with it later look for themselves who has
    what. Without it the controller gives them what has no leaders, so a full disk ends no start."""
    try:
        await store.delete(SPREAD_PATH)
    except NoNodeError:
        pass
    except MetadataError as error:
        logger.warning("spread_not_forgotten", kv(error=error))


@dataclass(slots=True, frozen=True)
class _Mark:
    #: Empty while partitions are being spread.
    node_ids: list[int]
    version: int


async def _read_mark(store: MetadataStore) -> _Mark | None:
    """None if there is none. What cannot be read is one of a spread that was cut off."""
    try:
        node = await store.get(SPREAD_PATH)
    except NoNodeError:
        return None
    try:
        node_ids = [int(one) for one in json.loads(node.data)["brokers"]]
    except (ValueError, KeyError, TypeError):
        node_ids = []
    return _Mark(node_ids, node.version)


async def _write_mark(store: MetadataStore, node_ids: Sequence[int], version: int | None) -> int:
    """The new version; `version`: the present one, None if there is no mark."""
    document = {"format": FORMAT, "brokers": list(node_ids)}
    data = json.dumps(document, separators=(",", ":")).encode()
    if version is None:
        await store.create(SPREAD_PATH, data, make_parents=True)
        return 0
    return await store.put(SPREAD_PATH, data, version)


async def _spread(
    topics: Sequence[Topic], brokers: Sequence[Candidate], ownership: AssignedOwnership
) -> None:
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
