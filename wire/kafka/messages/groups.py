"""Classic consumer groups (keys 10-16, 42)."""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT32_MIN,
    STRING,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@request(ApiKey.FIND_COORDINATOR, "0-6", flexible="3+")
@declared
class FindCoordinatorRequest(Message):
    """The broker that coordinates a key; 4: several keys (KIP-699); 6: share groups."""

    key: str = field(STRING, "0-3")
    key_type: int = field(INT8, "1+")
    coordinator_keys: list[str] = field(array(STRING), "4+")


@declared
class Coordinator(Struct):
    key: str = field(STRING, "4+")
    node_id: int = field(INT32, "4+")
    host: str = field(STRING, "4+")
    port: int = field(INT32, "4+")
    error_code: int = field(INT16, "4+")
    error_message: str | None = field(STRING, "4+", null="4+")


@response(ApiKey.FIND_COORDINATOR, "0-6", flexible="3+")
@declared
class FindCoordinatorResponse(Message):
    """To version 3 one coordinator in the top-level fields, later a list."""

    throttle_time_ms: int = field(INT32, "1+")
    error_code: int = field(INT16, "0-3")
    error_message: str | None = field(STRING, "1-3", null="1-3")
    node_id: int = field(INT32, "0-3")
    host: str = field(STRING, "0-3")
    port: int = field(INT32, "0-3")
    coordinators: list[Coordinator] = field(array(Coordinator), "4+")


@declared
class JoinGroupRequestProtocol(Struct):
    name: str = field(STRING, "0+")
    metadata: bytes = field(BYTES, "0+")


@request(ApiKey.JOIN_GROUP, "0-9", flexible="6+")
@declared
class JoinGroupRequest(Message):
    """Enter a rebalance.

    4: member id first (KIP-394); 5: static members (KIP-345); 8: reason (KIP-800).
    """

    group_id: str = field(STRING, "0+")
    session_timeout_ms: int = field(INT32, "0+")
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1)
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "5+", null="5+", default=None)
    protocol_type: str = field(STRING, "0+")
    protocols: list[JoinGroupRequestProtocol] = field(array(JoinGroupRequestProtocol), "0+")
    reason: str | None = field(STRING, "8+", null="8+", default=None)


@declared
class JoinGroupResponseMember(Struct):
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "5+", null="5+", default=None)
    metadata: bytes = field(BYTES, "0+")


@response(ApiKey.JOIN_GROUP, "0-9", flexible="6+")
@declared
class JoinGroupResponse(Message):
    """Only the leader gets the members. 7: protocol type; 9: skip assignment (KIP-814)."""

    throttle_time_ms: int = field(INT32, "2+")
    error_code: int = field(INT16, "0+")
    generation_id: int = field(INT32, "0+", default=-1)
    protocol_type: str | None = field(STRING, "7+", null="7+", default=None)
    protocol_name: str | None = field(STRING, "0+", null="7+")
    leader: str = field(STRING, "0+")
    skip_assignment: bool = field(BOOL, "9+")
    member_id: str = field(STRING, "0+")
    members: list[JoinGroupResponseMember] = field(array(JoinGroupResponseMember), "0+")


@declared
class SyncGroupRequestAssignment(Struct):
    member_id: str = field(STRING, "0+")
    assignment: bytes = field(BYTES, "0+")


@request(ApiKey.SYNC_GROUP, "0-5", flexible="4+")
@declared
class SyncGroupRequest(Message):
    """Get one's assignment; the leader brings all. 3: static; 5: protocol check (KIP-559)."""

    group_id: str = field(STRING, "0+")
    generation_id: int = field(INT32, "0+")
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "3+", null="3+", default=None)
    protocol_type: str | None = field(STRING, "5+", null="5+", default=None)
    protocol_name: str | None = field(STRING, "5+", null="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = field(array(SyncGroupRequestAssignment), "0+")


@response(ApiKey.SYNC_GROUP, "0-5", flexible="4+")
@declared
class SyncGroupResponse(Message):
    """The assignment is opaque to the broker."""

    throttle_time_ms: int = field(INT32, "1+")
    error_code: int = field(INT16, "0+")
    protocol_type: str | None = field(STRING, "5+", null="5+", default=None)
    protocol_name: str | None = field(STRING, "5+", null="5+", default=None)
    assignment: bytes = field(BYTES, "0+")


@request(ApiKey.HEARTBEAT, "0-4", flexible="4+")
@declared
class HeartbeatRequest(Message):
    """Stay in a classic group. 3: static members (KIP-345)."""

    group_id: str = field(STRING, "0+")
    generation_id: int = field(INT32, "0+")
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "3+", null="3+", default=None)


@response(ApiKey.HEARTBEAT, "0-4", flexible="4+")
@declared
class HeartbeatResponse(Message):
    """The error code tells whether to rejoin."""

    throttle_time_ms: int = field(INT32, "1+")
    error_code: int = field(INT16, "0+")


@declared
class MemberIdentity(Struct):
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", null="3+", default=None)
    reason: str | None = field(STRING, "5+", null="5+", default=None)


@request(ApiKey.LEAVE_GROUP, "0-5", flexible="4+")
@declared
class LeaveGroupRequest(Message):
    """Leave a classic group; 3: several members (KIP-345); 5: reason (KIP-800)."""

    group_id: str = field(STRING, "0+")
    member_id: str = field(STRING, "0-2")
    members: list[MemberIdentity] = field(array(MemberIdentity), "3+")


@declared
class MemberResponse(Struct):
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", null="3+")
    error_code: int = field(INT16, "3+")


@response(ApiKey.LEAVE_GROUP, "0-5", flexible="4+")
@declared
class LeaveGroupResponse(Message):
    """3: a result per member."""

    throttle_time_ms: int = field(INT32, "1+")
    error_code: int = field(INT16, "0+")
    members: list[MemberResponse] = field(array(MemberResponse), "3+")


@request(ApiKey.DESCRIBE_GROUPS, "0-6", flexible="5+")
@declared
class DescribeGroupsRequest(Message):
    """Describe classic groups. 3: authorized operations (KIP-430)."""

    groups: list[str] = field(array(STRING), "0+")
    include_authorized_operations: bool = field(BOOL, "3+")


@declared
class DescribedGroupMember(Struct):
    member_id: str = field(STRING, "0+")
    group_instance_id: str | None = field(STRING, "4+", null="4+", default=None)
    client_id: str = field(STRING, "0+")
    client_host: str = field(STRING, "0+")
    member_metadata: bytes = field(BYTES, "0+")
    member_assignment: bytes = field(BYTES, "0+")


@declared
class DescribedGroup(Struct):
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "6+", null="6+", default=None)
    group_id: str = field(STRING, "0+")
    group_state: str = field(STRING, "0+")
    protocol_type: str = field(STRING, "0+")
    protocol_data: str = field(STRING, "0+")
    members: list[DescribedGroupMember] = field(array(DescribedGroupMember), "0+")
    authorized_operations: int = field(INT32, "3+", default=INT32_MIN)


@response(ApiKey.DESCRIBE_GROUPS, "0-6", flexible="5+")
@declared
class DescribeGroupsResponse(Message):
    """4: static ids; 6: GROUP_ID_NOT_FOUND (KIP-1043)."""

    throttle_time_ms: int = field(INT32, "1+")
    groups: list[DescribedGroup] = field(array(DescribedGroup), "0+")


@request(ApiKey.LIST_GROUPS, "0-5", flexible="3+")
@declared
class ListGroupsRequest(Message):
    """Groups that this broker coordinates. 4: by state (KIP-518); 5: by type (KIP-848)."""

    states_filter: list[str] = field(array(STRING), "4+")
    types_filter: list[str] = field(array(STRING), "5+")


@declared
class ListedGroup(Struct):
    group_id: str = field(STRING, "0+")
    protocol_type: str = field(STRING, "0+")
    group_state: str = field(STRING, "4+")
    group_type: str = field(STRING, "5+")


@response(ApiKey.LIST_GROUPS, "0-5", flexible="3+")
@declared
class ListGroupsResponse(Message):
    """5: the type of each group."""

    throttle_time_ms: int = field(INT32, "1+")
    error_code: int = field(INT16, "0+")
    groups: list[ListedGroup] = field(array(ListedGroup), "0+")


@request(ApiKey.DELETE_GROUPS, "0-2", flexible="2+")
@declared
class DeleteGroupsRequest(Message):
    """Delete empty groups (KIP-229)."""

    groups_names: list[str] = field(array(STRING), "0+")


@declared
class DeletableGroupResult(Struct):
    group_id: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")


@response(ApiKey.DELETE_GROUPS, "0-2", flexible="2+")
@declared
class DeleteGroupsResponse(Message):
    """A result per group."""

    throttle_time_ms: int = field(INT32, "0+")
    results: list[DeletableGroupResult] = field(array(DeletableGroupResult), "0+")
