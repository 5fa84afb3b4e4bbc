"""GroupCoordinator: the groups whose `__consumer_offsets` partition this broker leads.

A group belongs to the partition that its id hashes to. Who leads which partition, loading it and
writing to it is broker/coordinator's part; here is what requests do with a group.

Requests are plain calls on the loop's thread: what can be answered at once is answered before the
call returns; the rest by the callback that the call is given, exactly once.

Owner of all groups' state. Tasks: the coordinator's, and one for expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from broker.cluster.internal_topics import offsets_topic_configs
from broker.coordinator.coordinator import Coordinator
from broker.coordinator.partition import CoordinatorPartition, KeyValue, PartitionState
from broker.coordinator.settings import CoordinatorSettings
from broker.coordinator.topic import CoordinatorTopic
from broker.groups.classic import group_core
from broker.groups.classic.types import GroupLimits, GroupSnapshot, GroupState
from broker.groups.offsets.offsets_core import expired_offsets
from broker.groups.records import (
    StoredOffset,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from broker.groups.shard import APPEND_ERRORS, GroupEntry, GroupShard
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode

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
    from broker.groups.offsets.offsets_core import CommittedOffset, GroupOffsets, OffsetKey
    from runtime.env import Env

OFFSETS_TOPIC = "__consumer_offsets"
#: Groups, and offsets of theirs, that are looked at before others have the loop.
GROUPS_PER_TURN = 1000

#: One offset of a commit: (topic, partition, what to store).
OffsetToCommit = tuple[str, int, "CommittedOffset"]


class GroupCoordinator:
    """Groups and committed offsets. `run` it once; constructors start nothing."""

    def __init__(self, env: Env, config: GroupConfig, catalog: Catalog, logs: Logs) -> None:
        self.env = env
        self.config = config
        self.topic = CoordinatorTopic(
            catalog,
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            offsets_topic_configs(config.offsets_topic_segment_bytes),
        )
        self.base = Coordinator[GroupShard](
            env, _settings(config), self.topic, logs, self._new_shard
        )
        self.timers = self.base.timers
        self._catalog = catalog
        self._limits = GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
        )

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Cancelled: everybody who waits is told NOT_COORDINATOR."""
        self._catalog.subscribe(self._on_topic_event)
        await self.base.run(self._expire_for_ever, task_status=task_status)

    async def ensure_ready(self, group_id: str) -> None:
        """Creates `__consumer_offsets` if it is not there, and waits until the group's partition
        is loaded, if it is ours. KafkaError: the topic cannot be created."""
        await self.base.ensure_ready(group_id)

    def topic_deleted(self, topic: Topic) -> None:
        """Forgets what groups have committed for this topic, not for a new one of its name: that
        may have been committed with another coordinator, and come with the partition's log, before
        this broker knows of the topic. Old commits do not say which topic they are of."""
        is_gone = self._catalog.get(topic.name) is None
        for shard in self.base.shards():
            tombstones = [
                StoredOffset(group_id, topic.name, number, None)
                for group_id, entry in shard.groups.items()
                for number, committed in entry.offsets.by_topic.get(topic.name, {}).items()
                if committed.topic_id == topic.id or (is_gone and committed.topic_id is None)
            ]
            self._delete_offsets(shard, tombstones, _ignore)

    def statistics(self) -> dict[str, int]:
        groups = sum(len(shard.groups) for shard in self.base.shards())
        return {**self.base.statistics(), "groups": groups}

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
        shard, error = self.base.find(group_id)
        if shard is None:
            return error
        entry = shard.groups.get(group_id)
        is_new = entry is None
        if entry is None:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            entry = shard.create(group_id)
        effects = group_core.join(entry.group, reply, request, self.timers.now_ms())
        if is_new:
            if entry.group.is_forgettable:  # refused
                shard.forget(entry)
            else:
                # As Kafka: the group is in the log from its first member on.
                empty = GroupSnapshot(group_id, "", 0, None, None, -1)
                shard.partition.write([group_record(empty)], _ignore)
        shard.carry_out(entry, effects)
        return ErrorCode.NONE

    def sync(
        self, group_id: str, request: SyncInput, reply: Callable[[SyncResult], None]
    ) -> ErrorCode:
        """SyncGroup. An error is returned; otherwise `reply` is called, now or later."""
        entry, error = self._find_group(group_id)
        if entry is None:
            return _unless_missing(error, ErrorCode.UNKNOWN_MEMBER_ID)
        effects = group_core.sync(entry.group, reply, request, self.timers.now_ms())
        entry.shard.carry_out(entry, effects)
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
        return group_core.heartbeat(
            entry.group, member_id, instance_id, generation_id, self.timers.now_ms()
        )

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
        errors, effects = group_core.leave(entry.group, members, self.timers.now_ms())

        def stored(error: ErrorCode) -> None:
            reply(error, [] if error else errors)

        if not entry.shard.carry_out(entry, effects, stored):
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
        shard, error = self.base.find(group_id)
        if shard is None:
            reply(error)
            return
        entry = shard.groups.get(group_id)
        if entry is None:
            if generation_id >= 0:
                reply(ErrorCode.GROUP_ID_NOT_FOUND)
                return
            entry = shard.create(group_id)
        error = entry.group.commit_error(member_id, instance_id, generation_id)
        if error:
            reply(error)
            return
        group_core.touch(entry.group, member_id, self.timers.now_ms())
        records = [offset_record(group_id, *each) for each in offsets]
        stored = [StoredOffset(group_id, *each) for each in offsets]
        table = entry.offsets
        for topic, number, _ in offsets:
            table.begin(topic, number)

        def done(error: ErrorCode) -> None:
            for each in stored:
                table.end(each.topic, each.partition)
            if error and entry.is_pristine and shard.groups.get(group_id) is entry:
                shard.forget(entry)
            reply(error)

        shard.write_offsets(records, stored, done)

    def fetch(
        self,
        group_id: str,
        require_stable: bool,
        reply: Callable[[ErrorCode, GroupOffsets | None], None],
    ) -> None:
        """OffsetFetch: `reply(error, table)`; no table: the group has no offsets. Who requires
        stable offsets waits for the commits of this group that are on their way (KIP-447)."""
        shard, error = self.base.find(group_id)
        if shard is None:
            reply(error, None)
            return

        def answer() -> None:
            if shard.partition.state is not PartitionState.ACTIVE:
                reply(ErrorCode.NOT_COORDINATOR, None)
                return
            entry = shard.groups.get(group_id)
            reply(ErrorCode.NONE, None if entry is None else entry.offsets)

        entry = shard.groups.get(group_id)
        if require_stable and entry is not None and entry.offsets.has_in_flight:
            shard.partition.after_pending(answer)
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
            entry.shard, stored, lambda error: reply(error, [] if error else errors)
        )

    # --- administration

    def describe(self, group_id: str) -> tuple[ErrorCode, GroupEntry | None]:
        """DescribeGroups of one group; GROUP_ID_NOT_FOUND among the errors."""
        entry, error = self._find_group(group_id, empty_id_is_fine=True)
        return (ErrorCode.NONE if entry is not None else error), entry

    def list_groups(self) -> tuple[ErrorCode, list[GroupEntry]]:
        """Every group of this broker; an error while some are being loaded."""
        if not self.base.is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if self.base.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        return ErrorCode.NONE, [e for s in self.base.shards() for e in s.groups.values()]

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
        for shard in self.base.shards():
            for entry in list(shard.groups.values()):
                if slices.due(1 + len(entry.offsets)):
                    await slices.turn()
                if shard.groups.get(entry.group.group_id) is entry:
                    self._expire_group(entry, now_ms)

    def _expire_group(self, entry: GroupEntry, now_ms: int) -> None:
        keys = expired_offsets(entry.group, entry.offsets, now_ms, self.config.offsets_retention_ms)
        is_last = len(keys) == len(entry.offsets) and not entry.offsets.has_in_flight
        if is_last and entry.group.is_forgettable and not entry.offsets.unstable:
            self._delete_group(entry, keys, _ignore)
        elif keys:
            self._delete_offsets(entry.shard, entry.tombstones(keys), _ignore)

    # --- inside

    def _delete_group(
        self, entry: GroupEntry, keys: list[OffsetKey], reply: Callable[[ErrorCode], None]
    ) -> None:
        """Tombstones for these offsets and, after them, for the group."""

        def done(error: ErrorCode) -> None:
            if not error and entry.shard.groups.get(entry.group.group_id) is entry:
                entry.shard.apply_deletion(entry)
            reply(error)

        last = [group_tombstone(entry.group.group_id)]
        self._delete_offsets(entry.shard, entry.tombstones(keys), done, last)

    def _delete_offsets(
        self,
        shard: GroupShard,
        tombstones: list[StoredOffset],
        reply: Callable[[ErrorCode], None],
        last: Sequence[KeyValue] = (),
    ) -> None:
        records: list[KeyValue] = [
            offset_tombstone(each.group_id, each.topic, each.partition) for each in tombstones
        ]
        shard.write_offsets([*records, *last], tombstones, reply)

    def _new_shard(self, partition: CoordinatorPartition[GroupShard]) -> GroupShard:
        return GroupShard(partition, self._limits, self.timers)

    def _find_group(
        self, group_id: str, *, empty_id_is_fine: bool = False
    ) -> tuple[GroupEntry | None, ErrorCode]:
        if not group_id and not empty_id_is_fine:
            return None, ErrorCode.INVALID_GROUP_ID
        shard, error = self.base.find(group_id)
        if shard is None:
            return None, error
        entry = shard.groups.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            return None, ErrorCode.GROUP_ID_NOT_FOUND
        return entry, ErrorCode.NONE

    def _on_topic_event(self, event: TopicEvent) -> None:
        """The catalog's listener: a topic was created, changed or deleted."""
        topic = event.topic
        current = self._catalog.get(topic.name)
        if current is None or current.id != topic.id:
            self.topic_deleted(topic)

    async def _expire_for_ever(self) -> None:
        while True:
            await trio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            await self.expire()


def _settings(config: GroupConfig) -> CoordinatorSettings:
    return CoordinatorSettings(
        compression=config.offsets_topic_compression_codec,
        batch_bytes_max=config.batch_bytes_max,
        pending_bytes_max=config.pending_bytes_max,
        load_buffer_size=config.offsets_load_buffer_size,
        loads_max=config.loads_max,
        append_errors=APPEND_ERRORS,
    )


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; a failed append was logged where it failed."""


def _unless_missing(error: ErrorCode, instead: ErrorCode) -> ErrorCode:
    return instead if error is ErrorCode.GROUP_ID_NOT_FOUND else error
