"""A member that commits offsets.

It goes on from the group's committed offset, commits what it has read, and has no say any more once
its membership is over. A commit without an answer ends that here, too: the request may still be
under way, and of one membership any commit is as good as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.group_members.member import Member, OverError
from sim.workload import EARLIEST, LATEST
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from wire.kafka.messages.offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from sim.history import Partition
    from sim.world import World

#: Of OffsetFetch: names topics, and may have a member's epoch.
FETCH_VERSION = 9
#: Of a member's turn: the chance that it commits.
COMMIT_SHARE = 0.4
#: Of the members that may be static ones: how many are.
STATIC_SHARE = 0.5
#: Of static members that leave: how many will be back, and keep their place.
RETURN_SHARE = 0.7


def topics_of(partitions: Collection[Partition]) -> list[OffsetFetchRequestTopics]:
    """As OffsetFetch asks for them."""
    return [
        OffsetFetchRequestTopics(
            name=name, partition_indexes=[n for topic, n in partitions if topic == name]
        )
        for name in sorted({topic for topic, _ in partitions})
    ]


def static_name(world: World, name: str) -> str | None:
    """The `group.instance.id` of a client of that name; None: it is a dynamic member."""
    rng = world.rng_for(f"{name}/static")
    return f"i-{name.rsplit('-', 1)[-1]}" if rng.random() < STATIC_SHARE else None


class CommittingMember(Member):
    commit_version: int

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        #: The end of what is to be read, once nobody writes any more.
        self._ends: dict[Partition, int] = {}

    def _is_done(self) -> bool:
        return self._world.is_draining and self._world.history.is_group_done(
            self.group, self._world.partitions
        )

    async def _work(self) -> None:
        world, rng = self._world, self._rng
        if world.is_quiet:
            await self._look_for_ends()
        if self._assigned:
            partition = self._assigned[rng.randrange(len(self._assigned))]
            records = await self._reader.poll(partition) or []
            world.history.consumed(self.group, partition, [offset for offset, _ in records])
        if rng.random() < COMMIT_SHARE or world.is_draining:
            await self._commit(self._reader.positions)

    def _lose_id(self) -> None:
        self._forget()

    async def _look_for_ends(self) -> None:
        for partition in self._assigned:
            if partition not in self._ends:
                end = await self._reader.offset(partition, LATEST)
                start = await self._reader.offset(partition, EARLIEST)
                if end is not None and start is not None:
                    self._ends[partition] = end
                    self._world.history.group_ends[partition] = end

    def _told(self, partition: Partition, offset: int, floor: int) -> None:
        """Where the group is; `floor` had been committed before that was asked."""
        self._world.history.fetched(self.group, partition, offset, floor)
        if offset >= 0:
            self._reader.positions[partition] = offset

    async def _commit(self, positions: dict[Partition, int]) -> None:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        committed = dict(positions)
        for (topic, number), offset in committed.items():
            one = OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata=None
            )
            topics.setdefault(topic, []).append(one)
        if not topics:
            return
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self._epoch,
            member_id=self._id,
            group_instance_id=self.instance,
            topics=[
                OffsetCommitRequestTopic(name=topic, partitions=some)
                for topic, some in topics.items()
            ],
        )
        floors = {each: self._world.history.committed(self.group, each) for each in committed}
        try:
            answer = await self._ask(request, OffsetCommitResponse, self.commit_version)
            if late := self._take_committed(answer, committed, floors):
                await self._look_where(late)
        except Unanswered:
            self._coordinator = None
            self._commit_is_unknown()
            raise OverError from None

    def _commit_is_unknown(self) -> None:
        """It may be done later, while this member's generation or membership goes on."""
        return

    def _take_committed(
        self,
        answer: OffsetCommitResponse,
        committed: dict[Partition, int],
        floors: dict[Partition, int],
    ) -> list[Partition]:
        """`floors` had been committed before it was asked. What was answered when the coordinator
        may have given up on this member: others may have gone on from there already."""
        history, owners = self._world.history, self._world.owners[self.group]
        is_late = owners.may_be_gone(self._id, trio.current_time())
        late, failures = [], []
        for topic_done in answer.topics:
            for done in topic_done.partitions:
                if done.error_code:
                    failures.append(ErrorCode(done.error_code))
                    continue
                partition = topic_done.name, done.partition_index
                offset = committed[partition]
                if is_late:
                    history.commit_late(self.group, partition, offset, floors[partition])
                    late.append(partition)
                else:
                    history.commit(self.group, partition, offset)
                self._world.trace.count("offsets committed")
        for code in failures:
            self._check(code)
        return late

    async def _look_where(self, partitions: list[Partition]) -> None:
        """A late answer does not tell whether its commit came before the others' or went back
        behind them: where the group is does."""
        self._world.trace.count("commits answered late")
        history = self._world.history
        floors = {each: history.committed(self.group, each) for each in partitions}
        group = OffsetFetchRequestGroup(group_id=self.group, topics=topics_of(partitions))
        answer = await self._ask(
            OffsetFetchRequest(groups=[group]), OffsetFetchResponse, FETCH_VERSION
        )
        (found_group,) = answer.groups
        self._check(ErrorCode(found_group.error_code))
        for topic_found in found_group.topics:
            for found in topic_found.partitions:
                self._check(ErrorCode(found.error_code))
                partition = topic_found.name, found.partition_index
                history.fetched(self.group, partition, found.committed_offset, floors[partition])
