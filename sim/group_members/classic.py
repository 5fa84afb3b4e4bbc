"""A member of the classic protocol: JoinGroup, SyncGroup, and the leader shares the partitions.

It is eager: before it joins it gives up all that it has. A static one that ends comes back under
its instance's name, and mostly in the generation that it left; of some an operator says that they
have left (KIP-345).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.group_members.committing import RETURN_SHARE, CommittingMember, static_name
from sim.group_members.member import REBALANCE_MS, SESSION_MS, OverError
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
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
from wire.kafka.messages.offsets import OffsetFetchRequestTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sim.history import Partition
    from sim.world import World


class ClassicMember(CommittingMember):
    group = "group"
    protocol_type = protocol = "sim"
    #: The generation is over for this member; what it is known by stays.
    over_codes = frozenset(
        {
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
        }
    )
    commit_version = 8
    _known_count = 0

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.instance = static_name(world, name)

    # -- what it says in the protocol's opaque bytes ---------------------------------------------

    def _metadata(self) -> bytes:
        return b""

    def _encode(self, share: Collection[Partition]) -> bytes:
        return json.dumps(list(share)).encode()

    def _decode(self, assignment: bytes) -> list[Partition]:
        return [(topic, number) for topic, number in json.loads(assignment)]

    def _shares(self, members: Mapping[str, bytes]) -> dict[str, list[Partition]]:
        """The leader's: of each member, by id; `members`: what each says of itself."""
        ids = sorted(members)
        shares: dict[str, list[Partition]] = {member_id: [] for member_id in ids}
        for number, partition in enumerate(self._world.partitions):
            shares[ids[number % len(ids)]].append(partition)
        return shares

    # -- membership ------------------------------------------------------------------------------

    async def _join(self) -> None:
        self._give_up_for_join()
        is_back = self.instance is not None and not self._id
        answer = await self._ask(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                group_instance_id=self.instance,
                protocol_type=self.protocol_type,
                protocols=[JoinGroupRequestProtocol(name=self.protocol, metadata=self._metadata())],
            ),
            JoinGroupResponse,
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = answer.member_id
            raise OverError
        self._check(ErrorCode(answer.error_code))
        self._id, self._epoch = answer.member_id, answer.generation_id
        is_leader = answer.leader == self._id
        if not answer.leader:  # it shares the partitions itself
            self._world.trace.count("classic joins of a group of KIP-848's")
        # A static one that is back, and does not hear that it leads (KIP-814), cannot know of how
        # many partitions its share was made: it joins once more, and if it leads all do.
        self._known_count = -1 if is_back else len(self._world.partitions)
        shares = {}
        if is_leader:
            shares = self._shares({each.member_id: each.metadata for each in answer.members})
        await self._sync(shares)
        await self._take_up()

    async def _sync(self, shares: Mapping[str, Collection[Partition]]) -> None:
        asked_at = trio.current_time()
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self._epoch,
                member_id=self._id,
                group_instance_id=self.instance,
                protocol_type=self.protocol_type,
                protocol_name=self.protocol,
                assignments=[
                    SyncGroupRequestAssignment(member_id=each, assignment=self._encode(share))
                    for each, share in shares.items()
                ],
            ),
            SyncGroupResponse,
        )
        self._check(ErrorCode(synced.error_code))
        self._assigned = self._decode(synced.assignment)
        self._tell_owners(asked_at)
        self._world.trace.event(
            self.name, "assigned", f"generation {self._epoch}: {self._assigned}"
        )
        self._world.trace.count("group generations")

    def _holdings(self) -> Collection[Partition]:
        """What it has for now."""
        return self._assigned

    def _tell_owners(self, asked_at: float, *, is_heartbeat: bool = False) -> None:
        """It was answered that this is its own: its session began anew not before it asked, and a
        rebalance takes longer, or does not wait for who is silent (REBALANCE_MS, SESSION_MS)."""
        assert self._coordinator is not None
        self._world.owners[self.group].told(
            self._id,
            self._epoch,
            self._holdings(),
            self._coordinator,
            instance=self.instance,
            now=trio.current_time(),
            safe_until=asked_at + min(SESSION_MS, REBALANCE_MS) / 1000,
            heartbeat_at=asked_at if is_heartbeat else None,
        )

    def _give_up_for_join(self) -> None:
        self._give_up_all()

    def _give_up_all(self) -> None:
        self._world.owners[self.group].over(self._id)
        self._assigned = []
        self._reader.positions.clear()

    async def _take_up(self) -> None:
        """Goes on where the group is."""
        self._reader.positions.clear()
        if not self._assigned:
            return
        numbers: dict[str, list[int]] = {}
        for topic, number in self._assigned:
            numbers.setdefault(topic, []).append(number)
        floors = {p: self._world.history.committed(self.group, p) for p in self._assigned}
        answer = await self._ask(
            OffsetFetchRequest(
                group_id=self.group,
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
                self._told(partition, found.committed_offset, floors[partition])

    async def _beat(self) -> None:
        asked_at = trio.current_time()
        answer = await self._ask(
            HeartbeatRequest(
                group_id=self.group,
                generation_id=self._epoch,
                member_id=self._id,
                group_instance_id=self.instance,
            ),
            HeartbeatResponse,
        )
        self._check(ErrorCode(answer.error_code))
        self._tell_owners(asked_at, is_heartbeat=True)
        if self._known_count != len(self._world.partitions):
            raise OverError  # there are more now

    def _forget(self) -> None:
        self._give_up_all()
        self._id = ""

    async def _leave(self) -> None:
        if not self._id:
            return
        member = MemberIdentity(member_id=self._id, group_instance_id=self.instance)
        self._forget()
        if self.instance is not None and self._rng.random() < RETURN_SHARE:
            self._world.trace.count("static members away")
            return
        try:
            await self._ask(
                LeaveGroupRequest(group_id=self.group, members=[member]), LeaveGroupResponse
            )
        except Unanswered:
            self._coordinator = None
