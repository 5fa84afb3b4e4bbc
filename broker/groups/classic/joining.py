"""A member joins a group for the first time, again, or as the instance that it was before.

Functions of group_core's inputs: each changes the group and leaves effects with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.classic.group import COMPLETING, EMPTY, PREPARING, STABLE
from broker.groups.classic.members import Member
from broker.groups.classic.rebalance import (
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
)
from broker.groups.classic.types import (
    Answer,
    JoinInput,
    JoinResult,
    Persist,
    StaticMemberStored,
    SyncResult,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.groups.classic.group import ClassicGroup

#: Ids handed out and not yet used, at most; each lapses after one session timeout.
PENDING_JOIN_MAX = 10_000


def remove_refused(group: ClassicGroup, member_id: str, now_ms: int) -> None:
    group.pending_join.pop(member_id, None)
    member = group.members.by_id.get(member_id)
    if member is not None:
        group.drop(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
    maybe_complete_join(group, now_ms)


def join_unknown(group: ClassicGroup, token: object, request: JoinInput, now_ms: int) -> None:
    """No member id: a new dynamic member, a new static one, or one that was restarted."""
    new_id = request.new_member_id
    if request.instance_id is not None:
        old_id = group.members.static_ids.get(request.instance_id)
        if old_id is None:
            add_member(group, token, request, new_id, now_ms)
        else:
            replace_static(group, token, request, old_id, now_ms)
    elif not request.requires_known_member_id:
        add_member(group, token, request, new_id, now_ms)
    elif len(group.pending_join) >= PENDING_JOIN_MAX:
        group.refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
    else:
        assert new_id not in group.members.by_id
        group.pending_join[new_id] = now_ms + request.session_timeout_ms
        group.arm(group.pending_join[new_id])
        group.refuse_join(token, new_id, ErrorCode.MEMBER_ID_REQUIRED)


def add_member(
    group: ClassicGroup, token: object, request: JoinInput, member_id: str, now_ms: int
) -> None:
    member = Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocol_type,
        request.protocols,
        join_token=token,
        is_new=True,
    )
    if not group.members:
        group.protocol_type = request.protocol_type
    group.pending_join.pop(member_id, None)
    group.members.add(member)
    assert group.protocol_type == request.protocol_type, "`supports` refuses another"
    if group.state is PREPARING and group.is_initial:
        group.new_member_added = True
    group.schedule(member, group.limits.new_member_join_timeout_ms, now_ms)
    rebalance_or_complete(group, f"member {member_id} joins: {request.reason}", now_ms)


def rejoin(
    group: ClassicGroup, token: object, request: JoinInput, member: Member, now_ms: int
) -> None:
    """A member that has its id joins (again)."""
    assert group.members.by_id.get(member.member_id) is member
    same = member.protocols == request.protocols
    leads = member.member_id == group.members.leader_id
    if group.state is EMPTY:
        group.refuse_join(token, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    elif same and (group.state is COMPLETING or (group.state is STABLE and not leads)):
        # The answer to its JoinGroup may be lost. A leader that rejoins a stable group wants a
        # rebalance: what it assigns (a topic's partitions) has changed.
        group.effects.append(Answer(token, group.join_result(member)))
    else:
        _update_member(group, token, request, member)
        why = f"member {member.member_id} rejoins: {request.reason}"
        rebalance_or_complete(group, why, now_ms)


def _update_member(group: ClassicGroup, token: object, request: JoinInput, member: Member) -> None:
    superseded = JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
    group.answer_join(member, superseded)
    assert member.join_token is None, "who asked before was answered"
    group.members.set_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    group.members.set_join_token(member, token)


def replace_static(
    group: ClassicGroup, token: object, request: JoinInput, old_id: str, now_ms: int
) -> None:
    """KIP-345: who was the instance before is fenced; while the group is stable and its
    protocol stays what it is, nobody else notices."""
    member = group.members.by_id[old_id]
    leader_before = group.members.leader_id or ""
    group.answer_join(member, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
    group.answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
    then = StaticMemberStored(
        token,
        group.generation_id,
        old_id,
        request.new_member_id,
        leader_before,
        member.protocols,
        member.rebalance_timeout_ms,
        member.session_timeout_ms,
        request.supports_skip_assignment,
    )
    group.rename(member, request.new_member_id)
    member.is_new = False
    _update_member(group, token, request, member)
    group.schedule(member, member.session_timeout_ms, now_ms)
    why = f"static member {request.instance_id} rejoins: {request.reason}"
    if group.state is STABLE:
        if group.members.select_protocol() == group.protocol_name:
            group.effects.append(Persist(group.snapshot(), then))
        else:
            prepare_rebalance(group, why, now_ms)
    elif group.state is COMPLETING:
        # The leader may assign to the old id, so the new one would get nothing.
        prepare_rebalance(group, why, now_ms)
    else:
        maybe_complete_join(group, now_ms)


def on_static_member_stored(
    group: ClassicGroup, then: StaticMemberStored, error: ErrorCode, now_ms: int
) -> None:
    member = group.members.by_id.get(then.new_member_id)
    if member is None or member.join_token is not then.token:
        return  # answered meanwhile: it left, or was replaced in its turn
    if error:
        group.members.set_protocols(member, then.protocols_before)
        member.rebalance_timeout_ms = then.rebalance_timeout_before_ms
        member.session_timeout_ms = then.session_timeout_before_ms
        group.answer_join(member, JoinResult(error, leader_id=then.leader_before))
        group.rename(member, then.old_member_id)
        group.schedule(member, member.session_timeout_ms, now_ms)
        return
    if group.state is not STABLE or group.generation_id != then.generation_id:
        return  # its JoinGroup counts for the rebalance that began, and is answered by it
    assert member.instance_id is not None
    result = group.join_result(member)
    if not then.supports_skip_assignment:
        # An older client that reads its own id as the leader's would assign, and SyncGroup in
        # a stable group ignores that: it must take itself for a follower.
        result.leader_id = then.leader_before
        result.members = []
    else:
        result.skip_assignment = member.member_id == group.members.leader_id
    group.answer_join(member, result)
    group.schedule(member, member.session_timeout_ms, now_ms)
