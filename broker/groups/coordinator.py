"""GroupCoordinator: the groups whose `__consumer_offsets` partition this broker leads.

A group belongs to the partition that its id hashes to; who leads the partition coordinates the
group. From the moment that this broker begins to hold the partition requests are answered
COORDINATOR_LOAD_IN_PROGRESS; once its log is online it is loaded; when the log goes offline,
because it was handed over or lost, all is forgotten and everybody who waits is told
NOT_COORDINATOR, as is everybody who asks from then on.

Requests are plain calls on the loop's thread: what can be answered at once is answered before the
call returns; the rest by the callback that the call is given, exactly once.

Owner of all groups' state. Tasks: one for timers, one for expiry, `loads_max` that load.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import trio

from broker.cluster.internal_topics import offsets_topic_configs
from broker.coordinator.timers import GroupTimers
from broker.coordinator.topic import CoordinatorTopic
from broker.groups.classic.types import GroupSnapshot, GroupState
from broker.groups.coordinator_partition import (
    CoordinatorPartition,
    GroupEntry,
    KeyValue,
    PartitionState,
)
from broker.groups.offsets.table import expired_offsets
from broker.groups.records import (
    StoredOffset,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.coordinator.ports import Catalog, Logs, Topic, TopicEvent
    from broker.groups.classic.types import (
        JoinInput,
        JoinResult,
        LeavingMember,
        SyncInput,
        SyncResult,
    )
    from broker.groups.config import GroupConfig
    from broker.groups.offsets.table import CommittedOffset, GroupOffsets, OffsetKey
    from runtime.env import Env

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
#: Groups, and offsets of theirs, that are looked at before others have the loop.
GROUPS_PER_TURN = 1000

#: One offset of a commit: (topic, partition, what to store).
OffsetToCommit = tuple[str, int, "CommittedOffset"]


class GroupCoordinator:
    """Classic groups and committed offsets. `run` it once; constructors start nothing."""

    def __init__(self, env: Env, config: GroupConfig, catalog: Catalog, logs: Logs) -> None:
        self.env = env
        self.config = config
        self.timers = GroupTimers(env.clock)
        self.topic = CoordinatorTopic(
            catalog,
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            offsets_topic_configs(config.offsets_topic_segment_bytes),
        )
        self._catalog = catalog
        self._logs = logs
        self._partitions: dict[int, CoordinatorPartition] = {}
        self._running = False
        # At most one entry per partition of the topic is in the channel.
        self._to_load, self._loads = trio.open_memory_channel[CoordinatorPartition](math.inf)

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Cancelled: everybody who waits is told NOT_COORDINATOR."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.timers.run)
                nursery.start_soon(self._expire_for_ever)
                for _ in range(self.config.loads_max):
                    nursery.start_soon(self._load_for_ever)
                self._running = True
                self.load_all()
                self._logs.subscribe(self._on_held)
                self._catalog.subscribe(self._on_topic_event)
                task_status.started()
        finally:
            self._running = False
            for partition in list(self._partitions.values()):
                partition.close()

    def load_all(self) -> None:
        """Starts to load every partition of the topic that is ours and not loaded yet: a group's
        members are watched, and the group is listed, before the first request for it."""
        for index in range(self.topic.partition_count if self.topic.exists else 0):
            self.gained(index)

    def gained(self, index: int) -> CoordinatorPartition | None:
        """Partition `index` may be ours now; loads it if the log manager says so. Idempotent."""
        partition = self._partitions.get(index)
        if partition is not None:
            return partition
        try:
            log = self._logs.get(OFFSETS_TOPIC, index)
        except KafkaError:
            return None
        if log.state.value == "offline":
            return None
        partition = CoordinatorPartition(
            index, log, self.env, self.config, self.timers, self._on_closed
        )
        self._partitions[index] = partition
        partition.when_taken_over(self._to_load.send_nowait)
        return partition

    def lost(self, index: int) -> None:
        """Partition `index` is no longer ours; also noticed from the log, by itself."""
        partition = self._partitions.get(index)
        if partition is not None:
            partition.close()

    def topic_deleted(self, topic: Topic) -> None:
        """Forgets what groups have committed for this topic, not for a new one of its name: that
        may have been committed with another coordinator, and come with the partition's log, before
        this broker knows of the topic. Old commits do not say which topic they are of."""
        is_gone = self._catalog.get(topic.name) is None
        for partition in self._active():
            tombstones = [
                StoredOffset(group_id, topic.name, number, None)
                for group_id, entry in partition.groups.items()
                for number, committed in entry.offsets.by_topic.get(topic.name, {}).items()
                if committed.topic_id == topic.id or (is_gone and committed.topic_id is None)
            ]
            self._delete_offsets(partition, tombstones, _ignore)

    async def ensure_ready(self, group_id: str) -> None:
        """Creates `__consumer_offsets` if it is not there, and waits until the group's partition
        is loaded, if it is ours. KafkaError: the topic cannot be created."""
        await self.topic.ensure()
        partition = self.gained(self.topic.partition_for(group_id))
        if partition is not None and self._running:
            await partition.settled.wait()

    def statistics(self) -> dict[str, int]:
        active = self._active()
        return {
            "partitions_active": len(active),
            "partitions_loading": len(self._partitions) - len(active),
            "groups": sum(len(each.groups) for each in active),
            "batches": sum(each.batch_count for each in active),
            "pending_bytes": sum(each.pending_bytes for each in active),
            "timers": len(self.timers),
        }

    # --- members

    def join(
        self, group_id: str, request: JoinInput, reply: Callable[[JoinResult], None]
    ) -> ErrorCode:
        """JoinGroup. An error is returned; otherwise `reply` is called, now or later."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        config = self.config
        least_ms, most_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        partition, error = self._find(group_id)
        if partition is None:
            return error
        entry = partition.groups.get(group_id)
        is_new = entry is None
        if entry is None:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            entry = partition.create(group_id)
        effects = entry.group.join(reply, request, self.timers.now_ms())
        if is_new:
            if entry.group.is_forgettable:  # refused
                partition.forget(entry)
            else:
                # As Kafka: the group is in the log from its first member on.
                empty = GroupSnapshot(group_id, "", 0, None, None, -1)
                partition.write([group_record(empty)], _ignore)
        partition.carry_out(entry, effects)
        return ErrorCode.NONE

    def sync(
        self, group_id: str, request: SyncInput, reply: Callable[[SyncResult], None]
    ) -> ErrorCode:
        """SyncGroup. An error is returned; otherwise `reply` is called, now or later."""
        entry, error = self._find_group(group_id)
        if entry is None:
            return _unless_missing(error, ErrorCode.UNKNOWN_MEMBER_ID)
        effects = entry.group.sync(reply, request, self.timers.now_ms())
        entry.partition.carry_out(entry, effects)
        return ErrorCode.NONE

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Heartbeat: the answer. While the group is being loaded it is well: sessions start when
        that is done."""
        entry, error = self._find_group(group_id)
        if entry is None:
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            return _unless_missing(error, ErrorCode.UNKNOWN_MEMBER_ID)
        return entry.group.heartbeat(member_id, instance_id, generation_id, self.timers.now_ms())

    def leave(
        self,
        group_id: str,
        members: list[LeavingMember],
        reply: Callable[[ErrorCode, list[ErrorCode]], None],
    ) -> None:
        """LeaveGroup: `reply(error of all, errors by member)`. If the group is empty after that,
        not before this is stored."""
        entry, error = self._find_group(group_id)
        if entry is None:
            if error is ErrorCode.GROUP_ID_NOT_FOUND:
                reply(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
            else:
                reply(error, [])
            return
        errors, effects = entry.group.leave(members, self.timers.now_ms())

        def stored(error: ErrorCode) -> None:
            reply(error, [] if error else errors)

        if not entry.partition.carry_out(entry, effects, stored):
            stored(ErrorCode.NONE)

    # --- offsets

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        offsets: Sequence[OffsetToCommit],
        reply: Callable[[ErrorCode], None],
    ) -> None:
        """OffsetCommit: `reply(error)`, NONE once all offsets are durable. A group that is not
        there is made for a commit without a generation: a simple consumer's; otherwise
        GROUP_ID_NOT_FOUND. The empty group id is a group like any other, as in Kafka."""
        partition, error = self._find(group_id)
        if partition is None:
            reply(error)
            return
        entry = partition.groups.get(group_id)
        if entry is None:
            if generation_id >= 0:
                reply(ErrorCode.GROUP_ID_NOT_FOUND)
                return
            entry = partition.create(group_id)
        error = entry.group.commit_error(member_id, instance_id, generation_id)
        if error:
            reply(error)
            return
        entry.group.touch(member_id, self.timers.now_ms())
        records = [offset_record(group_id, *each) for each in offsets]
        stored = [StoredOffset(group_id, *each) for each in offsets]
        table = entry.offsets
        for topic, number, _ in offsets:
            table.begin(topic, number)

        def done(error: ErrorCode) -> None:
            for each in stored:
                table.end(each.topic, each.partition)
            if error and entry.is_pristine and partition.groups.get(group_id) is entry:
                partition.forget(entry)
            reply(error)

        partition.write_offsets(records, stored, done)

    def fetch(
        self,
        group_id: str,
        require_stable: bool,
        reply: Callable[[ErrorCode, GroupOffsets | None], None],
    ) -> None:
        """OffsetFetch: `reply(error, table)`; no table: the group has no offsets. Who requires
        stable offsets waits for the commits of this group that are on their way (KIP-447)."""
        partition, error = self._find(group_id)
        if partition is None:
            reply(error, None)
            return

        def answer() -> None:
            if partition.state is not PartitionState.ACTIVE:
                reply(ErrorCode.NOT_COORDINATOR, None)
                return
            entry = partition.groups.get(group_id)
            reply(ErrorCode.NONE, None if entry is None else entry.offsets)

        entry = partition.groups.get(group_id)
        if require_stable and entry is not None and entry.offsets.has_in_flight:
            partition.after_pending(answer)
        else:
            answer()

    def delete_offsets(
        self,
        group_id: str,
        keys: Sequence[tuple[str, int]],
        reply: Callable[[ErrorCode, list[ErrorCode]], None],
    ) -> None:
        """OffsetDelete: `reply(error of all, errors by key)`."""
        if not group_id:
            reply(ErrorCode.INVALID_GROUP_ID, [])
            return
        entry, error = self._find_group(group_id)
        if entry is None:
            reply(error, [])
            return
        group = entry.group
        if not group.is_empty and not group.is_of_consumers:
            reply(ErrorCode.NON_EMPTY_GROUP, [])
            return
        errors: list[ErrorCode] = []
        stored: list[StoredOffset] = []
        for topic, number in keys:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            errors.append(ErrorCode.NONE)
            if entry.offsets.knows(topic, number):
                stored.append(StoredOffset(group_id, topic, number, None))
        self._delete_offsets(
            entry.partition, stored, lambda error: reply(error, [] if error else errors)
        )

    # --- administration

    def describe(self, group_id: str) -> tuple[ErrorCode, GroupEntry | None]:
        """DescribeGroups of one group; GROUP_ID_NOT_FOUND among the errors."""
        entry, error = self._find_group(group_id, empty_id_is_fine=True)
        return (ErrorCode.NONE if entry is not None else error), entry

    def list_groups(self) -> tuple[ErrorCode, list[GroupEntry]]:
        """Every group of this broker; an error while some are being loaded."""
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if any(p.state is PartitionState.LOADING for p in self._partitions.values()):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        return ErrorCode.NONE, [e for p in self._active() for e in p.groups.values()]

    def delete_group(self, group_id: str, reply: Callable[[ErrorCode], None]) -> None:
        """DeleteGroups of one group: `reply(error)`, NONE once its tombstones are durable."""
        entry, error = self._find_group(group_id, empty_id_is_fine=True)
        if entry is None:
            reply(error)
        elif not entry.group.is_empty:
            reply(ErrorCode.NON_EMPTY_GROUP)
        else:
            self._delete_group(entry, entry.offsets.keys_to_delete(), reply)

    async def expire(self) -> None:
        """Writes tombstones for offsets that have expired, and for groups that are empty and have
        none left (KIP-211)."""
        now_ms = self.timers.wall_ms()
        slices = Slices(GROUPS_PER_TURN)
        for partition in self._active():
            for entry in list(partition.groups.values()):
                if slices.due(1 + len(entry.offsets)):
                    await slices.turn()
                if partition.groups.get(entry.group.group_id) is entry:
                    self._expire_group(partition, entry, now_ms)

    def _expire_group(
        self, partition: CoordinatorPartition, entry: GroupEntry, now_ms: int
    ) -> None:
        keys = expired_offsets(entry.group, entry.offsets, now_ms, self.config.offsets_retention_ms)
        is_last = len(keys) == len(entry.offsets) and not entry.offsets.has_in_flight
        if is_last and entry.group.is_forgettable and not entry.offsets.unstable:
            self._delete_group(entry, keys, _ignore)
        elif keys:
            self._delete_offsets(partition, entry.tombstones(keys), _ignore)

    # --- inside

    def _delete_group(
        self, entry: GroupEntry, keys: list[OffsetKey], reply: Callable[[ErrorCode], None]
    ) -> None:
        """Tombstones for these offsets and, after them, for the group."""

        def done(error: ErrorCode) -> None:
            if not error and entry.partition.groups.get(entry.group.group_id) is entry:
                entry.partition.apply_deletion(entry)
            reply(error)

        last = [group_tombstone(entry.group.group_id)]
        self._delete_offsets(entry.partition, entry.tombstones(keys), done, last)

    def _delete_offsets(
        self,
        partition: CoordinatorPartition,
        tombstones: list[StoredOffset],
        reply: Callable[[ErrorCode], None],
        last: Sequence[KeyValue] = (),
    ) -> None:
        records: list[KeyValue] = [
            offset_tombstone(each.group_id, each.topic, each.partition) for each in tombstones
        ]
        partition.write_offsets([*records, *last], tombstones, reply)

    def _active(self) -> list[CoordinatorPartition]:
        return [p for p in self._partitions.values() if p.state is PartitionState.ACTIVE]

    def _find(self, group_id: str) -> tuple[CoordinatorPartition | None, ErrorCode]:
        """The loaded partition of a group, or why there is none."""
        if not self._running:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self.topic.exists:
            return None, ErrorCode.NOT_COORDINATOR
        index = self.topic.partition_for(group_id)
        partition = self._partitions.get(index)
        if partition is None:
            partition = self.gained(index)
        if partition is None:
            return None, ErrorCode.NOT_COORDINATOR
        if partition.state is PartitionState.ACTIVE:
            return partition, ErrorCode.NONE
        return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _find_group(
        self, group_id: str, *, empty_id_is_fine: bool = False
    ) -> tuple[GroupEntry | None, ErrorCode]:
        if not group_id and not empty_id_is_fine:
            return None, ErrorCode.INVALID_GROUP_ID
        partition, error = self._find(group_id)
        if partition is None:
            return None, error
        entry = partition.groups.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            return None, ErrorCode.GROUP_ID_NOT_FOUND
        return entry, ErrorCode.NONE

    def _on_closed(self, partition: CoordinatorPartition) -> None:
        if self._partitions.get(partition.index) is partition:
            del self._partitions[partition.index]

    def _on_held(self, topic: str, index: int) -> None:
        """The log manager's listener. A tenure that is over is not waited for: its log is offline,
        and the partition was closed when that happened."""
        if topic == OFFSETS_TOPIC and self._running:
            self.gained(index)

    def _on_topic_event(self, event: TopicEvent) -> None:
        """The catalog's listener: a topic was created, changed or deleted."""
        topic = event.topic
        current = self._catalog.get(topic.name)
        if current is None or current.id != topic.id:
            self.topic_deleted(topic)

    async def _load_for_ever(self) -> None:
        while True:
            partition = await self._loads.receive()
            await partition.load()

    async def _expire_for_ever(self) -> None:
        while True:
            await trio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            await self.expire()


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; a failed append was logged where it failed."""


def _unless_missing(error: ErrorCode, instead: ErrorCode) -> ErrorCode:
    return instead if error is ErrorCode.GROUP_ID_NOT_FOUND else error
