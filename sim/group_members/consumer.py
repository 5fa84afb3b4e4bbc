"""A member of the protocol of KIP-848: one heartbeat joins, tells what it owns, and hears what is
its own.

As Java's client: what it has to give up it commits and gives up at once; after an answer that did
not come it tells everything again; who is fenced gives everything up and joins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.fetching import RETRY_SECONDS
from sim.group_members.committing import CommittingMember
from sim.group_members.member import REBALANCE_MS
from sim.group_members.safe_time import SafeTime
from sim.group_members.topic_ids import TopicIds
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequestTopicPartitions
from wire.kafka.messages.offsets import OffsetFetchRequestGroup, OffsetFetchRequestTopics

if TYPE_CHECKING:
    from sim.history import Partition
    from sim.world import World

JOINING, LEAVING = 0, -1
#: That name topics, and have a member's epoch.
FETCH_VERSION = 9
#: In half of the cases not at all. Well below REBALANCE_MS.
KEEP_SECONDS_MAX = 1.0


class ConsumerMember(CommittingMember):
    group = "group-848"
    over_codes = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
    commit_version = 9

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._topics = TopicIds()
        #: What it was told last; what it owns becomes that.
        self._target: set[Partition] = set()
        #: Whether the next heartbeat tells everything; whether it tells what is owned.
        self._is_full = self._is_changed = True
        self._lives = 0
        self._safe_time = SafeTime()
        #: Until then it goes on with what it has to give up, as a slow rebalance listener does.
        self._keeps_until: float | None = None

    async def _join(self) -> None:
        self._give_up_all()
        await self._topics.look_up(self._client, (topic for topic, _ in self._world.partitions))
        if not self._id:
            self._lives += 1
            self._id = f"{self.name}-{self._lives}"
        self._epoch = JOINING
        await self._beat()
        self._world.trace.count("consumer group joins")

    async def _beat(self) -> None:
        try:
            await self._tell()
        except Unanswered:
            if self._epoch == JOINING:
                raise
            # Its membership goes on, as far as it knows.
            self._coordinator = None
            await trio.sleep(RETRY_SECONDS)

    async def _tell(self) -> None:
        self._safe_time.asks(trio.current_time())
        is_full, tells = self._is_full, self._is_full or self._is_changed
        self._is_full, self._is_changed = True, True  # unless an answer comes
        answer = await self._ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self._id,
                member_epoch=self._epoch,
                rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
                subscribed_topic_names=self._topics.names() if is_full else None,
                topic_partitions=self._owned() if tells else None,
            ),
            ConsumerGroupHeartbeatResponse,
            1,
        )
        self._check(ErrorCode(answer.error_code))
        self._is_full = self._is_changed = False
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._target = set(self._topics.partitions(answer.assignment.topic_partitions))
            self._world.trace.event(
                self.name, "assigned", f"epoch {self._epoch}: {sorted(self._target)}"
            )
            self._world.trace.count("consumer group assignments")
        is_taken = not self._target.issuperset(self._assigned)
        assert self._coordinator is not None
        self._world.owners.told(
            self._id,
            self._epoch,
            self._target.union(self._assigned),
            self._coordinator,
            now=trio.current_time(),
            safe_until=self._safe_time.answered(is_taken=is_taken),
        )
        await self._reconcile()

    def _owned(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=some)
            for topic_id, some in self._topics.grouped(self._assigned)
        ]

    async def _reconcile(self) -> None:
        """What is not its own any more goes, what is new is taken up where the group is."""
        positions = self._reader.positions
        gone = [partition for partition in self._assigned if partition not in self._target]
        if gone:
            now = trio.current_time()
            if self._keeps_until is None:
                self._keeps_until = now + max(
                    0.0, 2 * KEEP_SECONDS_MAX * self._rng.random() - KEEP_SECONDS_MAX
                )
            if now < self._keeps_until:
                return
            self._keeps_until = None
            self._assigned = [each for each in self._assigned if each in self._target]
            self._is_changed = True
            last = {each: positions.pop(each) for each in gone if each in positions}
            await self._commit(last)
        new = sorted(self._target.difference(self._assigned))
        if new and await self._take_up(new):
            self._assigned += new
            self._is_changed = True

    async def _take_up(self, partitions: list[Partition]) -> bool:
        """False: this epoch is over, and the next heartbeat tells more."""
        floors = {p: self._world.history.committed(self.group, p) for p in partitions}
        topics = [
            OffsetFetchRequestTopics(
                name=name, partition_indexes=[n for topic, n in partitions if topic == name]
            )
            for name in sorted({topic for topic, _ in partitions})
        ]
        group = OffsetFetchRequestGroup(
            group_id=self.group, member_id=self._id, member_epoch=self._epoch, topics=topics
        )
        answer = await self._ask(
            OffsetFetchRequest(groups=[group]), OffsetFetchResponse, FETCH_VERSION
        )
        (found_group,) = answer.groups
        code = ErrorCode(found_group.error_code)
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            self._world.trace.count(f"group {code.name}")
            return False
        self._check(code)
        for topic_found in found_group.topics:
            for found in topic_found.partitions:
                self._check(ErrorCode(found.error_code))
                partition = topic_found.name, found.partition_index
                self._told(partition, found.committed_offset, floors[partition])
        return True

    def _give_up_all(self) -> None:
        self._world.owners.over(self._id)
        self._assigned, self._target = [], set()
        self._keeps_until = None
        self._safe_time = SafeTime()
        self._reader.positions.clear()
        self._is_full = self._is_changed = True

    def _forget(self) -> None:
        self._give_up_all()
        self._id = ""

    def _commit_is_unknown(self) -> None:
        """While this member is one its late commit may still be done: another one goes on."""
        self._forget()

    async def _leave(self) -> None:
        if not self._id:
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self._id, member_epoch=LEAVING
        )
        self._forget()
        try:
            await self._ask(request, ConsumerGroupHeartbeatResponse, 1)
        except Unanswered:
            self._coordinator = None
