"""Share groups in a running coordinator: inputs to the cores, their events to the log, and what
takes time beside the requests: timers, assignments of large groups, the share coordinator.

What an input changes is in force in memory at once, and its answer waits until the records are
stored. An input that changes nothing is answered at once, or behind what the group still has on its
way. A steady group's heartbeat writes nothing, and looks at nothing but its own member.

The share coordinator is asked only for what is stored, and what it answers is stored, too. It may
be another broker: an answer may be lost, late, or one of an attempt that another has replaced.

Tasks: `run`, and one below it for each large assignment and each question to the share coordinator.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.coordinator.partition import PartitionState
from broker.groups.consumer.types import GroupError
from broker.groups.in_units import Unit
from broker.groups.share import share_group_core, state_core
from broker.groups.share.changes import Changes, fence
from broker.groups.share.live import NEVER_MS, Attempt, LiveShareGroup
from broker.groups.share.records import event_record
from broker.groups.share.targets import UNIT_BYTES_MAX, TargetJobs, record_size
from broker.groups.share.types import JOIN_EPOCH, Context, HeartbeatInput, HeartbeatResult
from broker.share.ports import ShareKey
from runtime.logs import kv
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from broker.coordinator.timers import CoordinatorTimers
    from broker.coordinator.units import Done, KeyValue
    from broker.groups.answers import Answers
    from broker.groups.consumer.ports import Topics
    from broker.groups.shard import GroupEntry, GroupShard
    from broker.groups.share.events import Event
    from broker.groups.share.ports import ShareNeighbours
    from broker.groups.share.settings import ShareSettings
    from broker.groups.share.state_core import Key
    from broker.groups.share.types import ShareTimes

logger = logging.getLogger(__name__)

#: What a member is told if its group's records could not be stored: it tries again. Any other error
#: would end a client for good.
_RETRIABLE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class ShareMembership:
    """One per group coordinator. `neighbours` None: this broker serves no share groups; it knows
    those that are in the log."""

    def __init__(
        self,
        timers: CoordinatorTimers,
        answers: Answers,
        settings: ShareSettings,
        topics: Topics,
        neighbours: ShareNeighbours | None,
    ) -> None:
        self.settings = settings
        self.answers = answers
        self.topics = topics
        self.neighbours = neighbours
        self._timers = timers
        #: Changes of topics that were seen; a group compares.
        self.topics_version = 0
        # At most a few for each group.
        self._jobs_in, self._jobs = trio.open_memory_channel[Callable[[], Awaitable[None]]](
            math.inf
        )
        self._targets = TargetJobs(self, timers, self._jobs_in.send_nowait)

    async def run(self) -> None:
        """Never returns."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(await self._jobs.receive())

    def topics_changed(self) -> None:
        """To be called after each change of the catalog."""
        self.topics_version += 1

    def topic_deleted(self, shard: GroupShard, topic_id: UUID) -> None:
        """Forgets the states of a topic's partitions; the share coordinator is asked to, too."""
        for entry in list(shard.groups.values()):
            live = entry.group
            if not isinstance(live, LiveShareGroup):
                continue
            changes = Changes(live.applied)
            state = live.applied.partitions
            keys = state_core.keys_of(state, self.topics, [topic_id])
            state_core.forget_topic(changes, topic_id)
            if changes.events:
                stored = partial(self._forgotten, live, keys)
                self.commit(entry, live, changes.events, stored)

    def _forgotten(self, live: LiveShareGroup, keys: list[Key], error: ErrorCode) -> None:
        if self.neighbours is not None and keys and not error:
            persister, gone = self.neighbours.persister, asked(live, keys)

            async def delete() -> None:
                """Nobody waits; what of it fails stays at the share coordinator, as in Kafka."""
                await persister.delete(gone)

            self._jobs_in.send_nowait(delete)

    # --- inputs

    def heartbeat(
        self,
        shard: GroupShard,
        group_id: str,
        request: HeartbeatInput,
        reply: Callable[[HeartbeatResult], None],
    ) -> None:
        """ShareGroupHeartbeat: `reply` is called now, or once the records are stored."""
        entry = shard.groups.get(group_id)
        before = None if entry is None else entry.group
        try:
            if before is None and request.epoch == JOIN_EPOCH:
                live = LiveShareGroup(group_id)
            elif isinstance(before, LiveShareGroup):
                live = before
            else:
                what = "not found" if before is None else "is not a share group"
                raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
            context = self.context(live)
            changes, result = share_group_core.heartbeat(live.applied, request, context)
        except GroupError as error:
            reply(HeartbeatResult(error.code, error.message or None))
            return
        if entry is None:
            entry = shard.install(live)
        live.topics_version = self.topics_version
        live.touch(request.member_id, self.times_of(group_id), self._timers.now_ms())
        has_news = bool(changes.events) or context.topics_changed
        begun = self._begin(live, changes) if has_news else {}

        def done(error: ErrorCode) -> None:
            if error and error not in _RETRIABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            reply(HeartbeatResult(error) if error else result)

        self.commit_begun(entry, live, changes, begun, _ignore_all, done)

    def fence(self, entry: GroupEntry, live: LiveShareGroup, member_ids: Sequence[str]) -> None:
        """Members that were not heard of in time."""
        changes = Changes(live.applied)
        fence(changes, member_ids, self.topics)
        self.commit(entry, live, changes.events, _ignore)

    def context(self, live: LiveShareGroup) -> Context:
        return Context(
            self.topics,
            self.times_of(live.group_id),
            self._timers.wall_ms(),
            self.settings.group_share_max_size,
            live.topics_version != self.topics_version,
        )

    def times_of(self, group_id: str) -> ShareTimes:
        if self.neighbours is None:
            return self.settings.times
        return self.neighbours.times_of(group_id)

    # --- states of partitions

    def _begin(self, live: LiveShareGroup, changes: Changes) -> dict[Key, Attempt]:
        """Records that partitions are about to be begun, if there are any."""
        if self.neighbours is None:
            return {}
        wanted = state_core.wanting(live.applied, self.topics, live.busy)
        if not wanted:
            return {}
        offsets = state_core.start_offsets(live.applied, wanted)
        for key, attempt in live.attempts.items():
            if key in offsets:
                offsets[key] = attempt.start_offset
        state_core.begin(changes, wanted, self.topics, above=live.epoch_floor)
        return self.attempt(live, offsets)

    def attempt(self, live: LiveShareGroup, offsets: Mapping[Key, int]) -> dict[Key, Attempt]:
        """These are about to be begun, with the group's epoch of now."""
        now_ms = self._timers.now_ms()
        epoch = live.applied.epoch
        attempts = {key: Attempt(epoch, offset) for key, offset in offsets.items()}
        live.attempts.update(attempts)
        live.occupy(attempts, now_ms + self.settings.group_share_initialize_retry_interval_ms)
        return attempts

    def commit_begun(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        changes: Changes,
        begun: Mapping[Key, Attempt],
        reply: Callable[[ErrorCode, Mapping[Key, ErrorCode]], None],
        stored: Done | None = None,
    ) -> None:
        """Records that these are about to be begun, which calls `stored`, and begins them: after
        that `reply(error of all, errors by partition)`."""

        def recorded(error: ErrorCode) -> None:
            if stored is not None:
                stored(error)
            if not begun:
                reply(error, {})
            elif error:
                again_ms = self.times_of(live.group_id).heartbeat_interval_ms
                live.occupy(begun, self._timers.now_ms() + again_ms)
                self._arm(entry, live)
                reply(error, {})
            else:
                job = partial(self._begin_now, entry, live, begun, reply)
                self._jobs_in.send_nowait(job)

        self.commit(entry, live, changes.events, recorded)

    async def _begin_now(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        begun: Mapping[Key, Attempt],
        reply: Callable[[ErrorCode, Mapping[Key, ErrorCode]], None],
    ) -> None:
        errors = await self.initialize(live, begun)

        def done(error: ErrorCode) -> None:
            reply(error, {} if error else errors)

        self.begun(entry, live, begun, errors, done)

    async def initialize(
        self, live: LiveShareGroup, begun: Mapping[Key, Attempt]
    ) -> dict[Key, ErrorCode]:
        """Asks the share coordinator. What it has not begun is tried again after the time of a
        heartbeat, if somebody reads it."""
        assert self.neighbours is not None
        persister = self.neighbours.persister
        answers = await persister.initialize(
            [(ShareKey(live.group_id, *key), *attempt) for key, attempt in begun.items()]
        )
        errors = {
            key: answers.get(ShareKey(live.group_id, *key), ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for key in begun
        }
        fenced = [key for key, error in errors.items() if error is ErrorCode.FENCED_STATE_EPOCH]
        if fenced:
            # Of a group of this id that was deleted: its epochs were later ones.
            states = await persister.read_summary(asked(live, fenced))
            epochs = [state.state_epoch for state in states.values() if not state.error]
            live.epoch_floor = max(live.epoch_floor, *epochs, 0)
        failed = [key for key, error in errors.items() if error]
        if failed:
            names = ",".join(sorted({errors[key].name for key in failed}))
            shown = kv(group=live.group_id, partitions=len(failed), errors=names)
            logger.warning("share partitions not begun", shown)
        again_ms = self._timers.now_ms() + self.times_of(live.group_id).heartbeat_interval_ms
        live.occupy([key for key in failed if live.attempts.get(key) == begun[key]], again_ms)
        return errors

    def begun(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        begun: Mapping[Key, Attempt],
        errors: Mapping[Key, ErrorCode],
        done: Done,
    ) -> None:
        """Records what the share coordinator has begun; `done` once that is stored. What another
        attempt has replaced is that one's business."""
        ended = [key for key in begun if not errors[key] and live.attempts.get(key) == begun[key]]
        for key in ended:
            del live.attempts[key]
        live.release(ended)
        if not self.is_current(entry, live):
            done(ErrorCode.NOT_COORDINATOR)
            return
        changes = Changes(live.applied)
        state_core.initialized(changes, ended, self.topics)
        if live.applied.members:
            share_group_core.assign_if_due(changes, self.context(live))
        self.commit(entry, live, changes.events, done)

    # --- the end of a group

    def delete(self, entry: GroupEntry, live: LiveShareGroup, reply: Done) -> None:
        """DeleteGroups of a group without members: first what the share coordinator has of it, then
        the group. What a call leaves undone the next one does."""
        ids = _all_topics(live)

        def deleted(errors: Mapping[UUID, ErrorCode], error: ErrorCode) -> None:
            error = error or next((each for each in errors.values() if each), ErrorCode.NONE)
            if error:
                reply(error)
            elif not live.is_empty:
                reply(ErrorCode.NON_EMPTY_GROUP)
            else:
                changes = Changes(live.applied)
                state_core.end(changes)
                self.commit(entry, live, changes.events, ended)

        def ended(error: ErrorCode) -> None:
            if not error and entry.shard.groups.get(live.group_id) is entry:
                entry.shard.apply_deletion(entry)
            reply(error)

        self.delete_states(entry, live, ids, deleted)

    def delete_states(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        ids: Collection[UUID],
        reply: Callable[[Mapping[UUID, ErrorCode], ErrorCode], None],
    ) -> None:
        """Of these topics all that the share coordinator has; `reply(error by topic, error of
        all)`. Until that is known nobody begins anything of it anew."""
        keys = state_core.keys_of(live.applied.partitions, self.topics, ids)
        changes = Changes(live.applied)
        if ids:
            state_core.begin_deletion(changes, ids)
        for key in keys:
            live.attempts.pop(key, None)
        until_ms = self._timers.now_ms() + self.settings.group_share_initialize_retry_interval_ms
        live.occupy(keys, until_ms)

        def stored(error: ErrorCode) -> None:
            if error or not ids:
                live.release(keys)
                live.begin_soon(self._timers.now_ms())
                self._arm(entry, live)
                reply({}, error)
            else:
                job = partial(self._delete_states, entry, live, ids, keys, reply)
                self._jobs_in.send_nowait(job)

        self.commit(entry, live, changes.events, stored)

    async def _delete_states(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        ids: Collection[UUID],
        keys: Sequence[Key],
        reply: Callable[[Mapping[UUID, ErrorCode], ErrorCode], None],
    ) -> None:
        errors = dict.fromkeys(ids, ErrorCode.NONE)
        if keys:
            if self.neighbours is None:
                answers: Mapping[ShareKey, ErrorCode] = {}
            else:
                answers = await self.neighbours.persister.delete(asked(live, keys))
            for key, share_key in zip(keys, asked(live, keys), strict=True):
                error = answers.get(share_key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                errors[key[0]] = errors[key[0]] or error
        live.release(keys)
        if not self.is_current(entry, live):
            reply({}, ErrorCode.NOT_COORDINATOR)
            return
        changes = Changes(live.applied)
        state_core.deleted(changes, [topic_id for topic_id in ids if not errors[topic_id]])
        live.begin_soon(self._timers.now_ms())
        self.commit(entry, live, changes.events, partial(reply, errors))

    # --- to the log

    def commit(
        self, entry: GroupEntry, live: LiveShareGroup, events: Sequence[Event], done: Done
    ) -> None:
        """Writes what is in force already; `done` once it is stored, with all that was before."""
        self.commit_records(
            entry, live, events, [event_record(live.group_id, event) for event in events], done
        )

    def commit_records(
        self,
        entry: GroupEntry,
        live: LiveShareGroup,
        events: Sequence[Event],
        records: Sequence[KeyValue],
        done: Done,
    ) -> None:
        if events:
            size = sum(map(record_size, records))
            live.take(Unit(events, records, size, [done]), self._timers.now_ms())
            self._write(entry, live)
        elif live.pending:
            live.pending[-1].dones.append(done)
        else:
            done(ErrorCode.NONE)
        self.look_ahead(entry, live)

    def _write(self, entry: GroupEntry, live: LiveShareGroup) -> None:
        units = live.to_write(UNIT_BYTES_MAX)
        if units:
            records = [record for unit in units for record in unit.records]
            entry.shard.partition.write(records, partial(self._stored, entry, live, units))

    def _stored(
        self, entry: GroupEntry, live: LiveShareGroup, units: list[Unit[Event]], error: ErrorCode
    ) -> None:
        if error:
            logger.warning("not stored", kv(group=live.group_id, error=error.name))
            now_ms = self._timers.now_ms()
            units = [*units, *live.units_failed(now_ms)]
            live.expect_again(self.times_of(live.group_id), now_ms)
            if not live.is_there and entry.group is live:
                entry.shard.forget(entry)
        else:
            live.units_stored(units)
        for unit in units:
            for done in unit.dones:
                done(error)
        self._write(entry, live)
        if error and entry.group is live:
            self._arm(entry, live)

    # --- time

    def on_timer(self, entry: GroupEntry, live: LiveShareGroup, now_ms: int) -> None:
        live.armed_at_ms = NEVER_MS
        late = live.overdue(now_ms)
        if late:
            logger.info("members fenced", kv(group=live.group_id, members=len(late)))
            self.fence(entry, live, late)
        if live.begin_at_ms <= now_ms:
            live.release_overdue(now_ms)
            changes = Changes(live.applied)
            begun = self._begin(live, changes)
            self.commit_begun(entry, live, changes, begun, _ignore_all)
        if live.target_at_ms <= now_ms:
            live.target_at_ms = NEVER_MS
            changes = Changes(live.applied)
            share_group_core.assign_if_due(changes, self.context(live))
            self.commit(entry, live, changes.events, _ignore)
        live.wanted_at_ms = live.next_deadline_ms()
        self.look_ahead(entry, live)

    def loaded(self, entry: GroupEntry, live: LiveShareGroup) -> None:
        live.armed_at_ms = NEVER_MS
        live.start(self.times_of(live.group_id), self._timers.now_ms())
        self.look_ahead(entry, live)

    def look_ahead(self, entry: GroupEntry, live: LiveShareGroup) -> None:
        """What is to be done beside requests, now or later."""
        group = live.applied
        if group.epoch > group.assignment_epoch and not live.is_computing:
            self._targets.plan(entry, live)
        self._arm(entry, live)

    def _arm(self, entry: GroupEntry, live: LiveShareGroup) -> None:
        at_ms = min(live.wanted_at_ms, live.target_at_ms)
        if at_ms < live.armed_at_ms and self.is_current(entry, live):
            live.armed_at_ms = at_ms
            self._timers.arm(entry, at_ms)
        live.wanted_at_ms = NEVER_MS

    def is_current(self, entry: GroupEntry, live: LiveShareGroup) -> bool:
        """The group is still this one, and coordinated here."""
        shard = entry.shard
        return (
            shard.groups.get(live.group_id) is entry
            and entry.group is live
            and shard.partition.state is PartitionState.ACTIVE
        )


def asked(live: LiveShareGroup, keys: Sequence[Key]) -> list[ShareKey]:
    """What the share coordinator calls them."""
    return [ShareKey(live.group_id, *key) for key in keys]


def _all_topics(live: LiveShareGroup) -> set[UUID]:
    state = live.applied.partitions
    return {*state.initializing, *state.initialized, *state.deleting}


def _ignore_all(error: ErrorCode, errors: Mapping[Key, ErrorCode]) -> None:
    """Nobody waits; what went wrong was logged."""


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; that it was not stored was logged."""
