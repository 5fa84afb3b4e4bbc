"""A member of a consumer group, of either protocol: it reads, commits, falls silent and leaves.

It goes on from the group's committed offset, commits what it has read, and has no say any more once
its membership is over. A commit without an answer ends that here, too: the request may still be
under way, and of one membership any commit is as good as any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import trio

from sim.client import KafkaClient, Unanswered
from sim.fetching import RETRY_SECONDS
from sim.history import Violation
from sim.workload import EARLIEST, LATEST, RETRIABLE, THINK_SECONDS, Consumer
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from wire.kafka.messages.offsets import OffsetCommitRequestPartition, OffsetCommitRequestTopic

if TYPE_CHECKING:
    from typing import TypeVar

    from sim.history import Partition
    from sim.world import World
    from wire.kafka.message import Message

    M = TypeVar("M", bound=Message)

SESSION_MS, REBALANCE_MS = 2_000, 3_000
#: A turn of a member that reads: chance that it commits, crashes, leaves.
COMMIT_SHARE, CRASH_SHARE, LEAVE_SHARE = 0.4, 0.01, 0.01


class OverError(Exception):
    """This membership, or its generation, is over."""


class Member(ABC):
    #: Name, what its protocol says of a membership that is over, the version of its commits.
    group: str
    over_codes: frozenset[ErrorCode]
    commit_version: int

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._reader = Consumer(world, name)
        self._client: KafkaClient = self._reader.client
        #: Where the group's coordinator was last.
        self._coordinator: tuple[str, int] | None = None
        self._id = ""
        #: The generation, or the member's epoch.
        self._epoch = -1
        self._assigned: list[Partition] = []
        #: The end of what is to be read, once nobody writes any more.
        self._ends: dict[Partition, int] = {}

    async def run(self) -> None:
        while not self._is_done():
            try:
                await self._join()
                while not self._is_done():
                    await self._turn()
            except OverError:
                await trio.sleep(RETRY_SECONDS)
            except Unanswered:
                self._coordinator = None
                await trio.sleep(RETRY_SECONDS)
        await self._leave()

    @abstractmethod
    async def _join(self) -> None:
        """Returns when the member may read; OverError, Unanswered."""

    @abstractmethod
    async def _beat(self) -> None:
        """One heartbeat; OverError, Unanswered."""

    @abstractmethod
    async def _leave(self) -> None:
        """If it can be told; else the session ends by itself."""

    @abstractmethod
    def _forget(self) -> None:
        """Nobody hears of this membership any more."""

    def _is_done(self) -> bool:
        return self._world.is_draining and self._world.history.is_group_done(
            self.group, self._world.partitions
        )

    async def _ask(self, body: Message, answer: type[M], version: int | None = None) -> M:
        """Of the coordinator; Unanswered also if there is none."""
        if self._coordinator is None:
            found = await self._client.ask_any(
                FindCoordinatorRequest(key=self.group, key_type=0), FindCoordinatorResponse
            )
            if found.error_code:
                self._check(ErrorCode(found.error_code))
                raise Unanswered("no coordinator")
            self._coordinator = (found.host, found.port)
        return await self._client.ask_at(self._coordinator, body, answer, version)

    def _check(self, code: ErrorCode) -> None:
        """OverError if the membership is over, Unanswered if another broker is to be asked."""
        if code is ErrorCode.NONE:
            return
        self._world.trace.count(f"group {code.name}")
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        if code in self.over_codes:
            raise OverError
        if code not in RETRIABLE:
            raise Violation("refused", f"{self.name}: {code.name}")
        raise Unanswered(code.name)

    # -- reading -------------------------------------------------------------------------------

    async def _turn(self) -> None:
        world, rng = self._world, self._rng
        if world.is_quiet:
            await self._look_for_ends()
        if self._assigned:
            partition = self._assigned[rng.randrange(len(self._assigned))]
            records = await self._reader.poll(partition) or []
            world.history.consumed(self.group, partition, [offset for offset, _ in records])
        fate = rng.random()
        if fate < COMMIT_SHARE or world.is_draining:
            await self._commit(self._reader.positions)
        elif fate > 1 - CRASH_SHARE:
            world.trace.event(self.name, "falls silent")
            world.trace.count("members crashed")
            self._forget()
            await trio.sleep(4 * rng.random())
            raise OverError
        elif fate > 1 - CRASH_SHARE - LEAVE_SHARE:
            await self._leave()
            raise OverError
        await self._beat()
        world.made_progress(self.name)
        await trio.sleep(THINK_SECONDS * rng.random())

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
            topics=[
                OffsetCommitRequestTopic(name=topic, partitions=some)
                for topic, some in topics.items()
            ],
        )
        try:
            answer = await self._ask(request, OffsetCommitResponse, self.commit_version)
            self._take_committed(answer, committed)
        except Unanswered:
            self._coordinator = None
            self._commit_is_unknown()
            raise OverError from None

    def _commit_is_unknown(self) -> None:
        """It may be done later, while this member's generation or membership goes on."""
        return

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
