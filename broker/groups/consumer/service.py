"""Consumer groups in a running coordinator: inputs to the cores, their events to the log, and what
takes time beside the requests: timers, assignments of large groups, patterns.

What an input changes is in force in memory at once, and its answer waits until the records are
stored. An input that changes nothing is answered at once, or behind what the group still has on its
way. A steady group's heartbeat writes nothing, and looks at nothing but its own member.

Tasks: `run`, and one below it for each large assignment and each resolution of patterns.
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
from broker.groups.consumer import consumer_core, regex_core
from broker.groups.consumer.assignors.table import ASSIGNORS
from broker.groups.consumer.changes import Changes, fence
from broker.groups.consumer.classic_bytes import given_count
from broker.groups.consumer.events import (
    ClassicSet,
    Event,
    GroupEpoch,
    RegexSet,
    TargetEpoch,
)
from broker.groups.consumer.live import NEVER_MS, LiveGroup
from broker.groups.consumer.migration_core import downgrade, upgraded
from broker.groups.consumer.patterns import COMPILE_UNITS, MATCHES_PER_TURN, pattern_of
from broker.groups.consumer.records import event_record
from broker.groups.consumer.target_core import (
    assignor_input,
    is_target_due,
    takes_long,
    target_due_at_ms,
    target_events,
)
from broker.groups.consumer.types import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    Context,
    GroupError,
    GroupTimes,
    HeartbeatInput,
    HeartbeatResult,
)
from broker.groups.in_units import Unit, unit_slices
from broker.groups.records import group_record, group_tombstone
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.coordinator.timers import CoordinatorTimers
    from broker.coordinator.units import Done, KeyValue
    from broker.groups.classic.types import GroupLimits
    from broker.groups.consumer.assignors.input import Targets
    from broker.groups.consumer.ports import Topics
    from broker.groups.consumer.settings import ConsumerSettings
    from broker.groups.consumer.types import Sight
    from broker.groups.shard import GroupEntry, GroupShard
    from broker.regex import Pattern
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: Microseconds of work before others have the loop.
_UNITS_PER_TURN = 2000
#: What it costs to make a record.
_RECORD_UNITS = 15
#: What it costs to ask whether a member may see a topic.
SIGHT_UNITS = 3
#: Bytes of the records of one unit, at most: with their frames below the topic's max.message.bytes.
UNIT_BYTES_MAX = 500_000
#: Topics and partitions that a classic group's leader may have given, if the group is to be
#: upgraded: each partition has its number in a target and in what a member has, and there its
#: epoch; a topic takes more.
_GIVEN_MAX = UNIT_BYTES_MAX // 12
#: What a member is told if its group's records could not be stored: it tries again. Any other error
#: would end a client for good.
_RETRIABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class ConsumerGroups:
    """One per group coordinator. `times_of(group id)`: a group's settings in force; `limits`: of
    the classic groups that a group may become."""

    def __init__(
        self,
        env: Env,
        timers: CoordinatorTimers,
        settings: ConsumerSettings,
        topics: Topics,
        times_of: Callable[[str], GroupTimes],
        limits: GroupLimits,
    ) -> None:
        self.settings = settings
        #: There is an authorizer: members tell what they may see.
        self.is_guarded = False
        self._env = env
        self._limits = limits
        self._timers = timers
        self._topics = topics
        self.times_of = times_of
        #: Changes of topics that were seen; a group compares.
        self.topics_version = 0
        # At most two for each group.
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
        self.topics_version += 1

    # --- inputs

    def heartbeat(
        self,
        shard: GroupShard,
        group_id: str,
        request: HeartbeatInput,
        reply: Callable[[HeartbeatResult], None],
    ) -> None:
        """ConsumerGroupHeartbeat: `reply` is called now, or once the records are stored."""
        try:
            entry, live, changes, result = self._decide(shard, group_id, request)
        except GroupError as error:
            reply(HeartbeatResult(error.code, error.message or None))
            return

        def done(error: ErrorCode) -> None:
            if error and error not in _RETRIABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            reply(HeartbeatResult(error) if error else result)

        if request.sight is not None and request.member_id in live.applied.members:
            live.heard_with(request.member_id, request.sight)
        if request.epoch != STATIC_LEAVE_EPOCH:
            live.touch(request.member_id, self.times_of(group_id), self._timers.now_ms())
        self.finish(entry, live, changes, done)

    def _decide(
        self, shard: GroupShard, group_id: str, request: HeartbeatInput
    ) -> tuple[GroupEntry, LiveGroup, list[Event], HeartbeatResult]:
        entry = shard.groups.get(group_id)
        before = None if entry is None else entry.group
        if isinstance(before, LiveGroup):
            assert entry is not None
            changes, result = consumer_core.heartbeat(before.applied, request, self.context(before))
            before.topics_version = self.topics_version
            return entry, before, changes.events, result
        if request.epoch != JOIN_EPOCH or not (before is None or isinstance(before, ClassicGroup)):
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if before is not None and not isinstance(before, ClassicGroup):
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is a share group.")
        live = LiveGroup(group_id, before)
        first: list[Event] = []
        if before is not None:
            first = [ClassicSet(None)] if before.is_empty else self._upgraded(live, before)
        changes, result = consumer_core.heartbeat(live.applied, request, self.context(live))
        live.topics_version = self.topics_version
        if entry is not None and before is not None:
            effects = group_core.interrupt(before)
            shard.carry_out(entry, effects)
        entry = shard.install(live)
        times, now_ms = self.times_of(group_id), self._timers.now_ms()
        for member_id in live.applied.members:
            live.touch(member_id, times, now_ms)
        return entry, live, [*first, *changes.events], result

    def _upgraded(self, live: LiveGroup, classic: ClassicGroup) -> list[Event]:
        """A classic group with members becomes this one. GroupError: it may not."""
        settings = self.settings
        if not settings.may_upgrade:
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {classic.group_id} is a classic group, and the migration policy does not"
                " allow it to be upgraded.",
            )
        too_large = GroupError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {classic.group_id} is too large to be upgraded."
        )
        # What members said is stored as it is, and each partition that somebody is given: then it
        # need not be read.
        left = _GIVEN_MAX
        for each in classic.members.by_id.values():
            left -= given_count(each.assignment, left)
            if left < 0:
                raise too_large
        if classic.members.said_bytes() > UNIT_BYTES_MAX:
            raise too_large
        events = upgraded(classic, settings.group_consumer_max_size, self._topics)
        size = sum(map(_record_size, (self._record(live.group_id, event) for event in events)))
        if size > UNIT_BYTES_MAX:
            raise too_large
        for event in events:
            live.applied.apply(event)
        return events

    def fence(self, entry: GroupEntry, live: LiveGroup, member_ids: Iterable[str]) -> None:
        """Members that were not heard of in time."""
        changes = Changes(live.applied)
        fence(changes, member_ids, self.context(live))
        self.finish(entry, live, changes.events, _ignore)

    # --- another group in its place, or none

    def finish(
        self, entry: GroupEntry, live: LiveGroup, events: Sequence[Event], done: Done
    ) -> None:
        """Commits what may have left the group without members of the consumer protocol: then a
        classic group takes the place, in the same unit."""
        group = live.applied
        if not (
            events
            and group.is_all_classic
            and self.settings.may_downgrade
            and len(group.members) <= self._limits.members_max
        ):
            self.commit(entry, live, events, done)
            return
        changes = Changes(group)
        now_ms = self._timers.wall_ms()
        classic = downgrade(changes, self._limits, now_ms, self._topics)
        self._give_place(entry, live, classic, [*events, *changes.events], done)
        if entry.group is classic:
            why = "no member speaks the consumer protocol any more"
            effects = group_core.take_over(classic, why, self._timers.now_ms())
            entry.shard.carry_out(entry, effects)

    def delete(self, entry: GroupEntry, live: LiveGroup, done: Done) -> None:
        """Tombstones of a group without members; `done` once they are stored. Who joins meanwhile
        begins the group anew."""
        self.commit(entry, live, self._end(live), done)

    def give_way(self, entry: GroupEntry, live: LiveGroup) -> ClassicGroup:
        """The same, and a group of the classic protocol takes the place at once."""
        classic = ClassicGroup(live.group_id, self._limits)
        self._give_place(entry, live, classic, self._end(live), _ignore)
        return classic

    def _give_place(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        classic: ClassicGroup,
        events: Sequence[Event],
        done: Done,
    ) -> None:
        """If the events are not stored nor is what comes after them, and this group is back."""
        is_over = False

        def stored(error: ErrorCode) -> None:
            nonlocal is_over
            is_over = bool(error)
            if error and entry.group is classic:
                shard = entry.shard
                shard.carry_out(entry, group_core.close(classic, ErrorCode.NOT_COORDINATOR))
                entry.group = live
                self.loaded(entry, live)
            done(error)

        self.commit(entry, live, events, stored, at_once=True)
        if not is_over:
            self._timers.cancel(entry)
            entry.group = classic

    def _end(self, live: LiveGroup) -> list[Event]:
        assert live.is_empty
        changes = Changes(live.applied)
        for regex in list(live.applied.regexes):
            changes.add(RegexSet(regex, None))
        changes.add(TargetEpoch(None))
        changes.add(GroupEpoch(None))
        return changes.events

    def now_ms(self) -> int:
        """Of deadlines."""
        return self._timers.now_ms()

    def heard_of(self, live: LiveGroup, member_id: str) -> None:
        live.touch(member_id, self.times_of(live.group_id), self._timers.now_ms())

    def context(self, live: LiveGroup) -> Context:
        return Context(
            self._topics,
            self.times_of(live.group_id),
            self._timers.wall_ms(),
            self.settings.group_consumer_assignors,
            self.settings.group_consumer_max_size,
            live.topics_version != self.topics_version,
            self._regex_error,
        )

    def _regex_error(self, regex: str) -> str | None:
        self._env.turn.spent_units += COMPILE_UNITS
        try:
            pattern_of(regex)
        except KafkaError as error:
            return error.message or error.code.name
        return None

    # --- to the log

    def commit(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        events: Sequence[Event],
        done: Done,
        records: Sequence[KeyValue] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Writes what is in force already; `done` once it is stored, with all that was before.
        `at_once`: what somebody else writes for the group comes after it."""
        if not events:
            if live.pending:
                live.pending[-1].dones.append(done)
            else:
                done(ErrorCode.NONE)
        else:
            if records is None:
                records = [self._record(live.group_id, event) for event in events]
            size = sum(map(_record_size, records))
            live.take(Unit(events, records, size, [done]), self._timers.now_ms())
            self._write(entry, live, at_once=at_once)
        self.look_ahead(entry, live)

    def _write(self, entry: GroupEntry, live: LiveGroup, *, at_once: bool = False) -> None:
        units = live.to_write(UNIT_BYTES_MAX, at_once=at_once)
        if units:
            records = [record for unit in units for record in unit.records]
            entry.shard.partition.write(records, partial(self._stored, entry, live, units))

    def _record(self, group_id: str, event: Event) -> KeyValue:
        if isinstance(event, ClassicSet):
            return group_tombstone(group_id) if event.value is None else group_record(event.value)
        return event_record(group_id, event)

    def _stored(
        self, entry: GroupEntry, live: LiveGroup, units: list[Unit[Event]], error: ErrorCode
    ) -> None:
        if error:
            logger.warning("not stored", kv(group=live.group_id, error=error.name))
            now_ms = self._timers.now_ms()
            units = [*units, *live.units_failed(now_ms)]
            live.expect_again(self.times_of(live.group_id), now_ms)
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

    def on_timer(self, entry: GroupEntry, live: LiveGroup, now_ms: int) -> None:
        live.armed_at_ms = NEVER_MS
        late = live.overdue(now_ms)
        if late:
            logger.info("members fenced", kv(group=live.group_id, members=len(late)))
            words = live.lateness(late[0], now_ms)
            self.fence(entry, live, late)
            others = f", and {len(late) - 1} others" if len(late) > 1 else ""
            live.blame(f"{late[0]} {words}{others}")
            if entry.group is not live:
                return
        if live.target_at_ms <= now_ms:
            live.target_at_ms = NEVER_MS
            changes = Changes(live.applied)
            consumer_core.assign_if_due(changes, self.context(live))
            self.commit(entry, live, changes.events, _ignore)
        live.wanted_at_ms = live.next_deadline_ms()
        self.look_ahead(entry, live)

    def loaded(self, entry: GroupEntry, live: LiveGroup) -> None:
        live.armed_at_ms = NEVER_MS
        live.start(self.times_of(live.group_id), self._timers.now_ms())
        self.look_ahead(entry, live)

    def look_ahead(self, entry: GroupEntry, live: LiveGroup) -> None:
        """What is to be done beside requests, now or later."""
        group = live.applied
        if group.epoch > group.assignment_epoch and not live.is_computing:
            self._plan_target(entry, live)
        if group.regex_members and not live.is_resolving:
            self._plan_regexes(entry, live)
        self._arm(entry, live)

    def _arm(self, entry: GroupEntry, live: LiveGroup) -> None:
        at_ms = min(live.wanted_at_ms, live.target_at_ms)
        if at_ms < live.armed_at_ms:
            live.armed_at_ms = at_ms
            self._timers.arm(entry, at_ms)
        live.wanted_at_ms = NEVER_MS

    def _plan_target(self, entry: GroupEntry, live: LiveGroup) -> None:
        due_at_ms = target_due_at_ms(
            live.applied, self.times_of(live.group_id).assignment_interval_ms
        )
        live.target_at_ms = NEVER_MS
        if due_at_ms is None:
            return
        wait_ms = due_at_ms - self._timers.wall_ms()
        if wait_ms > 0:
            live.target_at_ms = self._timers.now_ms() + wait_ms
        elif takes_long(live.applied, self._topics):
            live.is_computing = True
            self._jobs_in.send_nowait(partial(self._compute_target, entry, live))
        else:  # nobody may come for a while
            live.target_at_ms = self._timers.now_ms()

    def _is_current(self, entry: GroupEntry, live: LiveGroup) -> bool:
        return entry.group is live and entry.shard.partition.state is PartitionState.ACTIVE

    async def _compute_target(self, entry: GroupEntry, live: LiveGroup) -> None:
        """A large group's assignment, in slices; anew if the group changed meanwhile."""
        slices = Slices(_UNITS_PER_TURN)
        try:
            while self._is_current(entry, live) and is_target_due(live.applied, self.context(live)):
                group, context = live.applied, self.context(live)
                epoch = group.epoch
                targets = await self._targets(live, context, slices)
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
        self, entry: GroupEntry, live: LiveGroup, events: list[Event], records: list[KeyValue]
    ) -> None:
        """In as many units as it takes, the epoch in the last: what is between them is an older
        assignment of which some members have the newer part, and nobody is given what another
        member still has."""
        for part in unit_slices(records, UNIT_BYTES_MAX):
            self._commit_part(entry, live, events[part], records[part])

    def _commit_part(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        events: Sequence[Event],
        records: Sequence[KeyValue],
    ) -> None:
        for event in events:
            live.applied.apply(event)
        self.commit(entry, live, events, _ignore, records)

    async def _targets(self, live: LiveGroup, context: Context, slices: Slices) -> Targets:
        group = live.applied
        assign = ASSIGNORS[group.assignor(context.assignors)]
        steps = assign(assignor_input(group, context.topics))
        try:
            while True:
                if slices.due(next(steps)):
                    await slices.turn()
        except StopIteration as end:
            targets: Targets = end.value
        return targets

    # --- patterns

    def _plan_regexes(self, entry: GroupEntry, live: LiveGroup) -> None:
        if regex_core.is_due(
            live.applied,
            live.regexes_resolved_at_ms,
            self._timers.now_ms(),
            self.settings.group_consumer_regex_refresh_interval_ms,
            topics_changed=live.regexes_version != self.topics_version,
        ):
            live.is_resolving = True
            self._jobs_in.send_nowait(partial(self._resolve, entry, live))

    async def _resolve(self, entry: GroupEntry, live: LiveGroup) -> None:
        """Matches every pattern of a group with every topic's name, in slices. With an authorizer a
        pattern stands for what each of those may see who subscribe by it, and were heard of: one
        who may see more shows it to nobody else. After this broker took the group over, what it
        stood for counts until one is heard of."""
        slices = Slices(MATCHES_PER_TURN)
        version = self.topics_version
        names = [topic.name for topic in self._topics.all()]
        found: dict[str, frozenset[str]] = {}
        try:
            for regex in list(live.applied.regex_members):
                sights = live.sights_of(regex)
                if self.is_guarded and not sights:
                    if regex not in live.applied.regexes:
                        found[regex] = frozenset()
                    continue
                await slices.turn()  # to compile it takes one
                try:
                    pattern = pattern_of(regex)
                except KafkaError as error:
                    logger.warning("pattern not read", kv(group=live.group_id, error=error))
                    found[regex] = frozenset()
                    continue
                found[regex] = await self._matching(pattern, names, sights, slices)
        finally:
            live.is_resolving = False
        live.regexes_version = version
        live.regexes_resolved_at_ms = self._timers.now_ms()
        if self._is_current(entry, live):
            changes = regex_core.resolved(live.applied, found, version, self.context(live))
            consumer_core.assign_if_due(changes, self.context(live))
            self.commit(entry, live, changes.events, _ignore)

    async def _matching(
        self, pattern: Pattern, names: Sequence[str], sights: Sequence[Sight], slices: Slices
    ) -> frozenset[str]:
        """Those of the names that all `sights` may see."""
        matching = []
        for name in names:
            units = pattern.units(name)
            if slices.due(min(units, MATCHES_PER_TURN)):
                await slices.turn()
            if units <= MATCHES_PER_TURN:
                is_match = pattern.matches(name)
            else:
                is_match = await self._env.disk.run(pattern.matches, name)
            if not is_match:
                continue
            if slices.due(SIGHT_UNITS * len(sights)):
                await slices.turn()
            if all(sight.describes_topic(name) for sight in sights):
                matching.append(name)
        return frozenset(matching)


def _record_size(record: KeyValue) -> int:
    key, value = record
    return len(key) + len(value or b"")


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; that it was not stored was logged."""
