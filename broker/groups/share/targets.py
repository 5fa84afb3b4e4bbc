"""Target assignments of share groups that are made beside the requests: when they are due, and
those that take long, in slices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.groups.in_units import unit_slices
from broker.groups.share.records import event_record
from broker.groups.share.simple_core import assign_simple
from broker.groups.share.target_core import (
    assignor_input,
    is_target_due,
    takes_long,
    target_due_at_ms,
    target_events,
)
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.coordinator.timers import CoordinatorTimers
    from broker.coordinator.units import Done, KeyValue
    from broker.groups.shard import GroupEntry
    from broker.groups.share.events import Event
    from broker.groups.share.live import LiveShareGroup
    from broker.groups.share.simple_core import Targets
    from broker.groups.share.types import Context, ShareTimes
    from wire.kafka.errors import ErrorCode

#: Microseconds of work before others have the loop.
_UNITS_PER_TURN = 2000
#: What it costs to make a record.
_RECORD_UNITS = 15
#: Bytes of the records of one unit, at most: with their frames below the topic's max.message.bytes.
UNIT_BYTES_MAX = 500_000


class Owner(Protocol):
    """Whose groups these are (service.py)."""

    def context(self, live: LiveShareGroup, /) -> Context: ...
    def times_of(self, group_id: str, /) -> ShareTimes: ...
    def is_current(self, entry: GroupEntry, live: LiveShareGroup, /) -> bool: ...
    def commit_records(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        events: Sequence[Event],
        records: Sequence[KeyValue],
        done: Done,
        /,
    ) -> None: ...


class TargetJobs:
    """`start(job)` runs a job in a task of its own."""

    def __init__(
        self,
        owner: Owner,
        timers: CoordinatorTimers,
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._owner = owner
        self._timers = timers
        self._start = start

    def plan(self, entry: GroupEntry, live: LiveShareGroup) -> None:
        """The group has no target of its epoch yet: one is made now, or armed for."""
        interval_ms = self._owner.times_of(live.group_id).assignment_interval_ms
        due_at_ms = target_due_at_ms(live.applied, interval_ms)
        live.target_at_ms = 2**63 - 1
        if due_at_ms is None:
            return
        wait_ms = due_at_ms - self._timers.wall_ms()
        if wait_ms > 0:
            live.target_at_ms = self._timers.now_ms() + min(wait_ms, interval_ms)
        elif takes_long(live.applied):
            live.is_computing = True
            self._start(partial(self._compute, entry, live))
        else:  # nobody may come for a while
            live.target_at_ms = self._timers.now_ms()

    async def _compute(self, entry: GroupEntry, live: LiveShareGroup) -> None:
        """A large group's assignment, in slices; anew if the group changed meanwhile."""
        slices = Slices(_UNITS_PER_TURN)
        owner = self._owner
        try:
            while owner.is_current(entry, live) and is_target_due(
                live.applied, owner.context(live)
            ):
                group, context = live.applied, owner.context(live)
                epoch = group.epoch
                targets = await _targets(live, context, slices)
                events = target_events(group, targets, epoch, context.now_ms)
                records = []
                for event in events:
                    if slices.due(_RECORD_UNITS):
                        await slices.turn()
                    records.append(event_record(live.group_id, event))
                if live.applied is not group or group.epoch != epoch:
                    continue
                if owner.is_current(entry, live):
                    self._commit(entry, live, events, records)
        finally:
            live.is_computing = False

    def _commit(
        self, entry: GroupEntry, live: LiveShareGroup, events: list[Event], records: list[KeyValue]
    ) -> None:
        """In as many units as it takes, the epoch in the last: what is between them is an older
        assignment of which some members have the newer part."""
        for part in unit_slices(records, UNIT_BYTES_MAX):
            self._commit_part(entry, live, events[part], records[part])

    def _commit_part(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        events: Sequence[Event],
        records: Sequence[KeyValue],
    ) -> None:
        for event in events:
            live.applied.apply(event)
        self._owner.commit_records(entry, live, events, records, _ignore)


async def _targets(live: LiveShareGroup, context: Context, slices: Slices) -> Targets:
    steps = assign_simple(assignor_input(live.applied, context.topics))
    try:
        while True:
            if slices.due(next(steps)):
                await slices.turn()
    except StopIteration as end:
        targets: Targets = end.value
    return targets


def record_size(record: KeyValue) -> int:
    key, value = record
    return len(key) + len(value or b"")


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; that it was not stored was logged."""
