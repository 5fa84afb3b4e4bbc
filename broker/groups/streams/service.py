"""Streams groups in a running coordinator: inputs to the cores, their events to the log, and what
takes time beside the requests: timers, assignments of large groups, internal topics.

What an input changes is in force in memory at once, and its answer waits until the records are
stored. An input that changes nothing is answered at once, or behind what the group still has on its
way. A steady group's heartbeat writes nothing, and looks at nothing but its own member.

Tasks: `run`, and one below it for each large assignment and each making of topics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.coordinator.partition import PartitionState
from broker.groups.classic import group_core
from broker.groups.classic.group import ClassicGroup
from broker.groups.in_units import Unit, unit_slices
from broker.groups.records import group_tombstone
from broker.groups.streams import streams_core
from broker.groups.streams.changes import (
    Changes,
    assignor_input,
    fence,
    is_target_due,
    target_due_at_ms,
    target_events,
)
from broker.groups.streams.endpoints import endpoints
from broker.groups.streams.events import (
    ClassicGone,
    Event,
    GroupSet,
    TargetEpoch,
    TopologySet,
)
from broker.groups.streams.internal_topics import InternalTopics
from broker.groups.streams.live import NEVER_MS, LiveStreamsGroup
from broker.groups.streams.records import event_record
from broker.groups.streams.task_assignor_core import assign
from broker.groups.streams.topology_core import configure
from broker.groups.streams.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Context,
    GroupError,
    HeartbeatInput,
    HeartbeatResult,
    Status,
    StatusCode,
)
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from broker.coordinator.ports import Catalog as Topics
    from broker.coordinator.timers import CoordinatorTimers
    from broker.coordinator.units import Done, KeyValue
    from broker.groups.classic.types import GroupLimits
    from broker.groups.shard import GroupEntry, GroupShard
    from broker.groups.streams.settings import StreamsSettings
    from broker.groups.streams.task_assignor_core import Targets
    from broker.groups.streams.topology_core import Configured
    from broker.groups.streams.types import InternalTopic, StreamsTimes

logger = logging.getLogger(__name__)

#: Microseconds of work before others have the loop.
_UNITS_PER_TURN = 2000
#: What it costs to make a record.
_RECORD_UNITS = 15
#: Bytes of the records of one unit, at most: with their frames below the topic's max.message.bytes.
UNIT_BYTES_MAX = 500_000
#: What a member is told if its group's records could not be stored: it tries again. Any other error
#: would end a client for good.
_RETRIABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class StreamsGroups:
    """One per group coordinator. `times_of(group id)`: a group's settings in force; `limits`: of
    the classic groups that may take a group's place."""

    def __init__(
        self,
        timers: CoordinatorTimers,
        settings: StreamsSettings,
        topics: Topics,
        times_of: Callable[[str], StreamsTimes],
        limits: GroupLimits,
    ) -> None:
        self.settings = settings
        self.topics = topics
        self._limits = limits
        self._timers = timers
        self._times_of = times_of
        #: Makes an internal topic; KafkaError or MetadataError, with why not.
        self.create_topic: Callable[[InternalTopic], Awaitable[None]] = self._create_plainly
        self._internal = InternalTopics(lambda topic: self.create_topic(topic), timers.now_ms)
        #: Changes of topics that were seen; a group compares.
        self._topics_version = 0
        # At most one for each group, and for each internal topic.
        self._jobs_in, self._jobs = trio.open_memory_channel[Callable[[], Awaitable[None]]](
            math.inf
        )

    async def run(self) -> None:
        """Never returns."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(await self._jobs.receive())

    def topics_changed(self) -> None:
        """To be called after each change of the catalog."""
        self._topics_version += 1

    # --- inputs

    def heartbeat(
        self,
        shard: GroupShard,
        group_id: str,
        request: HeartbeatInput,
        reply: Callable[[HeartbeatResult], None],
    ) -> None:
        """StreamsGroupHeartbeat: `reply` is called now, or once the records are stored."""
        try:
            if request.epoch == LEAVE_EPOCH:
                entry, live, changes, result = self._leave(shard, group_id, request)
            else:
                entry, live, changes, result = self._decide(shard, group_id, request)
        except GroupError as error:
            reply(HeartbeatResult(error.code, error.message or None))
            return

        def done(error: ErrorCode) -> None:
            if error and error not in _RETRIABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            reply(HeartbeatResult(error) if error else result)

        self.commit(entry, live, changes, done)

    def _leave(
        self, shard: GroupShard, group_id: str, request: HeartbeatInput
    ) -> tuple[GroupEntry, LiveStreamsGroup, list[Event], HeartbeatResult]:
        entry = shard.groups.get(group_id)
        if entry is None or not isinstance(entry.group, LiveStreamsGroup):
            raise _not_found(entry, group_id)
        live = entry.group
        if request.shuts_down and request.member_id in live.applied.members:
            live.shutdown_by = request.member_id
        changes, result = streams_core.leave(live.applied, request)
        return entry, live, changes.events, result

    def _decide(
        self, shard: GroupShard, group_id: str, request: HeartbeatInput
    ) -> tuple[GroupEntry, LiveStreamsGroup, list[Event], HeartbeatResult]:
        entry = shard.groups.get(group_id)
        before = None if entry is None else entry.group
        first: list[Event] = []
        if isinstance(before, LiveStreamsGroup):
            live = before
        else:
            if request.epoch != JOIN_EPOCH:
                raise _not_found(entry, group_id)
            if before is not None:
                if not isinstance(before, ClassicGroup) or not before.is_empty:
                    raise _not_found(entry, group_id)
                first = [ClassicGone()]
            live = LiveStreamsGroup(group_id, self.topics, before)
        delayed_until_ms = self._delayed_until_ms(live)
        context = self._context(live, is_delayed=self._timers.now_ms() < delayed_until_ms)
        if live.topics_version != self._topics_version:
            live.configured = None
        changes, result, live.configured = streams_core.heartbeat(
            live.applied, request, context, live.configured
        )
        live.topics_version = self._topics_version
        live.delayed_until_ms = delayed_until_ms
        if live is not before:
            if entry is not None and isinstance(before, ClassicGroup):
                shard.carry_out(entry, group_core.interrupt(before))
            entry = shard.install(live)
        assert entry is not None
        live.touch(request.member_id, context.times, self._timers.now_ms())
        if request.shuts_down:
            live.shutdown_by = request.member_id
        _tell_of_group(live, request, result)
        return entry, live, [*first, *changes.events], result

    def _delayed_until_ms(self, live: LiveStreamsGroup) -> int:
        """The first member of a group begins a time in which others may come."""
        now_ms = self._timers.now_ms()
        if live.applied.members or now_ms < live.delayed_until_ms:
            return live.delayed_until_ms
        return now_ms + self._times_of(live.group_id).initial_rebalance_delay_ms

    def _context(self, live: LiveStreamsGroup, *, is_delayed: bool | None = None) -> Context:
        if is_delayed is None:
            is_delayed = self._timers.now_ms() < live.delayed_until_ms
        return Context(
            self.topics,
            self._times_of(live.group_id),
            self._timers.wall_ms(),
            self.settings.group_streams_max_size,
            is_delayed,
        )

    # --- internal topics

    def make_topics(self, group_id: str, missing: Mapping[str, InternalTopic]) -> None:
        """Begins to make those that nobody makes yet."""
        topics = self._internal.claim(missing)
        if topics:
            told_ms = 2 * self._times_of(group_id).heartbeat_interval_ms
            self._jobs_in.send_nowait(partial(self._internal.make, topics, told_ms))

    def creation_failures(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """(topic, why) of internal topics that could not be made."""
        return self._internal.failures(names)

    async def _create_plainly(self, topic: InternalTopic) -> None:
        await self.topics.create(topic.name, topic.partitions, dict(topic.configs))

    # --- another group in its place, or none

    def delete(self, entry: GroupEntry, live: LiveStreamsGroup, done: Done) -> None:
        """Tombstones of a group without members; `done` once they are stored. Who joins meanwhile
        begins the group anew."""
        self.commit(entry, live, _end(live), done)

    def give_way(self, entry: GroupEntry, live: LiveStreamsGroup) -> ClassicGroup:
        """The same, and a group of the classic protocol takes the place at once. Of a group that
        has nothing on its way. If the tombstones are not stored this group is back."""
        assert live.is_forgettable
        classic = ClassicGroup(live.group_id, self._limits)
        is_over = False

        def stored(error: ErrorCode) -> None:
            nonlocal is_over
            is_over = bool(error)
            if error and entry.group is classic:
                shard = entry.shard
                shard.carry_out(entry, group_core.close(classic, ErrorCode.NOT_COORDINATOR))
                entry.group = live
                self.loaded(entry, live)

        self.commit(entry, live, _end(live), stored)
        if not is_over:
            self._timers.cancel(entry)
            entry.group = classic
        return classic

    # --- to the log

    def commit(
        self,
        entry: GroupEntry,
        live: LiveStreamsGroup,
        events: Sequence[Event],
        done: Done,
        records: Sequence[KeyValue] | None = None,
    ) -> None:
        """Writes what is in force already; `done` once it is stored, with all that was before."""
        if not events:
            if live.pending:
                live.pending[-1].dones.append(done)
            else:
                done(ErrorCode.NONE)
        else:
            if records is None:
                records = [_record(live.group_id, event) for event in events]
            size = sum(map(_record_size, records))
            live.take(Unit(events, records, size, [done]), self._timers.now_ms())
            self._write(entry, live)
        self.look_ahead(entry, live)

    def _write(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        units = live.to_write(UNIT_BYTES_MAX)
        if units:
            records = [record for unit in units for record in unit.records]
            entry.shard.partition.write(records, partial(self._stored, entry, live, units))

    def _stored(
        self, entry: GroupEntry, live: LiveStreamsGroup, units: list[Unit[Event]], error: ErrorCode
    ) -> None:
        if error:
            logger.warning("not stored", kv(group=live.group_id, error=error.name))
            now_ms = self._timers.now_ms()
            units = [*units, *live.units_failed(now_ms)]
            live.expect_again(self._times_of(live.group_id), now_ms)
            if not live.is_there and entry.group is live:
                entry.shard.reinstate(entry, live.origin)
        else:
            live.units_stored(units)
            live.origin = None
        for unit in units:
            for done in unit.dones:
                done(error)
        self._write(entry, live)
        if error and entry.group is live:
            self._arm(entry, live)

    # --- time

    def on_timer(self, entry: GroupEntry, live: LiveStreamsGroup, now_ms: int) -> None:
        live.timer.armed_at_ms = NEVER_MS
        late = live.overdue(now_ms)
        if late:
            logger.info("members fenced", kv(group=live.group_id, members=len(late)))
            changes = Changes(live.applied)
            fence(changes, late)
            self.commit(entry, live, changes.events, _ignore)
        if live.target_at_ms <= now_ms:
            live.target_at_ms = NEVER_MS
            self._assign(entry, live)
        live.timer.want(live.next_deadline_ms())
        self.look_ahead(entry, live)

    def _assign(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        """It is due, whether a member says something or not."""
        try:
            configured = self._configured(live)
        except GroupError:  # the next heartbeat is told of it
            return
        if configured is not None:
            changes, context = Changes(live.applied), self._context(live)
            streams_core.refresh(changes, configured, context)
            streams_core.assign_if_due(changes, configured, context)
            self.commit(entry, live, changes.events, _ignore)

    def _configured(self, live: LiveStreamsGroup) -> Configured | None:
        """What the group's topology comes to with the topics as they are; None without one.
        GroupError: nothing could be."""
        if live.applied.topology is None:
            return None
        if live.configured is None or live.topics_version != self._topics_version:
            live.configured = configure(live.applied.topology, self.topics)
            live.topics_version = self._topics_version
        return live.configured

    def loaded(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        live.timer.armed_at_ms = NEVER_MS
        live.start(self._times_of(live.group_id), self._timers.now_ms())
        self.look_ahead(entry, live)

    def look_ahead(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        """What is to be done beside requests, now or later."""
        if live.applied.epoch > live.applied.assignment_epoch and not live.is_computing:
            self._plan_target(entry, live)
        self._arm(entry, live)

    def _arm(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        live.timer.want(live.target_at_ms)
        at_ms = live.timer.next_to_arm()
        if at_ms is not None:
            self._timers.arm(entry, at_ms)

    def _plan_target(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        times, now_ms = self._times_of(live.group_id), self._timers.now_ms()
        due_at_ms = target_due_at_ms(live.applied, times.assignment_interval_ms)
        live.target_at_ms = NEVER_MS
        if due_at_ms is None or live.applied.topology is None:
            return
        wait_ms = due_at_ms - self._timers.wall_ms()
        if not is_target_due(live.applied, times, self._timers.wall_ms()):
            live.target_at_ms = max(now_ms + wait_ms, live.delayed_until_ms)
        elif now_ms < live.delayed_until_ms:
            live.target_at_ms = live.delayed_until_ms
        elif (
            live.configured is not None
            and assignor_input(live.applied, live.configured, times).cost
            > streams_core.INLINE_COST_MAX
        ):
            live.is_computing = True
            self._jobs_in.send_nowait(partial(self._compute_target, entry, live))
        else:  # nobody may come for a while
            live.target_at_ms = now_ms

    def _is_current(self, entry: GroupEntry, live: LiveStreamsGroup) -> bool:
        return entry.group is live and entry.shard.partition.state is PartitionState.ACTIVE

    async def _compute_target(self, entry: GroupEntry, live: LiveStreamsGroup) -> None:
        """A large group's assignment, in slices; anew if the group changed meanwhile."""
        slices = Slices(_UNITS_PER_TURN)
        try:
            while self._is_current(entry, live) and live.configured is not None:
                group, context = live.applied, self._context(live)
                if not is_target_due(group, context.times, context.now_ms):
                    break
                epoch, configured = group.epoch, live.configured
                given = assignor_input(group, configured, context.times)
                steps = assign(given)
                targets: Targets = {}
                try:
                    while True:
                        if slices.due(next(steps)):
                            await slices.turn()
                except StopIteration as end:
                    targets = end.value
                if live.applied is not group or group.epoch != epoch:
                    continue
                events = target_events(group, targets, epoch, context.now_ms)
                records = []
                for event in events:
                    if slices.due(_RECORD_UNITS):
                        await slices.turn()
                    records.append(event_record(live.group_id, event))
                if live.applied is not group or group.epoch != epoch:
                    continue
                if self._is_current(entry, live):
                    self._commit_target(entry, live, events, records)
        finally:
            live.is_computing = False

    def _commit_target(
        self,
        entry: GroupEntry,
        live: LiveStreamsGroup,
        events: list[Event],
        records: list[KeyValue],
    ) -> None:
        """In as many units as it takes, the epoch in the last: what is between them is an older
        assignment of which some members have the newer part, and nobody is given what another
        member still has."""
        for part in unit_slices(records, UNIT_BYTES_MAX):
            self._commit_part(entry, live, events[part], records[part])

    def _commit_part(
        self,
        entry: GroupEntry,
        live: LiveStreamsGroup,
        events: Sequence[Event],
        records: Sequence[KeyValue],
    ) -> None:
        for event in events:
            live.applied.apply(event)
        self.commit(entry, live, events, _ignore, records)


def _tell_of_group(
    live: LiveStreamsGroup, request: HeartbeatInput, result: HeartbeatResult
) -> None:
    """What the answer says beside the member's own: the others' endpoints, and whether the
    application is to shut down."""
    member = live.applied.members[request.member_id]
    if result.tasks is not None and member.user_endpoint is not None:
        live.endpoint_epoch += 1
    result.endpoint_epoch = live.endpoint_epoch
    if live.endpoint_epoch != request.endpoint_epoch and live.configured is not None:
        result.endpoints = endpoints(live.applied, live.configured)
    if live.shutdown_by is not None:
        result.statuses.append(
            Status(
                StatusCode.SHUTDOWN_APPLICATION,
                f"Streams group member {live.shutdown_by} encountered a fatal error and requested"
                " a shutdown for the entire application.",
            )
        )


def _end(live: LiveStreamsGroup) -> list[Event]:
    assert live.is_empty
    changes = Changes(live.applied)
    if live.applied.topology is not None:
        changes.add(TopologySet(None))
    changes.add(TargetEpoch(None))
    changes.add(GroupSet(None))
    live.configured = None
    return changes.events


def _not_found(entry: GroupEntry | None, group_id: str) -> GroupError:
    why = f"Streams group {group_id} not found."
    if entry is not None:
        why = f"Group {group_id} is not a streams group."
    return GroupError(ErrorCode.GROUP_ID_NOT_FOUND, why)


def _record(group_id: str, event: Event) -> KeyValue:
    return group_tombstone(group_id) if event == ClassicGone() else event_record(group_id, event)


def _record_size(record: KeyValue) -> int:
    key, value = record
    return len(key) + len(value or b"")


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; that it was not stored was logged."""
