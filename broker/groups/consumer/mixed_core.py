"""A consumer group's members that speak the classic protocol: their calls. Pure.

Their generation is their epoch. There is no leader: JoinGroup is answered once it is stored, with
no members, and SyncGroup with what the member has, in the bytes of the consumers' own protocol.
That there is more to do, Heartbeat tells by REBALANCE_IN_PROGRESS, and the member joins again; what
it says it owns then is what it has not given back yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from broker.groups.classic.types import JoinInput, JoinResult, LeavingMember, SyncInput, SyncResult
from broker.groups.consumer.changes import Changes, fence
from broker.groups.consumer.classic_bytes import (
    assignment_bytes,
    owned_by,
    subscription_of,
)
from broker.groups.consumer.consumer_core import assign_if_due, begin, replace_member, step
from broker.groups.consumer.events import MemberSet
from broker.groups.consumer.group import NOTHING_ASSIGNED, ConsumerGroup
from broker.groups.consumer.migration_core import common_protocol
from broker.groups.consumer.names import check_names
from broker.groups.consumer.types import ClassicPart, Context, GroupError, Member, MemberState
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from wire.kafka.records.consumer_group import ConsumerProtocolSubscription


def join(group: ConsumerGroup, request: JoinInput, context: Context) -> tuple[Changes, JoinResult]:
    """JoinGroup. GroupError: it is refused; MEMBER_ID_REQUIRED among them."""
    known_id = _known_id(group, request)
    if known_id is None and len(group.members) >= context.members_max:
        raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    member_id = request.member_id or request.new_member_id
    names = [name for name, _ in request.protocols]
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    subscription = subscription_of(request.protocols[0][1])
    member = _member(member_id, request, subscription)
    check_names(member.topics, group.topic_members)
    others = [each for each_id, each in group.members.items() if each_id != known_id]
    if common_protocol([member, *others]) is None:
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # From here on nothing is refused.
    changes = Changes(group)
    if not group.epoch:
        begin(changes)
    before = None if known_id is None else group.members[known_id]
    had = frozenset[str]() if before is None else group.topics_of(before)
    if known_id is not None and known_id != member_id:
        replace_member(changes, known_id, member)
    elif member != before:
        changes.add(MemberSet(member_id, member))
    if before is not None:
        changes.forget_regex(before.regex)
    if group.topics_of(member) != had:
        changes.bump(context)
    elif context.topics_changed:
        changes.bump_if_topics_differ(context)
    assign_if_due(changes, context)
    has = step(changes, member, owned_by(subscription, context.topics), context)
    result = JoinResult(
        ErrorCode.NONE, member_id, has.epoch, CONSUMER_PROTOCOL_TYPE, request.protocols[0][0]
    )
    return changes, result


def _known_id(group: ConsumerGroup, request: JoinInput) -> str | None:
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is None:
        if not member_id and request.requires_known_member_id:
            raise GroupError(ErrorCode.MEMBER_ID_REQUIRED)
        return member_id if member_id in group.members else None
    holder = group.static_ids.get(instance_id)
    if not member_id:
        return holder
    if holder is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    if holder != member_id:
        raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
    return holder


def _member(
    member_id: str, request: JoinInput, subscription: ConsumerProtocolSubscription
) -> Member:
    """A pattern that a member of the instance had before is none of this one (KAFKA-19720)."""
    return Member(
        member_id,
        request.instance_id,
        subscription.rack_id,
        request.client_id,
        request.client_host,
        tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicPart(request.session_timeout_ms, request.protocols),
    )


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is not None:
        holder = group.static_ids.get(instance_id)
        if holder is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if holder != member_id:
            raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def sync(group: ConsumerGroup, request: SyncInput, context: Context) -> SyncResult:
    """SyncGroup, which changes nothing. GroupError; REBALANCE_IN_PROGRESS: it has to join again."""
    member = _classic_member(group, request.member_id, request.instance_id)
    assert member.classic is not None
    current = group.current.get(member.member_id, NOTHING_ASSIGNED)
    if request.generation_id != current.epoch:
        raise GroupError(ErrorCode.ILLEGAL_GENERATION)
    name, metadata = member.classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
        request.protocol_name not in (None, name)
    ):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
    if current.epoch < group.assignment_epoch and not is_revoking:
        raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
    given = assignment_bytes(current.assigned, metadata, context.topics)
    return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, name, given)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> ErrorCode:
    """Heartbeat, which changes nothing: the answer. GroupError."""
    member = _classic_member(group, member_id, instance_id)
    current = group.current.get(member_id, NOTHING_ASSIGNED)
    if generation_id != current.epoch:
        raise GroupError(ErrorCode.ILLEGAL_GENERATION)
    if current.epoch < group.assignment_epoch:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if current.state is MemberState.UNRELEASED_PARTITIONS and _is_something_free(group, member):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _is_something_free(group: ConsumerGroup, member: Member) -> bool:
    """Whether the member would get more by joining again."""
    member_id = member.member_id
    assigned = group.current[member_id].assigned
    return any(
        partition not in assigned.get(topic_id, ())
        and not group.is_held_by_other(member_id, topic_id, partition)
        for topic_id, partitions in group.targets.get(member_id, {}).items()
        for partition in partitions
    )


def leave(
    group: ConsumerGroup, leaving: list[LeavingMember], context: Context
) -> tuple[Changes, list[ErrorCode]]:
    """LeaveGroup, of members of both protocols: an error for each, in order."""
    changes = Changes(group)
    found: dict[str, None] = {}
    errors = []
    for each in leaving:
        member_id = each.member_id
        error = ErrorCode.NONE
        if each.instance_id is not None:
            holder = group.static_ids.get(each.instance_id)
            if holder is None:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif member_id and holder != member_id:
                error = ErrorCode.FENCED_INSTANCE_ID
            member_id = holder or ""
        elif member_id not in group.members:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if not error and member_id in found:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if not error:
            found[member_id] = None
        errors.append(error)
    fence(changes, found, context)
    return changes, errors
