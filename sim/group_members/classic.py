"""A member of the classic protocol: JoinGroup, SyncGroup, and the leader shares the partitions."""

from __future__ import annotations

import json

from sim.client import Unanswered
from sim.group_members.committing import CommittingMember
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

PROTOCOL_TYPE = PROTOCOL = "sim"


class ClassicMember(CommittingMember):
    group = "group"
    #: The generation is over for this member; what it is known by stays.
    over_codes = frozenset(
        {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
    )
    commit_version = 8
    _known_count = 0

    async def _join(self) -> None:
        answer = await self._ask(
            JoinGroupRequest(
                group_id=self.group,
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
        self._id, self._epoch = answer.member_id, answer.generation_id
        is_leader = answer.leader == self._id
        members = sorted(member.member_id for member in answer.members)
        self._known_count = len(self._world.partitions)
        await self._sync(self._shares(members) if is_leader else [])
        await self._take_up()

    def _shares(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        shares: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
        for number, partition in enumerate(self._world.partitions):
            shares[members[number % len(members)]].append(partition)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=json.dumps(share).encode())
            for member, share in shares.items()
        ]

    async def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> None:
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self._epoch,
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
            self.name, "assigned", f"generation {self._epoch}: {self._assigned}"
        )
        self._world.trace.count("group generations")

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
        answer = await self._ask(
            HeartbeatRequest(group_id=self.group, generation_id=self._epoch, member_id=self._id),
            HeartbeatResponse,
        )
        self._check(ErrorCode(answer.error_code))
        if self._known_count != len(self._world.partitions):
            raise OverError  # there are more now

    def _forget(self) -> None:
        self._id = ""

    async def _leave(self) -> None:
        if not self._id:
            return
        member = MemberIdentity(member_id=self._id)
        self._forget()
        try:
            await self._ask(
                LeaveGroupRequest(group_id=self.group, members=[member]), LeaveGroupResponse
            )
        except Unanswered:
            self._coordinator = None
