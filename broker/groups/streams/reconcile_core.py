"""One step of a member on its way from the tasks it has to those it is to have (Kafka's
`CurrentAssignmentBuilder` of streams groups).

An active task has one owner in the group at a time, and a process has a task once, whatever it is
there. What a member is no longer to have it first gives back: until it says so, by a heartbeat that
does not list it, it keeps its epoch (UNREVOKED_TASKS). Then it is given all that is free. As long
as the rest is not, it looks again with each heartbeat (UNRELEASED_TASKS).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.streams.types import (
    Current,
    DatedTasks,
    Held,
    MemberState,
    Target,
    Tasks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    #: Of tasks of a subtopology, those that may be given to the member now, ascending.
    Free = Callable[[str, Collection[int]], list[int]]


def reconcile(
    current: Current,
    target_epoch: int,
    target: Target,
    owned: Target | None,
    free_active: Free,
    free_copies: Free,
) -> Current:
    """What the member has after this step; `current` itself if nothing changed.

    `owned` is what it said in this heartbeat, None if nothing. `free_active`: not those that
    another member computes, or that another one of the process has a copy of; `free_copies`: not
    those that another one of the process has in any way. A member of state UNKNOWN must have said
    that it owns nothing."""
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_TASKS and (
        owned is None or owns_any(owned, current.pending)
    ):
        return current
    keep, revoke = _split(current.assigned, target)
    if not revoke.is_empty and (owned is None or owns_any(owned, revoke)):
        return Current(
            current.epoch, current.previous_epoch, MemberState.UNREVOKED_TASKS, keep, revoke
        )
    active, is_short = _added_active(keep.active, target.active, target_epoch, free_active)
    standby, lacks_standby = _added(keep.standby, target.standby, free_copies)
    warmup, lacks_warmup = _added(keep.warmup, target.warmup, free_copies)
    state = MemberState.STABLE
    if is_short or lacks_standby or lacks_warmup:
        state = MemberState.UNRELEASED_TASKS
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    after = Current(target_epoch, previous, state, Held(active, standby, warmup), Held())
    return current if after == current else after


def owns_any(owned: Target, held: Held) -> bool:
    return (
        _meet(owned.active, held.active)
        or _meet(owned.standby, held.standby)
        or _meet(owned.warmup, held.warmup)
    )


def is_within(owned: Target, held: Held) -> bool:
    """A member has nothing but what it was given, each as what it was given."""
    return (
        _is_subset(owned.active, held.active)
        and _is_subset(owned.standby, held.standby)
        and _is_subset(owned.warmup, held.warmup)
    )


def _meet(some: Tasks, others: Mapping[str, Collection[int]]) -> bool:
    return any(not numbers.isdisjoint(others.get(each, ())) for each, numbers in some.items())


def _is_subset(some: Tasks, others: Mapping[str, Collection[int]]) -> bool:
    return all(numbers <= set(others.get(each, ())) for each, numbers in some.items())


def _split(assigned: Held, target: Target) -> tuple[Held, Held]:
    """(what stays, what goes)."""
    keep_active: DatedTasks = {}
    revoke_active: DatedTasks = {}
    for each, dated in assigned.active.items():
        wanted = target.active.get(each, frozenset())
        _file(keep_active, each, {n: epoch for n, epoch in dated.items() if n in wanted})
        _file(revoke_active, each, {n: epoch for n, epoch in dated.items() if n not in wanted})
    keep_standby, revoke_standby = _split_copies(assigned.standby, target.standby)
    keep_warmup, revoke_warmup = _split_copies(assigned.warmup, target.warmup)
    return (
        Held(keep_active, keep_standby, keep_warmup),
        Held(revoke_active, revoke_standby, revoke_warmup),
    )


def _split_copies(assigned: Tasks, target: Tasks) -> tuple[Tasks, Tasks]:
    keep: Tasks = {}
    revoke: Tasks = {}
    for each, numbers in assigned.items():
        wanted = target.get(each, frozenset())
        if numbers & wanted:
            keep[each] = numbers & wanted
        if numbers - wanted:
            revoke[each] = numbers - wanted
    return keep, revoke


def _file(table: DatedTasks, subtopology_id: str, dated: dict[int, int]) -> None:
    if dated:
        table[subtopology_id] = dated


def _added_active(
    keep: DatedTasks, target: Tasks, epoch: int, free_of: Free
) -> tuple[DatedTasks, bool]:
    """(what it has with all that is free, whether something was not)."""
    active: DatedTasks = dict(keep)
    is_short = False
    for each, wanted in target.items():
        had = keep.get(each, {})
        free = dict.fromkeys(free_of(each, wanted - had.keys()), epoch)
        is_short = is_short or len(had) + len(free) < len(wanted)
        if free:
            active[each] = {**had, **free}
    return active, is_short


def _added(keep: Tasks, target: Tasks, free_of: Free) -> tuple[Tasks, bool]:
    copies: Tasks = dict(keep)
    is_short = False
    for each, wanted in target.items():
        had = keep.get(each, frozenset())
        free = frozenset(free_of(each, wanted - had))
        is_short = is_short or len(had) + len(free) < len(wanted)
        if free:
            copies[each] = had | free
    return copies, is_short
