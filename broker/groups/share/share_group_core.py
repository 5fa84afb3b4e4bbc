"""Heartbeats of share groups (KIP-932): a request and the group in, events and the answer out.
Pure.

Behaviour is Kafka 4.3's. An input changes the group by events, and the shell writes just these; the
answer counts once they are stored. GroupError means that nothing was changed. Which partitions are
to be begun at the share coordinator is state_core's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.names import check_names
from broker.groups.consumer.types import GroupError
from broker.groups.share.changes import Changes, fence
from broker.groups.share.events import CurrentSet, MemberSet, TargetEpoch
from broker.groups.share.group import NOTHING_ASSIGNED
from broker.groups.share.target_core import is_target_due, make_target, takes_long
from broker.groups.share.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Context,
    Current,
    HeartbeatInput,
    HeartbeatResult,
    Member,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.groups.share.group import ShareGroup
    from broker.groups.share.types import Target


def heartbeat(
    group: ShareGroup, request: HeartbeatInput, context: Context
) -> tuple[Changes, HeartbeatResult]:
    """ShareGroupHeartbeat, checked by its form. GroupError: it is refused."""
    member_id = request.member_id
    if request.epoch == LEAVE_EPOCH:
        return _leave(group, member_id, context)
    before = group.members.get(member_id)
    if before is None:
        _check_new(group, request, context)
        before = Member(member_id)
    else:
        _check_epoch(group, request)
    member = _updated(before, request)
    if member.topics is not before.topics:
        check_names(member.topics, group.topic_members)
    # From here on nothing is refused.
    changes = Changes(group)
    if member is not before:
        changes.add(MemberSet(member_id, member))
    if member.topics != before.topics or not group.epoch:
        changes.bump(context.topics)
    elif context.topics_changed:
        changes.bump_if_topics_differ(context.topics)
    assign_if_due(changes, context)
    had = group.current.get(member_id, NOTHING_ASSIGNED)
    has = _step(changes, member, context)
    # A client that says what it is subscribed to does not know what the server has.
    is_told = (
        request.epoch == JOIN_EPOCH or request.topics is not None or has.assigned != had.assigned
    )
    return changes, HeartbeatResult(
        member_id=member_id,
        epoch=has.epoch,
        heartbeat_interval_ms=context.times.heartbeat_interval_ms,
        assignment=has.assigned if is_told else None,
    )


# --- refusals


def _check_new(group: ShareGroup, request: HeartbeatInput, context: Context) -> None:
    if len(group.members) >= context.members_max:
        raise GroupError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group has reached its maximum of {context.members_max} members.",
        )
    if request.epoch != JOIN_EPOCH:
        raise GroupError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member."
        )


def _check_epoch(group: ShareGroup, request: HeartbeatInput) -> None:
    """The epoch before the last one is that of an answer that was lost."""
    if request.epoch == JOIN_EPOCH:
        return
    current = group.current.get(request.member_id, NOTHING_ASSIGNED)
    if request.epoch in (current.epoch, current.previous_epoch):
        return
    which = "larger" if request.epoch > current.epoch else "smaller"
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member has a {which} epoch ({request.epoch}) than the one known ({current.epoch})."
        " It must abandon all its partitions and rejoin.",
    )


def _updated(before: Member, request: HeartbeatInput) -> Member:
    """`before` itself if it says nothing new."""
    topics = before.topics if request.topics is None else request.topics
    member = Member(
        request.member_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        topics,
    )
    return before if member == before else member


# --- what it is to have, and has


def assign_if_due(changes: Changes, context: Context) -> None:
    """A new target for all, if there is to be one now and that does not take long."""
    group = changes.group
    if not is_target_due(group, context):
        return
    if not takes_long(group):
        for event in make_target(group, context):
            changes.add(event)
    elif not group.assignment_epoch:
        # Nobody is told epoch 0: until there is a first assignment, there is an empty one.
        changes.add(TargetEpoch((group.epoch, 0)))
        changes.bump(context.topics)


def _step(changes: Changes, member: Member, context: Context) -> Current:
    """What the member has from now on: all that it is to have. Nobody has to give anything back
    first, as partitions are shared."""
    group, member_id = changes.group, member.member_id
    current = group.current.get(member_id)
    if current is not None and current.epoch == group.assignment_epoch and not changes.events:
        return current
    target = _reachable_target(group, member, context)
    known = NOTHING_ASSIGNED if current is None else current
    if known.epoch != group.assignment_epoch:
        after = Current(group.assignment_epoch, known.epoch, target)
    elif known.assigned != target:
        after = Current(known.epoch, known.previous_epoch, target)
    else:
        return known
    changes.add(CurrentSet(member_id, after))
    return after


def _reachable_target(group: ShareGroup, member: Member, context: Context) -> Target:
    """A member's target without what it is no longer subscribed to, or what is gone."""
    target = group.targets.get(member.member_id, {})
    left = {}
    subscribed = frozenset(member.topics)
    for topic_id, partitions in target.items():
        topic = context.topics.get_by_id(topic_id)
        if topic is not None and topic.name in subscribed:
            left[topic_id] = partitions
    return target if len(left) == len(target) else left


# --- leaving


def _leave(group: ShareGroup, member_id: str, context: Context) -> tuple[Changes, HeartbeatResult]:
    if member_id not in group.members:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member.")
    changes = Changes(group)
    fence(changes, [member_id], context.topics)
    return changes, HeartbeatResult(member_id=member_id, epoch=LEAVE_EPOCH)
