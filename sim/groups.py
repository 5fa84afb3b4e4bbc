"""A consumer group: members that join, share the partitions, read, commit, crash and leave.

What a member does is what Kafka's classic consumers do: it goes on from the group's committed
offset, commits what it has read, and has no say any more once its generation is over. A commit
without an answer ends its generation here, too: the request may still be under way, and of one
generation any commit is as good as any other.
"""

from __future__ import annotations

import json
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
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from wire.kafka.messages.groups import (
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequestAssignment,
)
from wire.kafka.messages.offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
)

if TYPE_CHECKING:
    from typing import TypeVar

    from sim.history import Partition
    from sim.world import World
    from wire.kafka.message import Message

    M = TypeVar("M", bound=Message)

GROUP = "group"
PROTOCOL_TYPE = PROTOCOL = "sim"
SESSION_MS, REBALANCE_MS = 2_000, 3_000
#: A turn of a member that reads: chance that it commits, crashes, leaves.
COMMIT_SHARE, CRASH_SHARE, LEAVE_SHARE = 0.4, 0.01, 0.01
#: The generation is over for this member; what it is known by stays.
REJOIN = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)


class OverError(Exception):
    """This member's generation is over."""


class Member:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._reader = Consumer(world, name)
        self._client: KafkaClient = self._reader.client
        self._coordinator: tuple[str, int] | None = None
        self._id = ""
        self._generation = -1
        self._assigned: list[Partition] = []
        self._known_count = 0
        #: The end of what is to be read, once nobody writes any more.
        self._ends: dict[Partition, int] = {}

    async def run(self) -> None:
        while not self._is_done():
            try:
                await self._join()
                await self._take_up()
                while not self._is_done():
                    await self._turn()
            except OverError:
                await trio.sleep(RETRY_SECONDS)
            except Unanswered:
                self._coordinator = None
                await trio.sleep(RETRY_SECONDS)
        await self._leave()

    def _is_done(self) -> bool:
        return self._world.is_draining and self._world.history.is_group_done(
            GROUP, self._world.partitions
        )

    async def _ask(self, body: Message, answer: type[M]) -> M:
        """Of the coordinator; Unanswered also if there is none."""
        if self._coordinator is None:
            found = await self._client.ask_any(
                FindCoordinatorRequest(key=GROUP, key_type=0), FindCoordinatorResponse
            )
            if found.error_code:
                self._check(ErrorCode(found.error_code))
                raise Unanswered("no coordinator")
            self._coordinator = (found.host, found.port)
        return await self._client.ask_at(self._coordinator, body, answer)

    def _check(self, code: ErrorCode) -> None:
        """OverError if the generation is over, Unanswered if another broker is to be asked."""
        if code is ErrorCode.NONE:
            return
        self._world.trace.count(f"group {code.name}")
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        if code in REJOIN:
            raise OverError
        if code not in RETRIABLE:
            raise Violation("refused", f"{self.name}: {code.name}")
        raise Unanswered(code.name)

    # -- joining -------------------------------------------------------------------------------

    async def _join(self) -> None:
        answer = await self._ask(
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"")],
            ),
            JoinGroupResponse,
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = answer.member_id
            raise OverError
        self._check(ErrorCode(answer.error_code))
        self._id, self._generation = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self._id:
            members = sorted(member.member_id for member in answer.members)
            shares: dict[str, list[Partition]] = {member: [] for member in members}
            for number, partition in enumerate(self._world.partitions):
                shares[members[number % len(members)]].append(partition)
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=json.dumps(share).encode())
                for member, share in shares.items()
            ]
        self._known_count = len(self._world.partitions)
        synced = await self._ask(
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=self._generation,
                member_id=self._id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL,
                assignments=assignments,
            ),
            SyncGroupResponse,
        )
        self._check(ErrorCode(synced.error_code))
        self._assigned = [(topic, number) for topic, number in json.loads(synced.assignment)]
        self._world.trace.event(
            self.name, "assigned", f"generation {self._generation}: {self._assigned}"
        )
        self._world.trace.count("group generations")

    async def _take_up(self) -> None:
        """Goes on where the group is."""
        world = self._world
        self._reader.positions.clear()
        if not self._assigned:
            return
        numbers: dict[str, list[int]] = {}
        for topic, number in self._assigned:
            numbers.setdefault(topic, []).append(number)
        floors = {p: world.history.committed(GROUP, p) for p in self._assigned}
        answer = await self._ask(
            OffsetFetchRequest(
                group_id=GROUP,
                topics=[
                    OffsetFetchRequestTopic(name=topic, partition_indexes=some)
                    for topic, some in numbers.items()
                ],
            ),
            OffsetFetchResponse,
        )
        self._check(ErrorCode(answer.error_code))
        for topic_found in answer.topics:
            for found in topic_found.partitions:
                self._check(ErrorCode(found.error_code))
                partition = topic_found.name, found.partition_index
                offset = found.committed_offset
                world.history.fetched(GROUP, partition, offset, floors[partition])
                if offset >= 0:
                    self._reader.positions[partition] = offset

    # -- reading -------------------------------------------------------------------------------

    async def _turn(self) -> None:
        world, rng = self._world, self._rng
        if world.is_quiet:
            await self._look_for_ends()
        if self._assigned:
            partition = self._assigned[rng.randrange(len(self._assigned))]
            records = await self._reader.poll(partition) or []
            world.history.consumed(GROUP, partition, [offset for offset, _ in records])
        fate = rng.random()
        if fate < COMMIT_SHARE or world.is_draining:
            await self._commit()
        elif fate > 1 - CRASH_SHARE:
            world.trace.event(self.name, "falls silent")
            world.trace.count("members crashed")
            self._id = ""
            await trio.sleep(4 * rng.random())
            raise OverError
        elif fate > 1 - CRASH_SHARE - LEAVE_SHARE:
            await self._leave()
            raise OverError
        answer = await self._ask(
            HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._id),
            HeartbeatResponse,
        )
        self._check(ErrorCode(answer.error_code))
        if self._known_count != len(world.partitions):
            raise OverError  # there are more now
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

    async def _commit(self) -> None:
        """All positions of this member."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        committed: dict[Partition, int] = {}
        for (topic, number), offset in self._reader.positions.items():
            one = OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata=None
            )
            topics.setdefault(topic, []).append(one)
            committed[topic, number] = offset
        if not topics:
            return
        try:
            answer = await self._ask(
                OffsetCommitRequest(
                    group_id=GROUP,
                    generation_id_or_member_epoch=self._generation,
                    member_id=self._id,
                    topics=[
                        OffsetCommitRequestTopic(name=topic, partitions=some)
                        for topic, some in topics.items()
                    ],
                ),
                OffsetCommitResponse,
            )
        except Unanswered:
            self._coordinator = None
            raise OverError from None
        failures = []
        for topic_done in answer.topics:
            for done in topic_done.partitions:
                if done.error_code:
                    failures.append(ErrorCode(done.error_code))
                    continue
                partition = topic_done.name, done.partition_index
                self._world.history.commit(GROUP, partition, committed[partition])
                self._world.trace.count("offsets committed")
        for code in failures:
            try:
                self._check(code)
            except Unanswered:
                self._coordinator = None
                raise OverError from None

    async def _leave(self) -> None:
        """If it can be told; else the session ends by itself."""
        if not self._id:
            return
        member = MemberIdentity(member_id=self._id)
        self._id = ""
        try:
            await self._ask(LeaveGroupRequest(group_id=GROUP, members=[member]), LeaveGroupResponse)
        except Unanswered:
            self._coordinator = None
