"""The groups of one partition of `__consumer_offsets`, for one tenure of its log.

Offsets and deletions change the tables only when their records are acknowledged, in the log's
order; a group's state machine runs ahead in memory, as Kafka's does, and answers its members only
after what they rely on is stored (`Persist`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.coordinator.partition import CoordinatorPartition, Done, KeyValue, PartitionState
from broker.groups.classic import group_core
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.types import Answer, ArmTimer, Effect, GroupLimits, Persist
from broker.groups.offsets.offsets_core import GroupOffsets
from broker.groups.records import StoredGroup, StoredOffset, group_record, parse_record
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.coordinator.timers import CoordinatorTimers
    from broker.groups.offsets.offsets_core import OffsetKey

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


class GroupEntry:
    """One group: its members' state machine and its offsets."""

    __slots__ = ("group", "offsets", "shard", "timer_at_ms")

    def __init__(self, shard: GroupShard, group: ClassicGroup) -> None:
        self.shard = shard
        self.group = group
        self.offsets = GroupOffsets()
        self.timer_at_ms: int | None = None

    @property
    def is_pristine(self) -> bool:
        """A group that only a commit made, and that nothing has come to."""
        group = self.group
        return group.is_forgettable and group.protocol_type is None and self.offsets.is_unused

    def tombstones(self, keys: list[OffsetKey]) -> list[StoredOffset]:
        return [StoredOffset(self.group.group_id, *key, None) for key in keys]

    def on_timer(self, now_ms: int) -> None:
        if self.shard.partition.state is PartitionState.ACTIVE:
            self.shard.carry_out(self, group_core.tick(self.group, now_ms))


class GroupShard:
    """Owner of its groups; a Shard of broker/coordinator."""

    __slots__ = ("_limits", "_timers", "groups", "partition")

    def __init__(
        self,
        partition: CoordinatorPartition[GroupShard],
        limits: GroupLimits,
        timers: CoordinatorTimers,
    ) -> None:
        self.partition = partition
        self.groups: dict[str, GroupEntry] = {}
        self._limits = limits
        self._timers = timers

    # --- groups

    def create(self, group_id: str) -> GroupEntry:
        entry = GroupEntry(self, ClassicGroup(group_id, self._limits))
        self.groups[group_id] = entry
        return entry

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
                done = partial(self._persisted, entry, effect, stored)
                self.partition.write([group_record(effect.snapshot)], done)
        return has_persist

    def _persisted(
        self, entry: GroupEntry, effect: Persist, stored: Done | None, error: ErrorCode
    ) -> None:
        effects = group_core.stored(entry.group, effect.then, error, self._timers.now_ms())
        self.carry_out(entry, effects)
        if stored is not None:
            stored(error)

    def write_offsets(
        self, records: Sequence[KeyValue], offsets: Sequence[StoredOffset], done: Done
    ) -> None:
        """In units of a batch's size; see `CoordinatorPartition.write_in_units`. The first records
        are those of `offsets`, and each is applied when it is stored."""
        self.partition.write_in_units(records, partial(self._apply_stored, offsets), done)

    def _apply_stored(self, offsets: Sequence[StoredOffset], which: slice) -> None:
        for each in offsets[which]:
            self.apply_offset(each)

    # --- what the log has

    def apply(self, key: bytes, value: bytes | None) -> None:
        """A record of the log, when it is loaded."""
        stored = parse_record(key, value)
        if isinstance(stored, StoredOffset):
            self.apply_offset(stored)
        elif isinstance(stored, StoredGroup):
            self._apply_group(stored)

    def _apply_group(self, stored: StoredGroup) -> None:
        if stored.snapshot is None:
            self.groups.pop(stored.group_id, None)
            return
        before = self.groups.get(stored.group_id)
        group = ClassicGroup.restore(stored.snapshot, self._limits)
        self.groups[stored.group_id] = entry = GroupEntry(self, group)
        if before is not None:
            entry.offsets = before.offsets

    def apply_offset(self, stored: StoredOffset) -> None:
        """An offset's record that the log has. A commit makes its group, if that is not there: a
        simple consumer's. A tombstone finds what it deletes, or nothing to do."""
        entry = self.groups.get(stored.group_id)
        if entry is None:
            if stored.value is None:
                return
            entry = self.create(stored.group_id)
        entry.offsets.apply(stored.topic, stored.partition, stored.value)

    def apply_deletion(self, entry: GroupEntry) -> None:
        """The log has this group's tombstone. If somebody joined since that was queued the group
        stays, as its generation follows in the log; and if a commit was queued since, it begins
        anew as that of a simple consumer, which is how a load would read the same records."""
        if not entry.group.is_forgettable:
            return
        self.forget(entry)
        if not entry.offsets.is_unused:
            self.create(entry.group.group_id).offsets = entry.offsets

    # --- the tenure

    def loaded(self) -> None:
        """Members have one session timeout to be heard of."""
        now_ms = self._timers.now_ms()
        for entry in list(self.groups.values()):
            self.carry_out(entry, group_core.start(entry.group, now_ms))

    def closed(self) -> None:
        """Members who wait are told to find the coordinator again."""
        for entry in self.groups.values():
            self._timers.cancel(entry)
            self.carry_out(entry, group_core.close(entry.group, ErrorCode.NOT_COORDINATOR))

    def statistics(self) -> dict[str, int]:
        return {"groups": len(self.groups)}
