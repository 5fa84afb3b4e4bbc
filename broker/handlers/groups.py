"""Classic consumer groups.

| key | API | versions |
|---|---|---|
| 11 | JoinGroup | 0-9 |
| 12 | Heartbeat | 0-4 |
| 13 | LeaveGroup | 0-5 |
| 14 | SyncGroup | 0-5 |
| 15 | DescribeGroups | 0-6 |
| 16 | ListGroups | 0-5 |
| 42 | DeleteGroups | 0-2 |

Behaviour: Kafka 4.3's; what a group does is group_core's contract. Here is what depends on a
version:
- JoinGroup 0 has no rebalance timeout: the session timeout stands for it. 4+: a dynamic member gets
  its id first (MEMBER_ID_REQUIRED). Below 7 a protocol name is never null but empty. 9+: a static
  leader may be told to skip the assignment.
- SyncGroup 5+ must name protocol type and protocol: INCONSISTENT_GROUP_PROTOCOL.
- LeaveGroup below 3 names one member, and its error is the response's.
- DescribeGroups below 6 describes a group that is not there as Dead, without an error; 6+:
  GROUP_ID_NOT_FOUND (KIP-1043). So is a group of the consumer protocol, which
  ConsumerGroupDescribe describes.
- ListGroups filters by state (4+, KIP-518) and type (5+, KIP-848), in any case of letters.

Known deviations: the authorized operations of a described group are all that groups have, as of a
broker without an authorizer. A JoinGroup that names more than PROTOCOLS_MAX protocols is answered
INCONSISTENT_GROUP_PROTOCOL.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps, each_once
from broker.authorization import ALL_OPERATIONS, ResourceType
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.members import PROTOCOLS_MAX
from broker.groups.classic.types import (
    GroupState,
    JoinInput,
    JoinResult,
    LeavingMember,
    SyncInput,
    SyncResult,
)
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, short
from wire.kafka.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from broker.groups.coordinator import GroupCoordinator

#: What a group costs, in units of `Steps`, and characters of its id that cost one: it is hashed.
GROUP_UNITS = 8
CHARACTERS_PER_UNIT = 20
#: Members that leave in one step: they cost what groups do.
LEAVING_AT_ONCE = 200


class GroupsHandler:
    """Between the messages and the coordinator; keeps nothing."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.JOIN_GROUP, 0, 9, self.join),
            Api(ApiKey.HEARTBEAT, 0, 4, self.heartbeat),
            Api(ApiKey.LEAVE_GROUP, 0, 5, self.leave),
            Api(ApiKey.SYNC_GROUP, 0, 5, self.sync),
            Api(ApiKey.DESCRIBE_GROUPS, 0, 6, self.describe),
            Api(ApiKey.LIST_GROUPS, 0, 5, self.list_groups),
            Api(ApiKey.DELETE_GROUPS, 0, 2, self.delete),
        ]

    # --- members

    def join(self, request: Request) -> Reply:
        body: JoinGroupRequest = request.body
        reply = Reply()

        def answer(result: JoinResult) -> None:
            reply.resolve(_join_response(result, request.version))

        instance_id = body.group_instance_id
        prefix = request.client_id if instance_id is None else instance_id
        rebalance_ms = body.rebalance_timeout_ms if request.version else body.session_timeout_ms
        given = JoinInput(
            body.member_id,
            "" if body.member_id else f"{prefix}-{self._coordinator.env.new_uuid()}",
            instance_id,
            request.client_id,
            f"/{request.connection.peer_host}",
            body.session_timeout_ms,
            rebalance_ms,
            body.protocol_type,
            # With one too many it is refused, and the others are not even looked at.
            tuple((p.name, p.metadata) for p in islice(body.protocols, PROTOCOLS_MAX + 1)),
            requires_known_member_id=request.version >= 4,
            supports_skip_assignment=request.version >= 9,
            reason=body.reason,
        )
        error = self._coordinator.join(body.group_id, given, answer)
        if error:
            answer(JoinResult(error, body.member_id))
        return reply

    def sync(self, request: Request) -> Reply:
        body: SyncGroupRequest = request.body
        reply = Reply()

        def answer(result: SyncResult) -> None:
            reply.resolve(
                SyncGroupResponse(
                    error_code=result.error,
                    protocol_type=result.protocol_type,
                    protocol_name=result.protocol_name,
                    assignment=result.assignment,
                )
            )

        if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
            answer(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return reply
        given = SyncInput(
            body.member_id,
            body.group_instance_id,
            body.generation_id,
            body.protocol_type,
            body.protocol_name,
            {each.member_id: each.assignment for each in body.assignments},
        )
        error = self._coordinator.sync(body.group_id, given, answer)
        if error:
            answer(SyncResult(error))
        return reply

    def heartbeat(self, request: Request) -> HeartbeatResponse:
        body: HeartbeatRequest = request.body
        error = self._coordinator.heartbeat(
            body.group_id, body.member_id, body.group_instance_id, body.generation_id
        )
        return HeartbeatResponse(error_code=error)

    def leave(self, request: Request) -> Reply | Steps[Reply]:
        body: LeaveGroupRequest = request.body
        reply = Reply()
        if request.version < 3:

            def answer(error: ErrorCode, errors: list[ErrorCode]) -> None:
                reply.resolve(LeaveGroupResponse(error_code=error or errors[0]))

            self._coordinator.leave(body.group_id, [LeavingMember(body.member_id)], answer)
            return reply
        return self._leave_in_steps(body, reply)

    def _leave_in_steps(self, body: LeaveGroupRequest, reply: Reply) -> Steps[Reply]:
        """So many members at a time: who leaves a group together may leave it one by one."""
        response = LeaveGroupResponse()
        outstanding = 1

        def one_done() -> None:
            nonlocal outstanding
            outstanding -= 1
            if not outstanding:
                if response.error_code:
                    response.members = []
                reply.resolve(response)

        def answer(
            members: list[MemberResponse], error: ErrorCode, errors: list[ErrorCode]
        ) -> None:
            response.error_code = response.error_code or error
            for member, member_error in zip(members, errors, strict=False):
                member.error_code = member_error
            one_done()

        for start in range(0, len(body.members) or 1, LEAVING_AT_ONCE):
            some = body.members[start : start + LEAVING_AT_ONCE]
            leaving = [
                LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in some
            ]
            members = [MemberResponse(each.member_id, each.group_instance_id) for each in some]
            response.members += members
            outstanding += 1
            self._coordinator.leave(body.group_id, leaving, partial(answer, members))
            yield len(some) * GROUP_UNITS
        one_done()
        return reply

    # --- administration

    def describe(self, request: Request) -> Steps[DescribeGroupsResponse]:
        body: DescribeGroupsRequest = request.body
        groups = []
        for group_id in (yield from each_once(body.groups)):
            yield GROUP_UNITS + len(group_id) // CHARACTERS_PER_UNIT
            group = yield from self._described(group_id, request.version)
            if body.include_authorized_operations and not group.error_code:
                group.authorized_operations = ALL_OPERATIONS[ResourceType.GROUP]
            groups.append(group)
        return DescribeGroupsResponse(groups=groups)

    def list_groups(self, request: Request) -> Steps[ListGroupsResponse]:
        body: ListGroupsRequest = request.body
        states = yield from _lowered(body.states_filter)
        types = yield from _lowered(body.types_filter)
        error, entries = self._coordinator.list_groups()
        groups = []
        for entry in entries:
            yield 2
            group = entry.group
            state = group.state.value
            if types and group.kind not in types:
                continue
            if not states or state.lower() in states:
                groups.append(
                    ListedGroup(group.group_id, group.protocol_type or "", state, group.kind)
                )
        return ListGroupsResponse(error_code=error, groups=groups)

    def delete(self, request: Request) -> Steps[Reply]:
        body: DeleteGroupsRequest = request.body
        reply = Reply()
        response = DeleteGroupsResponse()
        asked: set[str] = set()
        outstanding = 1

        def answer(result: DeletableGroupResult | None, error: ErrorCode) -> None:
            nonlocal outstanding
            if result is not None:
                result.error_code = error
            outstanding -= 1
            if not outstanding:
                reply.resolve(response)

        for group_id in body.groups_names:
            yield GROUP_UNITS + len(group_id) // CHARACTERS_PER_UNIT
            if group_id not in asked:
                asked.add(group_id)
                result = DeletableGroupResult(group_id)
                response.results.append(result)
                outstanding += 1
                self._coordinator.delete_group(group_id, partial(answer, result))
        answer(None, ErrorCode.NONE)
        return reply

    def _described(self, group_id: str, version: int) -> Steps[DescribedGroup]:
        error, entry = self._coordinator.describe(group_id)
        if entry is not None and isinstance(entry.group, ClassicGroup):
            return (yield from _described_group(entry.group))
        if entry is not None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.GROUP_ID_NOT_FOUND:
            return DescribedGroup(error_code=error, group_id=group_id)
        described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= 6:
            described.error_code = error
            why = "not found" if entry is None else "is not a classic group"
            described.error_message = short(f"Group {group_id} {why}.")
        return described


def _lowered(names: list[str]) -> Steps[set[str]]:
    lowered = set()
    for name in names:
        yield 1
        lowered.add(name.lower())
    return lowered


def _join_response(result: JoinResult, version: int) -> JoinGroupResponse:
    name = result.protocol_name
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name="" if name is None and version < 7 else name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[JoinGroupResponseMember(*member) for member in result.members],
    )


def _described_group(group: ClassicGroup) -> Steps[DescribedGroup]:
    # Outside of Stable the protocol is about to be chosen anew, and with it the metadata.
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
    )
    for member in list(group.members.by_id.values()):
        yield 2
        described.members.append(
            DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                b"" if protocol is None else member.metadata(protocol),
                member.assignment,
            )
        )
    return described
