"""A member of the consumers' protocol of KIP-848.

A static one that leaves says mostly that it will be back, and then has what it had. Of one that
fell silent the place is free when its session is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.group_members.committing import RETURN_SHARE, static_name
from sim.group_members.heartbeating import LEAVING, HeartbeatingMember
from sim.group_members.member import REBALANCE_MS
from sim.group_members.topic_ids import TopicIds
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequestTopicPartitions

if TYPE_CHECKING:
    from collections.abc import Collection

    from sim.history import Partition
    from sim.world import World

#: Of ConsumerGroupHeartbeat.
VERSION = 1
#: A static member's epoch that leaves and will be back.
AWAY = -2


class ConsumerMember(HeartbeatingMember):
    group = "group-848"
    kind = "consumer"
    over_codes = HeartbeatingMember.over_codes | {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.instance = static_name(world, name)
        self._topics = TopicIds()

    async def _prepare(self) -> None:
        await self._topics.look_up(self._client, (topic for topic, _ in self._world.partitions))

    async def _exchange(self, *, is_full: bool, tells: bool) -> Collection[Partition] | None:
        answer = await self._ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self._id,
                member_epoch=self._epoch,
                instance_id=self.instance,
                rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
                subscribed_topic_names=self._topics.names() if is_full else None,
                topic_partitions=self._owned() if tells else None,
            ),
            ConsumerGroupHeartbeatResponse,
            VERSION,
        )
        self._check(ErrorCode(answer.error_code))
        self._epoch = answer.member_epoch
        if answer.assignment is None:
            return None
        return self._topics.partitions(answer.assignment.topic_partitions)

    def _owned(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=some)
            for topic_id, some in self._topics.grouped(self._assigned)
        ]

    async def _say_farewell(self, member_id: str) -> None:
        epoch = LEAVING
        if self.instance is not None and self._rng.random() < RETURN_SHARE:
            self._world.trace.count("static members away")
            epoch = AWAY
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=self.instance,
        )
        await self._ask(request, ConsumerGroupHeartbeatResponse, VERSION)
