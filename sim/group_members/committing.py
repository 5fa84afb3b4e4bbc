"""A member that commits offsets.

It goes on from the group's committed offset, commits what it has read, and has no say any more once
its membership is over. A commit without an answer ends that here, too: the request may still be
under way, and of one membership any commit is as good as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.group_members.member import SESSION_MS, Member, OverError
from sim.workload import EARLIEST, LATEST
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import OffsetCommitRequest, OffsetCommitResponse
from wire.kafka.messages.offsets import OffsetCommitRequestPartition, OffsetCommitRequestTopic

if TYPE_CHECKING:
    from sim.history import Partition
    from sim.world import World

#: Of a member's turn: the chance that it commits.
COMMIT_SHARE = 0.4
#: Of the members that may be static ones: how many are.
STATIC_SHARE = 0.5
#: Of static members that leave: how many will be back, and keep their place.
RETURN_SHARE = 0.7
#: Who waited for so long may have been taken for gone.
LATE_SECONDS = SESSION_MS / 1000


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
        history = self._world.history
        floors = {each: history.committed(self.group, each) for each in committed}
        asked_at = trio.current_time()
        try:
            answer = await self._ask(request, OffsetCommitResponse, self.commit_version)
            if trio.current_time() - asked_at > LATE_SECONDS:
                self._take_late(committed, floors)
            self._take_committed(answer, committed)
        except Unanswered:
            self._coordinator = None
            self._commit_is_unknown()
            raise OverError from None

    def _commit_is_unknown(self) -> None:
        """It may be done later, while this member's generation or membership goes on."""
        return

    def _take_late(self, committed: dict[Partition, int], floors: dict[Partition, int]) -> None:
        """It was done when this was still a member, and others may have had the partition and have
        gone on since: it goes back only behind what was committed before it was asked for. What
        the group is at now, whoever fetches it is told."""
        for each, offset in committed.items():
            if offset >= floors[each]:
                known = self._world.history.committed(self.group, each)
                committed[each] = max(offset, known)

    def _take_committed(
        self, answer: OffsetCommitResponse, committed: dict[Partition, int]
    ) -> None:
        failures = []
        for topic_done in answer.topics:
            for done in topic_done.partitions:
                if done.error_code:
                    failures.append(ErrorCode(done.error_code))
                    continue
                partition = topic_done.name, done.partition_index
                self._world.history.commit(self.group, partition, committed[partition])
                self._world.trace.count("offsets committed")
        for code in failures:
            self._check(code)
