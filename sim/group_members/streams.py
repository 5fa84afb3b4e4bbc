"""A member of a Kafka Streams group (KIP-1071).

Its topology has a subtopology for each topic that all use, so a task is a partition of one. The
subtopology of the topic with retention, which never grows, has a store: the coordinator makes the
changelog topic, and gives no task out before that is there. (Of the other one that would not do: a
changelog has as many partitions as there were when it was made, and a group whose source topic has
more from then on is at an end, in Kafka as well.) Of each task with a store another member, which
is another process, has a standby.

*standby*: a member was told a standby of a task without a store, or of one that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.streams.types import StatusCode
from sim.group_members.heartbeating import JOINING, LEAVING, HeartbeatingMember
from sim.group_members.member import REBALANCE_MS
from sim.history import Violation
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TopicInfo,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sim.history import Partition
    from sim.world import World

#: Of StreamsGroupHeartbeat.
VERSION = 0


class StreamsMember(HeartbeatingMember):
    group = "group-streams"
    kind = "streams"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        growing, _ = world.partitions[0]
        sources = sorted({topic for topic, _ in world.partitions})
        #: Subtopology -> its source topic, and its changelog.
        self._sources = {str(number): topic for number, topic in enumerate(sources)}
        self._changelogs = {
            number: f"{self.group}-store-{number}-changelog"
            for number, topic in self._sources.items()
            if topic != growing
        }
        #: Copies that it has, and that it was told last; it follows at once.
        self._standby: set[Partition] = set()
        self._told_standby: set[Partition] = set()

    async def _exchange(self, *, is_full: bool, tells: bool) -> Collection[Partition] | None:
        answer = await self._ask(
            StreamsGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self._id,
                member_epoch=self._epoch,
                rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
                topology=self._told_topology() if self._epoch == JOINING else None,
                active_tasks=self._tasks(self._assigned) if tells else None,
                standby_tasks=self._tasks(self._standby) if tells else None,
                warmup_tasks=[] if tells else None,
                # Each member is a process of its own, for all its lives.
                process_id=f"process-of-{self.name}" if is_full else None,
            ),
            StreamsGroupHeartbeatResponse,
            VERSION,
        )
        self._check(ErrorCode(answer.error_code))
        self._epoch = answer.member_epoch
        for status in answer.status or ():
            self._world.trace.count(f"streams status {StatusCode(status.status_code).name}")
        if answer.active_tasks is None:
            return None
        active = self._partitions(answer.active_tasks)
        self._told_standby = self._partitions(answer.standby_tasks or ())
        self._judge_standby(active)
        return active

    def _judge_standby(self, active: set[Partition]) -> None:
        has_store = {self._sources[number] for number in self._changelogs}
        for partition in sorted(self._told_standby):
            if partition in active or partition in self._assigned:
                raise Violation("standby", f"{self.name} has {partition}, and is to have a copy")
            if partition[0] not in has_store:
                raise Violation("standby", f"{self.name}: {partition} has no store")

    def _is_taken(self) -> bool:
        return super()._is_taken() or not self._told_standby.issuperset(self._standby)

    async def _reconcile(self) -> None:
        if self._told_standby != self._standby:
            self._standby = self._told_standby
            self._is_changed = True
            self._world.trace.count("standby tasks changed")
        await super()._reconcile()

    def _told_topology(self) -> StreamsGroupHeartbeatRequestTopology:
        return StreamsGroupHeartbeatRequestTopology(
            epoch=0,
            subtopologies=[
                StreamsGroupHeartbeatRequestSubtopology(
                    subtopology_id=number,
                    source_topics=[source],
                    state_changelog_topics=[
                        TopicInfo(name=name)
                        for each, name in self._changelogs.items()
                        if each == number
                    ],
                )
                for number, source in self._sources.items()
            ],
        )

    def _tasks(self, partitions: Collection[Partition]) -> list[TaskIds]:
        return [
            TaskIds(subtopology_id=number, partitions=some)
            for number, source in self._sources.items()
            if (some := sorted(n for topic, n in partitions if topic == source))
        ]

    def _partitions(self, tasks: Iterable[TaskIds]) -> set[Partition]:
        return {
            (self._sources[task.subtopology_id], number)
            for task in tasks
            for number in task.partitions
        }

    def _give_up_all(self) -> None:
        super()._give_up_all()
        self._standby, self._told_standby = set(), set()

    async def _say_farewell(self, member_id: str) -> None:
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group, member_id=member_id, member_epoch=LEAVING
        )
        await self._ask(request, StreamsGroupHeartbeatResponse, VERSION)
