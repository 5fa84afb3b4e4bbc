"""A rebalance of a group: prepared, completed by a generation, and stable once that is assigned.

Functions of group_core's inputs: each changes the group and leaves effects with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.groups.classic.group import COMPLETING, EMPTY, NEVER_MS, PREPARING, STABLE
from broker.groups.classic.types import AssignmentStored, OwnershipShown, Persist, SyncResult
from runtime.logs import kv
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.groups.classic.group import ClassicGroup
    from broker.groups.classic.members import Member

logger = logging.getLogger(__name__)


def rebalance_or_complete(group: ClassicGroup, reason: str, now_ms: int) -> None:
    if group.state is PREPARING:
        maybe_complete_join(group, now_ms)
    else:
        prepare_rebalance(group, reason, now_ms)


def prepare_rebalance(group: ClassicGroup, reason: str, now_ms: int) -> None:
    if group.state is COMPLETING:
        discard_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
    else:
        group.refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
    group.pending_sync.clear()
    group.sync_deadline_ms = NEVER_MS
    group.is_initial = group.state is EMPTY
    logger.info(
        "rebalance begins",
        kv(group=group.group_id, state=group.state.value, generation=group.generation_id,
           reason=reason),
    )  # fmt: skip
    group.rebalance = (reason, now_ms)
    group.enter(PREPARING, now_ms)
    if group.is_initial:
        # More members are likely to follow the first: one rebalance for all of them.
        delay_ms = group.limits.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.members.rebalance_timeout_ms() - delay_ms, 0)
        group.set_join_deadline(now_ms + delay_ms)
    elif group.all_joined:
        complete_join(group, now_ms)
    else:
        group.set_join_deadline(now_ms + group.members.rebalance_timeout_ms())


def maybe_complete_join(group: ClassicGroup, now_ms: int) -> None:
    """Completes if nobody is missing; the initial rebalance always waits for its delay."""
    if not group.is_initial:
        complete_if_all_joined(group, now_ms)


def complete_if_all_joined(group: ClassicGroup, now_ms: int) -> None:
    if group.state is PREPARING and group.all_joined:
        complete_join(group, now_ms)


def on_join_deadline(group: ClassicGroup, now_ms: int) -> None:
    assert group.state is PREPARING, "only then is there such a deadline"
    group.join_deadline_ms = NEVER_MS
    if group.is_initial and group.new_member_added and group.initial_remaining_ms:
        group.new_member_added = False
        delay_ms = min(group.limits.initial_rebalance_delay_ms, group.initial_remaining_ms)
        remaining_ms = group.initial_remaining_ms - group.initial_delay_ms
        group.initial_remaining_ms = max(remaining_ms, 0)
        group.initial_delay_ms = delay_ms
        group.set_join_deadline(now_ms + delay_ms)
    else:
        complete_join(group, now_ms)


def complete_join(group: ClassicGroup, now_ms: int) -> None:
    """Nobody is waited for any longer: the next generation is who has joined, and static
    members, who are only removed when their session ends."""
    assert group.state is PREPARING
    group.join_deadline_ms = NEVER_MS
    for member in list(group.members.by_id.values()):
        if member.join_token is None and member.instance_id is None:
            logger.info("member did not rejoin", kv(group=group.group_id, member=member.member_id))
            group.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
    if group.members and not group.members.elect_joined_leader():
        # Only absent static members are left: wait until they join or their sessions end.
        group.is_initial = False
        group.set_join_deadline(now_ms + group.members.rebalance_timeout_ms())
        return
    group.generation_id += 1
    group.is_initial = False
    group.pending_sync.clear()
    if not group.members:
        group.protocol_name = None
        group.subscribed = group.compute_subscribed()
        group.enter(EMPTY, now_ms)
        logger.info("generation is empty", kv(group=group.group_id, generation=group.generation_id))
        group.effects.append(Persist(group.snapshot()))
        return
    group.protocol_name = group.members.select_protocol()
    group.subscribed = group.compute_subscribed()
    group.enter(COMPLETING, now_ms)
    logger.info(
        "generation begins",
        kv(group=group.group_id, generation=group.generation_id, members=len(group.members),
           protocol=group.protocol_name, leader=group.members.leader_id),
    )  # fmt: skip
    for member in group.members.by_id.values():
        group.answer_join(member, group.join_result(member))
        group.schedule(member, member.session_timeout_ms, now_ms)
        member.is_new = False
        group.pending_sync.add(member.member_id)
    assert group.pending_sync == group.members.by_id.keys()
    assert not group.members.awaiting_join_count, "everybody was told the generation"
    group.sync_deadline_ms = now_ms + group.members.rebalance_timeout_ms()
    group.arm(group.sync_deadline_ms)


def on_assignment_stored(
    group: ClassicGroup, then: AssignmentStored, error: ErrorCode, now_ms: int
) -> None:
    if group.state is not COMPLETING or group.generation_id != then.generation_id:
        return  # another rebalance has begun, and told the members so
    if error:
        discard_assignments(group, error, now_ms)
        prepare_rebalance(group, f"assignment not stored: {error.name}", now_ms)
        return
    assert then.assignments.keys() == group.members.by_id.keys(), "as `sync` made them"
    group.enter(STABLE, now_ms)
    for member in group.members.by_id.values():
        member.assignment = then.assignments.get(member.member_id, b"")
        group.finish_sync(member, group.sync_result(member), now_ms)


def on_ownership_shown(
    group: ClassicGroup, then: OwnershipShown, error: ErrorCode, now_ms: int
) -> None:
    member = group.members.by_id.get(then.member_id)
    if member is None or member.sync_token is not then.token:
        return  # answered meanwhile: by a rebalance that began, or a later SyncGroup
    result = SyncResult(error) if error else group.sync_result(member)
    group.finish_sync(member, result, now_ms)


def discard_assignments(group: ClassicGroup, error: ErrorCode, now_ms: int) -> None:
    assert group.state is COMPLETING, "a stable generation keeps its assignments"
    for member in group.members.by_id.values():
        member.assignment = b""
    group.refuse_syncs(error, now_ms)


def on_sync_deadline(group: ClassicGroup, now_ms: int) -> None:
    """KAFKA-10288 and others: who joined and never asks for its assignment is removed."""
    group.sync_deadline_ms = NEVER_MS
    if group.state not in (COMPLETING, STABLE) or not group.pending_sync:
        return
    late = [m for i, m in group.members.by_id.items() if i in group.pending_sync]
    assert late, "who is waited for is a member"
    for member in late:
        group.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
    prepare_rebalance(group, f"{len(late)} members sent no SyncGroup", now_ms)


def expire(group: ClassicGroup, member: Member, now_ms: int) -> None:
    logger.info("session expired", kv(group=group.group_id, member=member.member_id))
    group.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state in (STABLE, COMPLETING):
        prepare_rebalance(group, f"session of {member.member_id} expired", now_ms)
    else:
        complete_if_all_joined(group, now_ms)
