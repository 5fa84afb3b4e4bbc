"""Heartbeats of streams groups (KIP-1071): a request and the group in, events and the answer out.
Pure.

Behaviour is Kafka 4.3's. An input changes the group by events, and the shell writes just these; the
answer counts once they are stored. GroupError means that nothing was changed.

Beyond Kafka 4.3: a member that is known may rejoin a group that is full (KAFKA-20601); a client
whose last answer was lost is told its tasks again, where Kafka's answer leaves them out and the
client would go on with what it had; tasks that the group gave a member are not refused to it by a
coordinator that knows fewer partitions than the one before it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from broker.groups.streams.changes import (
    Changes,
    assignor_input,
    fence,
    is_target_due,
    target_due_at_ms,
    target_events,
)
from broker.groups.streams.events import CurrentSet, GroupSet, MemberSet, TargetEpoch, TopologySet
from broker.groups.streams.group import NO_TARGET, NOTHING_HELD, StreamsGroup
from broker.groups.streams.reconcile_core import is_within, reconcile
from broker.groups.streams.task_assignor_core import assign
from broker.groups.streams.topology_core import Configured, configure
from broker.groups.streams.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Context,
    Current,
    GroupError,
    GroupMetadata,
    HeartbeatInput,
    HeartbeatResult,
    Member,
    MemberState,
    Status,
    StatusCode,
    Target,
    Topology,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.groups.streams.task_assignor_core import Targets

#: The epoch of a group that has just been made, and of its empty targets.
FIRST_EPOCH = 1
#: Members and tasks of a group whose assignment is made at once: together 1 to 2 ms.
INLINE_COST_MAX = 400


def heartbeat(
    group: StreamsGroup, request: HeartbeatInput, context: Context, configured: Configured | None
) -> tuple[Changes, HeartbeatResult, Configured]:
    """StreamsGroupHeartbeat, checked by its form; not of a member that leaves. `configured`: what
    the group's topology comes to with the topics as they are now, if that is known. The answer is
    without what the shell knows of the group. GroupError: it is refused."""
    known = _known(group, request, context)
    topology = _topology(group, request)
    if configured is None or topology is not group.topology:
        configured = configure(topology, context.topics)
    if request.owned is not None and configured.is_ready:
        has = group.current.get(request.member_id, NOTHING_HELD)
        _check_tasks(configured, request.owned, has)
    # From here on nothing is refused.
    changes = Changes(group)
    if not group.epoch:
        _begin(changes)
    member = _updated(known or Member(request.member_id), request)
    if topology is not group.topology:
        changes.add(TopologySet(topology))
    if known is None or member is not known:
        changes.add(MemberSet(member.member_id, member))
    refresh(changes, configured, context)
    statuses = []
    if member.topology_epoch < topology.epoch:
        statuses.append(_stale(member, topology))
    if context.is_delayed:
        _say_delayed(statuses, "initial rebalance delay")
    else:
        assign_if_due(changes, configured, context)
        if target_due_at_ms(group, context.times.assignment_interval_ms) is not None:
            _say_delayed(statuses, "assignment interval")
    had = group.current.get(member.member_id, NOTHING_HELD)
    has = _step(changes, member, request.owned)
    is_told = (
        request.epoch == JOIN_EPOCH
        # It says what it owns when that has changed, or when its last answer was lost, whatever
        # that was: of tasks that it had been told and has not begun, what it owns says nothing.
        or request.owned is not None
        or has.assigned != had.assigned
    )
    if configured.problem is not None:
        statuses.append(configured.problem)
    result = HeartbeatResult(
        member_id=member.member_id,
        epoch=has.epoch,
        heartbeat_interval_ms=context.times.heartbeat_interval_ms,
        tasks=has.assigned if is_told else None,
        statuses=statuses,
        to_create=configured.missing,
    )
    return changes, result, configured


def leave(group: StreamsGroup, request: HeartbeatInput) -> tuple[Changes, HeartbeatResult]:
    """A member goes; its epoch is not compared. GroupError: there is no such member."""
    if request.member_id not in group.members:
        raise _unknown_member(group, request)
    changes = Changes(group)
    fence(changes, [request.member_id])
    return changes, HeartbeatResult(member_id=request.member_id, epoch=LEAVE_EPOCH)


# --- refusals


def _known(group: StreamsGroup, request: HeartbeatInput, context: Context) -> Member | None:
    """The member as it was until now; None: it is new."""
    member = group.members.get(request.member_id)
    if member is None:
        if request.epoch != JOIN_EPOCH:
            raise _unknown_member(group, request)
        if len(group.members) >= context.members_max:
            raise GroupError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The streams group has reached its maximum capacity of"
                f" {context.members_max} members.",
            )
    elif request.epoch != JOIN_EPOCH:
        _check_epoch(group, request)
    return member


def _unknown_member(group: StreamsGroup, request: HeartbeatInput) -> GroupError:
    return GroupError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {request.member_id} is not a member of group {group.group_id}.",
    )


def _check_epoch(group: StreamsGroup, request: HeartbeatInput) -> None:
    """A lower epoch is that of an answer that was lost, if the member owns no more than it has."""
    current = group.current.get(request.member_id, NOTHING_HELD)
    if request.epoch > current.epoch:
        reason = f"greater member epoch ({request.epoch}) than the one known by the group"
        reason += f" coordinator ({current.epoch})"
    elif request.epoch < current.epoch and not (
        request.epoch == current.previous_epoch
        and request.owned is not None
        and is_within(request.owned, current.assigned)
    ):
        reason = f"smaller member epoch ({request.epoch}) than the one known by the group"
        reason += f" coordinator ({current.epoch})"
    elif current.state is MemberState.UNKNOWN and request.owned != NO_TARGET:
        reason = "state that is not known here"
    else:
        return
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {reason}. The member must abandon all its tasks and"
        " rejoin.",
    )


def _topology(group: StreamsGroup, request: HeartbeatInput) -> Topology:
    """The first one stays, for as long as there is the group."""
    if group.topology is None:
        if request.topology is None:
            # Only a log that lost the record comes to that: whoever joins next brings another.
            raise GroupError(
                ErrorCode.FENCED_MEMBER_EPOCH, "The group has no topology. The member must rejoin."
            )
        return request.topology
    asked = request.topology
    if asked is not None and asked.epoch >= group.topology.epoch and asked != group.topology:
        raise GroupError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return group.topology


def _check_tasks(configured: Configured, owned: Target, has: Current) -> None:
    """GroupError: tasks that the topology does not come to.

    Not of those that the group gave the member. A broker that has just become the coordinator may
    know fewer partitions of a topic that grew than the one before it; it takes the tasks back, and
    gives them again later, where this refusal would end the application.
    """
    for tasks, given in (
        (owned.active, (has.assigned.active, has.pending.active)),
        (owned.standby, (has.assigned.standby, has.pending.standby)),
        (owned.warmup, (has.assigned.warmup, has.pending.warmup)),
    ):
        for subtopology_id, numbers in tasks.items():
            new = numbers.difference(*(each.get(subtopology_id, ()) for each in given))
            if new:
                _check_numbers(configured, subtopology_id, new)


def _check_numbers(configured: Configured, subtopology_id: str, numbers: Collection[int]) -> None:
    known = configured.subtopologies.get(subtopology_id)
    if known is None:
        raise GroupError(
            ErrorCode.INVALID_REQUEST,
            f"Subtopology {subtopology_id} does not exist in the topology.",
        )
    worst = max(numbers, key=lambda n: n if n >= 0 else known.task_count - n)
    if not 0 <= worst < known.task_count:
        raise GroupError(
            ErrorCode.INVALID_REQUEST,
            f"Task {worst} for subtopology {subtopology_id} is invalid. Number of tasks"
            f" for this subtopology: {known.task_count}",
        )


# --- what a member says of itself, and what follows for the group


def _begin(changes: Changes) -> None:
    """The group's first records."""
    changes.add(GroupSet(GroupMetadata(FIRST_EPOCH)))
    changes.add(TargetEpoch((FIRST_EPOCH, 0)))


def _updated(before: Member, request: HeartbeatInput) -> Member:
    """`before` itself if it says nothing new."""
    given: dict[str, object] = {
        "rack_id": request.rack_id,
        "process_id": request.process_id,
        "user_endpoint": request.user_endpoint,
        "client_tags": request.client_tags,
        "topology_epoch": None if request.topology is None else request.topology.epoch,
        "rebalance_timeout_ms": (
            None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
    }
    said = {name: value for name, value in given.items() if value is not None}
    member = replace(
        before,
        client_id=request.client_id,
        client_host=request.client_host,
        **said,  # type: ignore[arg-type]
    )
    return before if member == before else member


def refresh(changes: Changes, configured: Configured, context: Context) -> None:
    """The epoch is raised if a member or the topology changed, or what the topology comes to."""
    metadata = changes.group.metadata
    found = GroupMetadata(
        metadata.epoch,
        configured.metadata_hash,
        configured.epoch if configured.is_ready else -1,
        context.times.assignor_configs,
    )
    if changes.events or found != metadata:
        changes.bump(found)


def _stale(member: Member, topology: Topology) -> Status:
    return Status(
        StatusCode.STALE_TOPOLOGY,
        f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch"
        f" {topology.epoch}.",
    )


def _say_delayed(statuses: list[Status], why: str) -> None:
    statuses.append(
        Status(StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {why}.")
    )


# --- what it is to have, and has


def assign_if_due(changes: Changes, configured: Configured, context: Context) -> None:
    """A new target for all, if there is to be one now and that does not take long."""
    group = changes.group
    if context.is_delayed or not is_target_due(group, context.times, context.now_ms):
        return
    given = assignor_input(group, configured, context.times)
    if given.cost > INLINE_COST_MAX:
        return
    steps = assign(given)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        targets: Targets = end.value
    for event in target_events(group, targets, group.epoch, context.now_ms):
        changes.add(event)


def _step(changes: Changes, member: Member, owned: Target | None) -> Current:
    """Brings a member as near to its target as can be now; what it has then."""
    group, member_id = changes.group, member.member_id
    current = group.current.get(member_id)
    after = reconcile(
        NOTHING_HELD if current is None else current,
        group.assignment_epoch,
        group.targets.get(member_id, NO_TARGET),
        owned,
        partial(group.free_active, member_id),
        partial(group.free_copies, member_id),
    )
    if after is not current:
        changes.add(CurrentSet(member_id, after))
    return after
