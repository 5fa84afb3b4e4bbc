"""The groups of one partition of `__consumer_offsets`, for one tenure of its log.

Offsets, deletions and the ends of transactions change the tables only when their records are
acknowledged, in the log's order; a group's state machine runs ahead in memory, as Kafka's does, and
answers its members only after what they rely on is stored (`Persist`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.coordinator.partition import CoordinatorPartition, PartitionState
from broker.coordinator.units import NOBODY, Done, KeyValue, Producer
from broker.groups.classic import group_core
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.types import Answer, ArmTimer, Effect, GroupLimits, Persist
from broker.groups.consumer.events import GroupEpoch
from broker.groups.consumer.live import LiveGroup
from broker.groups.offsets.offsets_core import GroupOffsets
from broker.groups.records import (
    StoredEvent,
    StoredGroup,
    StoredOffset,
    StoredShareEvent,
    StoredStreamsEvent,
    group_record,
    parse_record,
)
from broker.groups.share.events import GroupEpoch as ShareGroupEpoch
from broker.groups.share.live import LiveShareGroup
from broker.groups.streams.events import ClassicGone, GroupSet
from broker.groups.streams.live import LiveStreamsGroup
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from broker.coordinator.timers import CoordinatorTimers
    from broker.coordinator.units import Marker
    from broker.groups.offsets.offsets_core import OffsetKey
    from broker.groups.streams.types import Topics
    from runtime.turn import Turn

#: What members are told if their group's records could not be stored (Kafka's
#: `appendGroupMetadataErrorToResponseError`); others pass as they are.
APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


#: What it costs the turn to write a classic group, for each of its members: a static member that
#: was restarted, or one that asks for its assignment once more, has all of them written.
MEMBER_UNITS = 2
#: Groups of one transaction that are looked at before others may have the loop.
GROUPS_PER_STEP = 1_000


class ConsumerShell(Protocol):
    """What happens to consumer groups beside requests (broker/groups/consumer/service.py)."""

    def on_timer(self, entry: GroupEntry, live: LiveGroup, now_ms: int, /) -> None: ...
    def loaded(self, entry: GroupEntry, live: LiveGroup, /) -> None: ...


class ShareShell(Protocol):
    """The same of share groups (broker/groups/share/service.py)."""

    def on_timer(self, entry: GroupEntry, live: LiveShareGroup, now_ms: int, /) -> None: ...
    def loaded(self, entry: GroupEntry, live: LiveShareGroup, /) -> None: ...


class StreamsShell(Protocol):
    """What happens to streams groups beside requests (broker/groups/streams/service.py)."""

    @property
    def topics(self) -> Topics: ...
    def on_timer(self, entry: GroupEntry, live: LiveStreamsGroup, now_ms: int, /) -> None: ...
    def loaded(self, entry: GroupEntry, live: LiveStreamsGroup, /) -> None: ...


#: A group's members' state machine, of whatever kind.
Group = ClassicGroup | LiveGroup | LiveShareGroup | LiveStreamsGroup


class GroupEntry:
    """One group: its members' state machine, of whatever kind, and its offsets."""

    __slots__ = ("group", "is_in_log", "offsets", "shard", "timer_at_ms")

    def __init__(self, shard: GroupShard, group: Group) -> None:
        self.shard = shard
        self.group: Group = group
        self.offsets = GroupOffsets()
        #: A commit of it was stored: a load would find the group.
        self.is_in_log = False
        self.timer_at_ms: int | None = None

    @property
    def is_pristine(self) -> bool:
        """A group that only a commit made, and that nothing has come to."""
        group = self.group
        return (
            not self.is_in_log
            and group.is_forgettable
            and group.protocol_type is None
            and self.offsets.is_unused
        )

    def commit_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        partitions: Iterable[tuple[UUID | None, int]],
        *,
        speaks_epochs: bool = True,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Whether this member may commit offsets of these partitions (topic id, number) now.
        `speaks_epochs`: the API knows of member epochs, and a generation may be one."""
        group = self.group
        if isinstance(group, ClassicGroup):
            return group.commit_error(
                member_id, instance_id, generation_id, in_transaction=in_transaction
            )
        if isinstance(group, LiveShareGroup):
            return group.offsets_error
        if in_transaction and generation_id < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE  # an old producer, which does not say whose offsets these are
        error = group.commit_error(
            member_id, generation_id, partitions, speaks_epochs=speaks_epochs
        )
        if in_transaction and error is ErrorCode.STALE_MEMBER_EPOCH:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def tombstones(self, keys: list[OffsetKey]) -> list[StoredOffset]:
        return [StoredOffset(self.group.group_id, *key, None) for key in keys]

    def on_timer(self, now_ms: int) -> None:
        if self.shard.partition.state is not PartitionState.ACTIVE:
            return
        if isinstance(self.group, LiveGroup):
            self.shard.consumers.on_timer(self, self.group, now_ms)
        elif isinstance(self.group, LiveShareGroup):
            self.shard.shares.on_timer(self, self.group, now_ms)
        elif isinstance(self.group, LiveStreamsGroup):
            self.shard.streams.on_timer(self, self.group, now_ms)
        else:
            self.shard.carry_out(self, group_core.tick(self.group, now_ms))


class GroupShard:
    """Owner of its groups; a Shard of broker/coordinator."""

    __slots__ = ("_limits", "_settling", "_timers", "_turn", "_with_pending", "consumers",
                 "groups", "partition", "shares", "streams")  # fmt: skip

    def __init__(
        self,
        partition: CoordinatorPartition[GroupShard],
        limits: GroupLimits,
        timers: CoordinatorTimers,
        turn: Turn,
        consumers: ConsumerShell,
        shares: ShareShell,
        streams: StreamsShell,
    ) -> None:
        self.partition = partition
        self.consumers = consumers
        self.shares = shares
        self.streams = streams
        self.groups: dict[str, GroupEntry] = {}
        #: By producer id, the groups that its open transaction commits offsets of.
        self._with_pending: dict[int, dict[str, None]] = {}
        #: By producer id, what is left to do of the end of its transaction.
        self._settling: dict[int, Iterator[None]] = {}
        self._turn = turn
        self._limits = limits
        self._timers = timers

    # --- groups

    def create(self, group_id: str) -> GroupEntry:
        entry = GroupEntry(self, ClassicGroup(group_id, self._limits))
        self.groups[group_id] = entry
        return entry

    def install(self, group: LiveGroup | LiveShareGroup | LiveStreamsGroup) -> GroupEntry:
        """In the place of the group that has its id, if one has; offsets stay."""
        entry = self.groups.get(group.group_id)
        if entry is None:
            self.groups[group.group_id] = entry = GroupEntry(self, group)
        else:
            self._timers.cancel(entry)
            entry.group = group
        return entry

    def reinstate(self, entry: GroupEntry, group: ClassicGroup | None) -> None:
        """The group in it was never stored: this one is back, or none."""
        self._timers.cancel(entry)
        if group is not None:
            entry.group = group
            self.carry_out(entry, group_core.resume(group, self._timers.now_ms()))
        elif entry.offsets.is_unused:
            self.forget(entry)
        else:
            entry.group = ClassicGroup(entry.group.group_id, self._limits)

    def forget(self, entry: GroupEntry) -> None:
        """The log does not know this group; nor does anybody who waits."""
        self._timers.cancel(entry)
        if self.groups.get(entry.group.group_id) is entry:
            del self.groups[entry.group.group_id]

    def carry_out(
        self, entry: GroupEntry, effects: Iterable[Effect], stored: Done | None = None
    ) -> bool:
        """Does what the state machine wants, in its order. `stored` is called when what it wants
        to be stored is; True: there was such a thing."""
        has_persist = False
        for effect in effects:
            if isinstance(effect, Answer):
                assert callable(effect.token)
                effect.token(effect.result)
            elif isinstance(effect, ArmTimer):
                self._timers.arm(entry, effect.at_ms)
            else:
                has_persist = True
                assert isinstance(entry.group, ClassicGroup)
                self._turn.spent_units += MEMBER_UNITS * len(effect.snapshot.members)
                done = partial(self._persisted, entry, entry.group, effect, stored)
                self.partition.write([group_record(effect.snapshot)], done)
        return has_persist

    def _persisted(
        self,
        entry: GroupEntry,
        group: ClassicGroup,
        effect: Persist,
        stored: Done | None,
        error: ErrorCode,
    ) -> None:
        effects = group_core.stored(group, effect.then, error, self._timers.now_ms())
        if entry.group is not group:
            # Another kind of group has its place; who waits is told all the same.
            effects = [each for each in effects if isinstance(each, Answer)]
        self.carry_out(entry, effects)
        if stored is not None:
            stored(error)

    def write_offsets(
        self,
        records: Sequence[KeyValue],
        offsets: Sequence[StoredOffset],
        done: Done,
        producer: Producer = NOBODY,
    ) -> None:
        """In units of a batch's size; see `CoordinatorPartition.write_in_units`. The first records
        are those of `offsets`, and each is applied when it is stored. `producer`: in whose
        transaction."""
        apply = partial(self._apply_stored, offsets, producer.id)
        self.partition.write_in_units(records, apply, done, producer)

    def _apply_stored(
        self, offsets: Sequence[StoredOffset], producer_id: int, which: slice, offset: int
    ) -> None:
        for at, each in enumerate(offsets[which], offset):
            self.apply_offset(each, at, producer_id)

    def commit(
        self,
        entry: GroupEntry,
        records: Sequence[KeyValue],
        offsets: Sequence[StoredOffset],
        reply: Done,
        producer: Producer = NOBODY,
    ) -> None:
        """Commits offsets of the group; `reply` when they are durable. A group that was made for
        them goes if they are not."""
        table = entry.offsets
        for each in offsets:
            table.begin(each.topic, each.partition)

        def done(error: ErrorCode) -> None:
            for each in offsets:
                table.end(each.topic, each.partition)
            if error and entry.is_pristine and self.groups.get(entry.group.group_id) is entry:
                self.forget(entry)
            reply(error)

        self.write_offsets(records, offsets, done, producer)

    # --- transactions

    def write_marker(self, marker: Marker, reply: Done) -> None:
        """Ends a transaction: `reply(NONE)` when that is durable and its offsets are in the tables,
        or dropped."""
        producer_id = marker.producer_id
        steps: Iterator[None] = iter(())

        def stored(_offset: int) -> None:
            nonlocal steps
            steps = self._begin_to_settle(producer_id, committed=marker.end.committed)

        def done(error: ErrorCode) -> None:
            if error:
                reply(error)
            else:
                self._go_on(producer_id, steps, reply)

        self.partition.write_marker(marker, stored, done)

    def _begin_to_settle(self, producer_id: int, *, committed: bool) -> Iterator[None]:
        self._finish_settling(producer_id)
        steps = self.end_transaction(producer_id, committed=committed)
        self._settling[producer_id] = steps
        return steps

    def _go_on(self, producer_id: int, steps: Iterator[None], reply: Done) -> None:
        """A step of it now, the next one in a turn of its own."""
        for _ in steps:
            self._turn.later(partial(self._go_on, producer_id, steps, reply))
            return
        if self._settling.get(producer_id) is steps:
            del self._settling[producer_id]
        reply(ErrorCode.NONE)

    def _finish_settling(self, producer_id: int) -> None:
        """At once: the producer's next transaction is here before the last one is settled, which
        nobody but an administrator's marker brings about."""
        for _ in self._settling.pop(producer_id, ()):
            pass

    def end_transaction(self, producer_id: int, *, committed: bool) -> Iterator[None]:
        """The log has a marker. Yields wherever others may have the loop."""
        for count, group_id in enumerate(self._with_pending.pop(producer_id, {}), 1):
            entry = self.groups.get(group_id)
            if entry is not None:
                yield from entry.offsets.end_transaction(producer_id, committed=committed)
            if not count % GROUPS_PER_STEP:
                yield

    # --- what the log has

    def apply(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        """A record of the log, when it is loaded."""
        stored = parse_record(key, value)
        if isinstance(stored, StoredOffset):
            self.apply_offset(stored, offset, producer_id)
        elif isinstance(stored, StoredGroup):
            self._apply_group(stored)
        elif isinstance(stored, StoredEvent):
            self._apply_event(stored)
        elif isinstance(stored, StoredShareEvent):
            self._apply_share_event(stored)
        elif isinstance(stored, StoredStreamsEvent):
            self._apply_streams_event(stored)

    def _apply_event(self, stored: StoredEvent) -> None:
        """A record of a consumer group. Whichever is first makes it: compaction keeps the last of
        each, so that is any. A tombstone of what is not there is nothing."""
        entry = self.groups.get(stored.group_id)
        group = None if entry is None else entry.group
        if isinstance(group, LiveGroup):
            assert entry is not None
            if stored.event == GroupEpoch(None):
                self._begin_anew(entry)  # offsets outlive it, if they have no tombstones
            else:
                group.load(stored.event)
        elif stored.event.value is not None:
            live = LiveGroup(stored.group_id)
            live.load(stored.event)
            self.install(live)
        elif stored.event == GroupEpoch(None):
            self._end_simple(entry)

    def _apply_share_event(self, stored: StoredShareEvent) -> None:
        """The same of a share group. It has no offsets."""
        entry = self.groups.get(stored.group_id)
        group = None if entry is None else entry.group
        if isinstance(group, LiveShareGroup):
            assert entry is not None
            if stored.event == ShareGroupEpoch(None):
                self._begin_anew(entry)
            else:
                group.load(stored.event)
        elif stored.event.value is not None:
            live = LiveShareGroup(stored.group_id)
            live.load(stored.event)
            self.install(live)

    def _apply_streams_event(self, stored: StoredStreamsEvent) -> None:
        """The same of a streams group."""
        entry = self.groups.get(stored.group_id)
        group = None if entry is None else entry.group
        if isinstance(group, LiveStreamsGroup):
            assert entry is not None
            if stored.event == GroupSet(None):
                self._begin_anew(entry)
            else:
                group.load(stored.event)
        elif not isinstance(stored.event, ClassicGone) and stored.event.value is not None:
            live = LiveStreamsGroup(stored.group_id, self.streams.topics)
            live.load(stored.event)
            self.install(live)
        elif stored.event == GroupSet(None):
            self._end_simple(entry)

    def _end_simple(self, entry: GroupEntry | None) -> None:
        """The end of a group of which no record is left but a commit in a transaction, since these
        are not passed over: what that made goes, too, as if the group had been known."""
        group = None if entry is None else entry.group
        if isinstance(group, ClassicGroup) and group.is_forgettable and not group.protocol_type:
            assert entry is not None
            self._begin_anew(entry)

    def _apply_group(self, stored: StoredGroup) -> None:
        before = self.groups.get(stored.group_id)
        if stored.snapshot is None:
            # One that became a consumer group has it behind it.
            if before is not None and isinstance(before.group, ClassicGroup):
                self._begin_anew(before)
            return
        group = ClassicGroup.restore(stored.snapshot, self._limits)
        self.groups[stored.group_id] = entry = GroupEntry(self, group)
        if before is not None:
            entry.offsets = before.offsets

    def apply_offset(self, stored: StoredOffset, offset: int, producer_id: int) -> None:
        """An offset's record that the log has, there; `producer_id`: in whose transaction. A commit
        makes its group, if that is not there: a simple consumer's. A tombstone finds what it
        deletes, or nothing to do."""
        entry = self.groups.get(stored.group_id)
        if entry is None:
            if stored.value is None:
                return
            entry = self.create(stored.group_id)
        if stored.value is not None:
            entry.is_in_log = True
            stored.value.record_offset = offset
            if producer_id != NO_PRODUCER_ID:
                if producer_id in self._settling:
                    self._finish_settling(producer_id)
                self._with_pending.setdefault(producer_id, {})[stored.group_id] = None
                entry.offsets.apply_pending(
                    producer_id, stored.topic, stored.partition, stored.value
                )
                return
        entry.offsets.apply(stored.topic, stored.partition, stored.value)

    def apply_deletion(self, entry: GroupEntry) -> None:
        """The log has this group's tombstone. If somebody joined since that was queued the group
        stays, as its generation follows in the log; and if a commit was queued since, it begins
        anew as that of a simple consumer, which is how a load would read the same records."""
        if entry.group.is_forgettable:
            self._begin_anew(entry)

    def _begin_anew(self, entry: GroupEntry) -> None:
        self.forget(entry)
        if not entry.offsets.is_unused:
            self.create(entry.group.group_id).offsets = entry.offsets

    # --- the tenure

    def loaded(self) -> None:
        """Members have one session timeout to be heard of."""
        now_ms = self._timers.now_ms()
        for entry in list(self.groups.values()):
            if isinstance(entry.group, LiveGroup):
                self.consumers.loaded(entry, entry.group)
            elif isinstance(entry.group, LiveShareGroup):
                self.shares.loaded(entry, entry.group)
            elif isinstance(entry.group, LiveStreamsGroup):
                self.streams.loaded(entry, entry.group)
            else:
                self.carry_out(entry, group_core.start(entry.group, now_ms))

    def closed(self) -> None:
        """Members who wait are told to find the coordinator again."""
        for entry in self.groups.values():
            self._timers.cancel(entry)
            if isinstance(entry.group, ClassicGroup):
                self.carry_out(entry, group_core.close(entry.group, ErrorCode.NOT_COORDINATOR))

    def statistics(self) -> dict[str, int]:
        return {"groups": len(self.groups)}
