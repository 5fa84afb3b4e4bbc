"""One step of a member on its way from what it has to what it is to have (Kafka's
`CurrentAssignmentBuilder`).

A partition has one owner at a time. What a member is no longer to have it first gives back: until
it says so, by a heartbeat that does not list it, it keeps its epoch (UNREVOKED_PARTITIONS). Then it
is given all that nobody else still has. As long as somebody has the rest, it looks again with each
heartbeat (UNRELEASED_PARTITIONS).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.types import Assigned, Current, MemberState, Owned

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from broker.groups.consumer.assignors.input import Target

    #: (topic id, partition) -> whether another member has it.
    IsHeld = Callable[[UUID, int], bool]


def reconcile(
    current: Current, target_epoch: int, target: Target, owned: Owned | None, is_held: IsHeld
) -> Current:
    """What the member has after this step; `current` itself if nothing changed.

    `target` is already cut to what the member is subscribed to; `owned` is what it said in this
    heartbeat, None if nothing. A member of state UNKNOWN must have said that it owns nothing."""
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return _trimmed(current, target, owned)
    if current.state is MemberState.UNREVOKED_PARTITIONS and not _is_given_back(current, owned):
        return current
    return _next(current, target_epoch, target, owned, is_held)


def _trimmed(current: Current, target: Target, owned: Owned | None) -> Current:
    """A subscription that became narrower counts at once, before there is a new target."""
    keep, revoke = _split(current.assigned, target)
    if not revoke:
        return current
    epoch, previous = current.epoch, current.previous_epoch
    if owned is None or _owns_any(owned, revoke):
        return Current(epoch, previous, MemberState.UNREVOKED_PARTITIONS, keep, revoke)
    return Current(epoch, previous, MemberState.STABLE, keep, {})


def _is_given_back(current: Current, owned: Owned | None) -> bool:
    if owned is None:
        return False
    return not any(
        partition in owned.get(topic_id, ())
        for topic_id, partitions in current.pending.items()
        for partition in partitions
    )


def _next(
    current: Current, target_epoch: int, target: Target, owned: Owned | None, is_held: IsHeld
) -> Current:
    keep, revoke = _split(current.assigned, target)
    if revoke and (owned is None or _owns_any(owned, revoke)):
        return Current(
            current.epoch, current.previous_epoch, MemberState.UNREVOKED_PARTITIONS, keep, revoke
        )
    assigned, withheld = _with_added(keep, target, target_epoch, is_held)
    state = MemberState.UNRELEASED_PARTITIONS if withheld else MemberState.STABLE
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    after = Current(target_epoch, previous, state, assigned, {})
    return current if after == current else after


def _split(assigned: Assigned, target: Target) -> tuple[Assigned, Assigned]:
    """(what stays, what goes)."""
    keep: Assigned = {}
    revoke: Assigned = {}
    for topic_id, partitions in assigned.items():
        wanted = target.get(topic_id, frozenset())
        if wanted.issuperset(partitions):
            keep[topic_id] = partitions
            continue
        staying = {p: epoch for p, epoch in partitions.items() if p in wanted}
        if staying:
            keep[topic_id] = staying
        revoke[topic_id] = {p: epoch for p, epoch in partitions.items() if p not in wanted}
    return keep, revoke


def _owns_any(owned: Owned, revoke: Assigned) -> bool:
    return any(
        partition in owned.get(topic_id, ())
        for topic_id, partitions in revoke.items()
        for partition in partitions
    )


def _with_added(
    keep: Assigned, target: Target, epoch: int, is_held: IsHeld
) -> tuple[Assigned, bool]:
    """(what the member has with all that is free, whether something was not)."""
    assigned: Assigned = dict(keep)
    withheld = False
    for topic_id, wanted in target.items():
        had = keep.get(topic_id, {})
        if len(had) == len(wanted):
            continue
        free = {p: epoch for p in sorted(wanted) if p not in had and not is_held(topic_id, p)}
        withheld = withheld or len(had) + len(free) < len(wanted)
        if free:
            assigned[topic_id] = {**had, **free}
    return assigned, withheld
