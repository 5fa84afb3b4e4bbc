"""The state machine of one classic consumer group. Pure: inputs and the time in, effects out.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...
    PreparingRebalance -> Empty (nobody is left), any -> Dead (the partition went elsewhere)

Behaviour is that of Kafka 4.3's group coordinator for groups of the classic type: KIP-62 (session
and rebalance timeouts), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member id
required), KIP-389 (size limit), KIP-814 (static leader skips the assignment).

Cooperative rebalancing (KIP-429) needs nothing here: members' metadata and assignments are opaque,
and what a member was assigned stays valid while the next rebalance is prepared.

A group is one value (`ClassicGroup`, in group), and its inputs are the functions here: the owner
calls one per input and carries out the effects that it returns, in order; see types. `now_ms` never
goes back. Nothing is done between calls, so time passes only in `tick`. What happens to those who
join, and to all in a rebalance, stands in joining and rebalance.

Stricter than Kafka in two points. A request that a later one of the same member supersedes, and a
SyncGroup whose member is removed, are answered; Kafka forgets them. And who asks for its assignment
again gets it once the generation is stored again: a broker that was deposed, and does not know it
yet, would let it go on from offsets that are not the group's last.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.groups.classic.group import COMPLETING, DEAD, EMPTY, NEVER_MS, PREPARING, STABLE
from broker.groups.classic.joining import (
    add_member,
    join_unknown,
    on_static_member_stored,
    rejoin,
    remove_refused,
)
from broker.groups.classic.rebalance import (
    complete_if_all_joined,
    expire,
    maybe_complete_join,
    on_assignment_stored,
    on_join_deadline,
    on_ownership_shown,
    on_sync_deadline,
    prepare_rebalance,
)
from broker.groups.classic.types import (
    Answer,
    AssignmentStored,
    Continuation,
    Effect,
    JoinInput,
    JoinResult,
    LeavingMember,
    OwnershipShown,
    Persist,
    StaticMemberStored,
    SyncInput,
    SyncResult,
)
from runtime.logs import kv
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.groups.classic.group import ClassicGroup

logger = logging.getLogger(__name__)


def join(group: ClassicGroup, token: object, request: JoinInput, now_ms: int) -> list[Effect]:
    """JoinGroup. Its `Answer` comes now, when the rebalance completes, or when a static
    member's new id is stored."""
    names = [name for name, _ in request.protocols]
    member_id = request.member_id
    if group.state is DEAD:
        group.refuse_join(token, member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif not group.accepts(member_id):
        remove_refused(group, member_id, now_ms)
        group.refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif not group.supports(request.protocol_type, names):
        group.refuse_join(token, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not member_id:
        join_unknown(group, token, request, now_ms)
    elif member_id in group.pending_join and request.instance_id is None:
        add_member(group, token, request, member_id, now_ms)
    elif error := group.member_error(member_id, request.instance_id):
        group.refuse_join(token, member_id, error)
    else:
        rejoin(group, token, request, group.members.by_id[member_id], now_ms)
    return group.take_effects()


def sync(group: ClassicGroup, token: object, request: SyncInput, now_ms: int) -> list[Effect]:
    """SyncGroup. The leader's starts the generation once its assignment is stored."""
    error = group.sync_error(request)
    if error:
        group.effects.append(Answer(token, SyncResult(error)))
        return group.take_effects()
    assert group.state in (COMPLETING, STABLE), "`sync_error` has the others"
    member = group.members.by_id[request.member_id]
    is_first = request.member_id in group.pending_sync
    group.pending_sync.discard(request.member_id)
    if not group.pending_sync:
        group.sync_deadline_ms = NEVER_MS
    if group.state is STABLE and is_first:
        group.effects.append(Answer(token, group.sync_result(member)))
        return group.take_effects()
    group.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
    assert member.sync_token is None, "who asked before was answered"
    member.sync_token = token
    if group.state is STABLE:
        shown = OwnershipShown(token, member.member_id)
        group.effects.append(Persist(group.snapshot(), shown))
    elif request.member_id == group.members.leader_id:
        given = request.assignments
        assignments = {each: given.get(each, b"") for each in group.members.by_id}
        then = AssignmentStored(group.generation_id, assignments)
        group.effects.append(Persist(group.snapshot(assignments), then))
    return group.take_effects()


def heartbeat(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int, now_ms: int
) -> ErrorCode:
    """Heartbeat: the answer. It only moves a deadline further away, so there are no effects."""
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.member_error(member_id, instance_id)
    if error:
        return error
    assert not group.is_empty
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    group.postpone(group.members.by_id[member_id], now_ms)
    if group.state is PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(
    group: ClassicGroup, leaving: list[LeavingMember], now_ms: int
) -> tuple[list[ErrorCode], list[Effect]]:
    """LeaveGroup (KIP-345: several at once): one error per member of the request, in order."""
    count_before = len(group.members)
    errors = [_leave_one(group, each) for each in leaving]
    assert len(group.members) <= count_before
    if group.state is PREPARING:
        maybe_complete_join(group, now_ms)
    elif len(group.members) < count_before:
        prepare_rebalance(group, "members left by LeaveGroup", now_ms)
    return errors, group.take_effects()


def tick(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """Time has passed: acts on every deadline up to `now_ms`, and arms the timer again."""
    group.armed_at_ms = NEVER_MS
    if group.join_deadline_ms <= now_ms:
        on_join_deadline(group, now_ms)
    if group.sync_deadline_ms <= now_ms:
        on_sync_deadline(group, now_ms)
    for member_id in [i for i, at_ms in group.pending_join.items() if at_ms <= now_ms]:
        logger.info("pending member lapsed", kv(group=group.group_id, member=member_id))
        del group.pending_join[member_id]
        complete_if_all_joined(group, now_ms)
    for member in list(group.members.by_id.values()):
        if member.session_deadline_ms > now_ms:
            continue
        if member.is_excused:
            # Its deadline starts anew when it is answered.
            member.session_deadline_ms = NEVER_MS
        elif group.members.by_id.get(member.member_id) is member:
            expire(group, member, now_ms)
    deadline_ms = group.next_deadline_ms()
    group.arm(deadline_ms)
    assert group.armed_at_ms <= deadline_ms, "no deadline passes unseen"
    return group.take_effects()


def stored(group: ClassicGroup, then: Continuation, error: ErrorCode, now_ms: int) -> list[Effect]:
    """A `Persist` was acknowledged (NONE), or failed: `error` is what members are told."""
    if isinstance(then, AssignmentStored):
        on_assignment_stored(group, then, error, now_ms)
    elif isinstance(then, StaticMemberStored):
        on_static_member_stored(group, then, error, now_ms)
    elif isinstance(then, OwnershipShown):
        on_ownership_shown(group, then, error, now_ms)
    elif error:
        # An empty generation holds nobody back: the one before it has no live member either.
        logger.warning("empty generation not stored", kv(group=group.group_id, error=error.name))
    return group.take_effects()


def close(group: ClassicGroup, error: ErrorCode) -> list[Effect]:
    """The group is no longer this broker's: everybody who waits is told so."""
    group.state = DEAD
    for member in group.members.by_id.values():
        group.answer_join(member, JoinResult(error, member.member_id))
        group.answer_sync(member, SyncResult(error))
    assert not group.members.awaiting_join_count, "everybody was told"
    return group.take_effects()


def start(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """After `restore`: members have one session timeout to be heard of. A group that is over
    the size limit, which must have been lowered, rebalances; so does one that was stored as the end
    of a group of another kind: what that one's last members had is nobody's."""
    assert group.state in (EMPTY, STABLE), "what is stored is a generation"
    assert not group.effects
    for member in group.members.by_id.values():
        group.schedule(member, member.session_timeout_ms, now_ms)
    if len(group.members) > group.limits.members_max:
        prepare_rebalance(group, "loaded over the size limit", now_ms)
    elif group.members and group.is_unshared:
        prepare_rebalance(group, "loaded as another kind of group left it", now_ms)
    return group.take_effects()


def interrupt(group: ClassicGroup) -> list[Effect]:
    """Another kind of group takes the place, with these members: who waits is to join again."""
    for member in group.members.by_id.values():
        again = ErrorCode.REBALANCE_IN_PROGRESS
        group.answer_join(member, JoinResult(again, member.member_id))
        group.answer_sync(member, SyncResult(again))
    return group.take_effects()


def take_over(group: ClassicGroup, reason: str, now_ms: int) -> list[Effect]:
    """After `restore`, in the place of another kind of group: it rebalances at once."""
    effects = start(group, now_ms)
    if group.state is STABLE:
        prepare_rebalance(group, reason, now_ms)
    return [*effects, *group.take_effects()]


def resume(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """Another group had its place, and came to nothing: its timer is armed again."""
    group.armed_at_ms = NEVER_MS
    group.arm(group.next_deadline_ms())
    return group.take_effects()


def touch(group: ClassicGroup, member_id: str, now_ms: int) -> None:
    """A commit proves that its member lives, as a heartbeat does."""
    member = group.members.by_id.get(member_id)
    if member is not None and group.state in (STABLE, PREPARING):
        group.postpone(member, now_ms)


def _leave_one(group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    member_id = leaving.member_id
    if not member_id:
        member_id = group.members.static_ids.get(leaving.instance_id or "", "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending_join:
        del group.pending_join[member_id]
        return ErrorCode.NONE
    elif error := group.member_error(member_id, leaving.instance_id):
        return error
    logger.info("member leaves", kv(group=group.group_id, member=member_id, reason=leaving.reason))
    group.drop(group.members.by_id[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
    assert member_id not in group.members.by_id
    return ErrorCode.NONE
