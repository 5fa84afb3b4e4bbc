"""Placing: a new topic's partitions get their leaders in the very change that makes the topic.

So a client that asks right after it finds leaders, and what an administrator assigned by hand is
never seen otherwise. What was made without (an older version's topics) the controller adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.assignment import ASSIGNMENTS_PATH, new_assignment
from broker.cluster.balance import spread, spread_each
from broker.cluster.topic import TopicChange
from metadata.limits import REQUEST_BYTES_MAX
from metadata.store import CreateOp, PutOp
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from broker.cluster.assigned import AssignedOwnership
    from broker.cluster.assignment import Assignment
    from broker.cluster.membership import Membership
    from broker.cluster.topic import Topic, TopicEvent
    from metadata.store import Op

#: Of a new topic's assignment; a reassignment of all its partitions doubles it.
ASSIGNMENT_BYTES_MAX = REQUEST_BYTES_MAX * 2 // 5
#: Work between two turns, about 1 ms: a list of brokers costs so much, and each broker one more.
UNITS_PER_TURN = 10_000
UNITS_PER_LIST = 20


class Placing:
    """What the catalog asks (`TopicCatalog.placing`), and the controller."""

    def __init__(self, membership: Membership, ownership: AssignedOwnership) -> None:
        self._membership = membership
        self._ownership = ownership
        #: Of topics on their way.
        self._new: dict[UUID, Assignment] = {}

    def lists(self, topic: Topic, count: int) -> list[tuple[int, ...]]:
        """Of brokers, the leader first, for `count` new partitions."""
        return spread(
            count,
            topic.replication_factor or 1,
            self._membership.candidates(),
            self._ownership.leading,
            start=topic.id.int % 997,
        )

    async def _lists(self, topic: Topic, count: int) -> list[tuple[int, ...]]:
        """As `lists`, in slices: 3,000 of 30 brokers take 17 ms."""
        brokers = self._membership.candidates()
        slices = Slices(max(UNITS_PER_TURN, UNITS_PER_LIST + len(brokers)))
        made: list[tuple[int, ...]] = []
        for each in spread_each(
            count,
            topic.replication_factor or 1,
            brokers,
            self._ownership.leading,
            start=topic.id.int % 997,
        ):
            made.append(each)
            if slices.due(UNITS_PER_LIST + len(brokers)):
                await slices.turn()
        return made

    async def _wanted(
        self, topic: Topic, count: int, by_hand: Sequence[Sequence[int]] | None
    ) -> list[tuple[int, ...]]:
        lists = await self._lists(topic, count)
        if by_hand is None:
            return lists
        # Bookies have ids too (broker/cluster/durability.py), but lead nothing.
        live = self._membership.live
        chosen = [tuple(n for n in node_ids if n in live) for node_ids in by_hand]
        return [mine or other for mine, other in zip(chosen, lists, strict=True)]

    async def create_ops(self, topic: Topic, by_hand: Sequence[Sequence[int]] | None) -> list[Op]:
        """To be done with the topic's own. KafkaError INVALID_PARTITIONS."""
        made = new_assignment(topic.name, await self._wanted(topic, topic.partition_count, by_hand))
        data = checked_bytes(made)
        self._new[topic.id] = made
        return [CreateOp(f"{ASSIGNMENTS_PATH}/{topic.id}", data, make_parents=True)]

    async def grow_ops(
        self, topic: Topic, count: int, by_hand: Sequence[Sequence[int]] | None
    ) -> list[Op]:
        """`topic` is what it was before `count` partitions are added. KafkaError as
        `create_ops`."""
        known = self._ownership.get(topic.id)
        if known is None or len(known.partitions) != topic.partition_count:
            return []
        # Of what is known now: whoever changes it meanwhile makes another version.
        version = self._ownership.version(topic.id)
        grown = known.grown(await self._wanted(topic, count, by_hand))
        return [PutOp(f"{ASSIGNMENTS_PATH}/{topic.id}", checked_bytes(grown), version)]

    def end(self, topic: Topic) -> None:
        """The change is done, or failed."""
        self._new.pop(topic.id, None)

    def on_topic(self, event: TopicEvent) -> None:
        """The catalog's listener: memory need not wait for the watch."""
        made = self._new.get(event.topic.id)
        if event.change is TopicChange.CREATED and made is not None:
            self._ownership.made(event.topic.id, made)
        elif event.change is TopicChange.PARTITIONS_ADDED:
            self._ownership.look_again(event.topic.id)


def checked_bytes(assignment: Assignment) -> bytes:
    """Its document. KafkaError INVALID_PARTITIONS if it might outgrow what metadata take in one
    node."""
    data = assignment.to_bytes()
    size_bytes = len(data)
    if size_bytes > ASSIGNMENT_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{len(assignment.partitions)} partitions with so many replicas each have an assignment"
            f" of {size_bytes} bytes, above the limit of {ASSIGNMENT_BYTES_MAX}",
        )
    return data
