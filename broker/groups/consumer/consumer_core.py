"""Heartbeats of the consumer protocol (KIP-848): a request and the group in, events and the answer
out. Pure.

Behaviour is Kafka 4.3's. An input changes the group by events, and the shell writes just these; the
answer counts once they are stored. GroupError means that nothing was changed.

Beyond Kafka 4.3: the epoch is raised when another assignor gets the majority (KAFKA-20434), a
member that changes its instance id leaves the old one free (KAFKA-20747), and an assignor is
elected in the configured order if there is a tie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.groups.consumer.changes import Changes, fence
from broker.groups.consumer.events import CurrentSet, GroupEpoch, MemberSet, TargetEpoch, TargetSet
from broker.groups.consumer.group import NOTHING_ASSIGNED, ConsumerGroup
from broker.groups.consumer.names import check_names
from broker.groups.consumer.reconcile_core import reconcile
from broker.groups.consumer.target_core import is_target_due, make_target, takes_long
from broker.groups.consumer.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assigned,
    Context,
    Current,
    GroupError,
    HeartbeatInput,
    HeartbeatResult,
    Member,
    MemberState,
    Owned,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.groups.consumer.assignors.input import Target

#: The epoch of a group that has just been made, and of its empty targets (KAFKA-20268).
FIRST_EPOCH = 1


def heartbeat(
    group: ConsumerGroup, request: HeartbeatInput, context: Context
) -> tuple[Changes, HeartbeatResult]:
    """ConsumerGroupHeartbeat, checked by its form. GroupError: it is refused."""
    if request.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
        return _leave(group, request, context)
    known_id = _known_id(group, request)
    if known_id is None:
        _check_size(group, request, context)
    elif known_id == request.member_id:
        _check_epoch(group, request)
    before = Member(request.member_id) if known_id is None else group.members[known_id]
    member = _updated(before, request)
    if member.topics is not before.topics:
        check_names(member.topics, group.topic_members)
    _check_regex(group, before, member, context)
    # From here on nothing is refused.
    changes = Changes(group)
    if not group.epoch:
        begin(changes)
    if known_id is None or member is not before:
        _take(changes, known_id, before, member, context)
    elif context.topics_changed:
        changes.bump_if_topics_differ(context)
    if known_id == request.member_id and request.epoch == JOIN_EPOCH:
        _come_back(changes, member.member_id)
    assign_if_due(changes, context)
    had = group.current.get(member.member_id, NOTHING_ASSIGNED)
    has = step(changes, member, request.owned, context)
    is_told = request.epoch == JOIN_EPOCH or request.is_full or has.assigned != had.assigned
    return changes, HeartbeatResult(
        member_id=member.member_id,
        epoch=has.epoch,
        heartbeat_interval_ms=context.times.heartbeat_interval_ms,
        assignment=has.assigned if is_told else None,
    )


# --- refusals


def _known_id(group: ConsumerGroup, request: HeartbeatInput) -> str | None:
    """Which member's place the request is about: its own, the one of the instance that it becomes,
    or None: it is new."""
    member_id, instance_id = request.member_id, request.instance_id
    is_join = request.epoch == JOIN_EPOCH
    if instance_id is None:
        if member_id in group.members:
            return member_id
        if is_join:
            return None
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member.")
    holder = group.static_ids.get(instance_id)
    if holder is None:
        if not is_join:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance {instance_id} is unknown.")
        return member_id if member_id in group.members else None
    if holder == member_id:
        return holder
    if not is_join:
        raise GroupError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Instance {instance_id} is fenced by member {holder}.",
        )
    if (
        group.members[holder].classic is None
        and group.current.get(holder, NOTHING_ASSIGNED).epoch != STATIC_LEAVE_EPOCH
    ):
        raise GroupError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Instance {instance_id} is still used by member {holder}.",
        )
    return holder


def _check_size(group: ConsumerGroup, request: HeartbeatInput, context: Context) -> None:
    if len(group.members) >= context.members_max:
        raise GroupError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The group has reached its maximum of {context.members_max} members.",
        )


def _check_epoch(group: ConsumerGroup, request: HeartbeatInput) -> None:
    """A lower epoch is that of an answer that was lost, if the member owns no more than it has."""
    if request.epoch == JOIN_EPOCH:
        return
    current = group.current.get(request.member_id, NOTHING_ASSIGNED)
    if request.epoch > current.epoch:
        reason = f"larger epoch ({request.epoch}) than the one known ({current.epoch})"
    elif request.epoch < current.epoch and not (
        request.epoch == current.previous_epoch
        and request.owned is not None
        and _is_subset(request.owned, current.assigned)
    ):
        reason = f"smaller epoch ({request.epoch}) than the one known ({current.epoch})"
    elif current.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        reason = "state that is not known here"
    else:
        return
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member has a {reason}. It must abandon all its partitions and rejoin.",
    )


def _is_subset(owned: Owned, assigned: Assigned) -> bool:
    return all(
        partition in assigned.get(topic_id, ())
        for topic_id, partitions in owned.items()
        for partition in partitions
    )


def _check_regex(group: ConsumerGroup, before: Member, member: Member, context: Context) -> None:
    """Only a pattern that the group does not have yet is compiled."""
    regex = member.regex
    if not regex or regex == before.regex or regex in group.regex_members:
        return
    error = context.regex_error(regex)
    if error is not None:
        raise GroupError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        )


# --- what a member says of itself


def _updated(before: Member, request: HeartbeatInput) -> Member:
    """`before` itself if it says nothing new."""
    topics = before.topics if request.topics is None else request.topics
    regex = before.regex if request.regex is None else request.regex
    if before.classic is not None and request.regex is None:
        regex = ""
    member = Member(
        request.member_id,
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        topics,
        regex,
        before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        before.server_assignor if request.server_assignor is None else request.server_assignor,
    )
    return before if member == before else member


def _take(
    changes: Changes, known_id: str | None, before: Member, member: Member, context: Context
) -> None:
    """A member is new, has said something new, or takes an instance's place."""
    group = changes.group
    had = frozenset[str]() if known_id is None else group.topics_of(before)
    assignor = group.assignor(context.assignors)
    if known_id is not None and known_id != member.member_id:
        replace_member(changes, known_id, member)
    else:
        changes.add(MemberSet(member.member_id, member))
    changes.forget_regex(before.regex)
    if group.topics_of(member) != had or (
        group.assignor(context.assignors) != assignor and len(group.members) > 1
    ):
        changes.bump(context)
    elif context.topics_changed:
        changes.bump_if_topics_differ(context)


def replace_member(changes: Changes, old_id: str, member: Member) -> None:
    """A static member is back by another id: it takes over the target, and what its predecessor
    had. Nobody else notices, unless its subscription is another."""
    group = changes.group
    target = group.targets.get(old_id)
    current = group.current.get(old_id, NOTHING_ASSIGNED)
    changes.add(CurrentSet(old_id, None))
    if target is not None:
        changes.add(TargetSet(old_id, None))
    changes.add(MemberSet(old_id, None))
    changes.add(MemberSet(member.member_id, member))
    if target is not None:
        changes.add(TargetSet(member.member_id, target))
    changes.add(CurrentSet(member.member_id, Current(assigned=_of_epoch_0(current.assigned))))


def _come_back(changes: Changes, member_id: str) -> None:
    """A static member that had gone for a while joins by the same id."""
    current = changes.group.current.get(member_id, NOTHING_ASSIGNED)
    if current.epoch == STATIC_LEAVE_EPOCH:
        changes.add(CurrentSet(member_id, Current(assigned=_of_epoch_0(current.assigned))))


def _of_epoch_0(assigned: Assigned) -> Assigned:
    return {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in assigned.items()}


def begin(changes: Changes) -> None:
    """The group's first records."""
    changes.add(GroupEpoch((FIRST_EPOCH, 0)))
    changes.add(TargetEpoch((FIRST_EPOCH, 0)))


# --- what it is to have, and has


def assign_if_due(changes: Changes, context: Context) -> None:
    """A new target for all, if there is to be one now and that does not take long."""
    group = changes.group
    if is_target_due(group, context) and not takes_long(group, context.topics):
        for event in make_target(group, context):
            changes.add(event)


def step(changes: Changes, member: Member, owned: Owned | None, context: Context) -> Current:
    """Brings a member as near to its target as can be now; what it has then."""
    group, member_id = changes.group, member.member_id
    current = group.current.get(member_id)
    if (
        current is not None
        and current.state is MemberState.STABLE
        and current.epoch == group.assignment_epoch
        and not changes.events
    ):
        return current
    after = reconcile(
        NOTHING_ASSIGNED if current is None else current,
        group.assignment_epoch,
        reachable_target(group, member, context),
        owned,
        lambda topic_id, partition: group.is_held_by_other(member_id, topic_id, partition),
    )
    if after is not current:
        changes.add(CurrentSet(member_id, after))
    return after


def reachable_target(group: ConsumerGroup, member: Member, context: Context) -> Target:
    """A member's target without what it is no longer subscribed to, or what is gone."""
    target = group.targets.get(member.member_id, {})
    subscribed = group.topics_of(member)
    left = {}
    for topic_id, partitions in target.items():
        topic = context.topics.get_by_id(topic_id)
        if topic is not None and topic.name in subscribed:
            left[topic_id] = partitions
    return target if len(left) == len(target) else left


# --- leaving


def _leave(
    group: ConsumerGroup, request: HeartbeatInput, context: Context
) -> tuple[Changes, HeartbeatResult]:
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is None:
        if member_id not in group.members:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member.")
    else:
        _check_instance(group, member_id, instance_id)
    changes = Changes(group)
    if request.epoch == STATIC_LEAVE_EPOCH:
        current = group.current.get(member_id, NOTHING_ASSIGNED)
        away = replace(
            current,
            epoch=STATIC_LEAVE_EPOCH,
            state=MemberState.STABLE,
            assigned=_of_epoch_0(current.assigned),
            pending={},
        )
        changes.add(CurrentSet(member_id, away))
    else:
        fence(changes, [member_id], context)
    return changes, HeartbeatResult(member_id=member_id, epoch=request.epoch)


def _check_instance(group: ConsumerGroup, member_id: str, instance_id: str) -> None:
    holder = group.static_ids.get(instance_id)
    if holder is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance {instance_id} is unknown.")
    if holder != member_id:
        raise GroupError(
            ErrorCode.FENCED_INSTANCE_ID, f"Instance {instance_id} is fenced by member {holder}."
        )
