"""GroupCoordinator: the groups whose `__consumer_offsets` partition this broker leads.

A group belongs to the partition that its id hashes to. Who leads which partition, loading it and
writing to it is broker/coordinator's part; here is what requests do with a group.

Requests are plain calls on the loop's thread: what can be answered at once is answered before the
call returns; the rest by the callback that the call is given, exactly once.

Owner of all groups' state. Tasks: the coordinator's, and one for expiry.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.cluster.internal_topics import offsets_topic_configs
from broker.coordinator.coordinator import Coordinator
from broker.coordinator.partition import CoordinatorPartition, PartitionState
from broker.coordinator.settings import CoordinatorSettings
from broker.coordinator.topic import CoordinatorTopic
from broker.groups.answers import Answers
from broker.groups.classic import group_core
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.types import GroupLimits, GroupSnapshot, GroupState
from broker.groups.consumer.live import LiveGroup
from broker.groups.consumer.mixed import MixedGroups
from broker.groups.consumer.service import ConsumerGroups
from broker.groups.consumer.types import HeartbeatResult
from broker.groups.offsets.offsets_core import expired_offsets
from broker.groups.records import (
    StoredOffset,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from broker.groups.shard import APPEND_ERRORS, GroupEntry, GroupShard
from broker.groups.share.live import LiveShareGroup
from broker.groups.share.service import ShareMembership
from broker.groups.streams.live import LiveStreamsGroup
from broker.groups.streams.service import StreamsGroups
from broker.groups.streams.types import HeartbeatResult as StreamsResult
from broker.groups.transactional import GroupTransactions
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.coordinator.ports import Logs, Topic, TopicEvent
    from broker.coordinator.units import KeyValue
    from broker.groups.classic.types import (
        JoinInput,
        JoinResult,
        LeavingMember,
        SyncInput,
        SyncResult,
    )
    from broker.groups.config import GroupConfig
    from broker.groups.consumer.ports import Topics
    from broker.groups.consumer.types import GroupTimes, HeartbeatInput
    from broker.groups.offsets.offsets_core import CommittedOffset, GroupOffsets, OffsetKey
    from broker.groups.share.ports import ShareNeighbours
    from broker.groups.streams.types import HeartbeatInput as StreamsInput
    from broker.groups.streams.types import StreamsTimes
    from runtime.env import Env

OFFSETS_TOPIC = "__consumer_offsets"
#: Groups, and offsets of theirs, that are looked at before others have the loop.
GROUPS_PER_TURN = 1000
#: What it costs the turn to answer one request whose records are stored.
TOLD_UNITS = 10

#: What is said of a group that may be another broker's.
_ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

#: One offset of a commit: (topic, partition, what to store).
OffsetToCommit = tuple[str, int, "CommittedOffset"]


#: What is appended as proof that the partition is still here: it deletes what nobody can commit.
NO_OFFSET = offset_tombstone("", "", -1)


class GroupCoordinator:
    """Groups and committed offsets. `run` it once; constructors start nothing."""

    def __init__(
        self,
        env: Env,
        config: GroupConfig,
        catalog: Topics,
        logs: Logs,
        times_of: Callable[[str], GroupTimes] | None = None,
        share: ShareNeighbours | None = None,
        streams_times_of: Callable[[str], StreamsTimes] | None = None,
    ) -> None:
        """`times_of(group id)`: a consumer group's own settings in force; None: `config`'s.
        `share`: whom share groups need; None: they are not served. `streams_times_of`: as
        `times_of`, of streams groups."""
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
        self._answers = Answers(env.turn)
        self.transactions = GroupTransactions(self.base)
        self._catalog = catalog
        self._limits = GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
        )
        self.consumers = ConsumerGroups(
            env,
            self.timers,
            config.consumer,
            catalog,
            times_of or (lambda _: config.consumer.times),
            self._limits,
        )
        self.mixed = MixedGroups(self.consumers)
        self.shares = ShareMembership(self.timers, self._answers, config.share, catalog, share)
        self.streams = StreamsGroups(
            self.timers,
            config.streams,
            catalog,
            streams_times_of or (lambda _: config.streams.times),
            self._limits,
        )

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Cancelled: everybody who waits is told NOT_COORDINATOR."""
        self._catalog.subscribe(self._on_topic_event)
        await self.base.run(
            self._expire_for_ever,
            self.consumers.run,
            self.shares.run,
            self.streams.run,
            task_status=task_status,
        )

    async def ensure_ready(self, group_id: str) -> None:
        """Creates `__consumer_offsets` if it is not there, and waits until the group's partition
        is loaded, if it is ours. KafkaError: the topic cannot be created."""
        await self.base.ensure_ready(group_id)

    def topic_deleted(self, topic: Topic) -> None:
        """Forgets what groups have committed for this topic, not for a new one of its name: that
        may have been committed with another coordinator, and come with the partition's log, before
        this broker knows of the topic. Old commits do not say which topic they are of."""
        for shard in self.base.shards():
            self._forget_topic(shard, topic)
            self.shares.topic_deleted(shard, topic.id)

    def _forget_topic(self, shard: GroupShard, topic: Topic) -> None:
        """A commit that is on its way may be for the new topic, and a tombstone would lie behind
        it: such a key is looked at again when that is stored."""
        is_gone = self._catalog.get(topic.name) is None
        tombstones = []
        is_early = False
        for group_id, entry in shard.groups.items():
            for number, known in entry.offsets.of_topic(topic.name):
                if any(
                    each.topic_id != topic.id and not (is_gone and each.topic_id is None)
                    for each in known
                ):
                    continue
                if entry.offsets.is_in_flight((topic.name, number)):
                    is_early = True
                else:
                    tombstones.append(StoredOffset(group_id, topic.name, number, None))
        self._delete_offsets(shard, tombstones, _ignore)
        if is_early:
            shard.partition.after_pending(partial(self._forget_topic_again, shard, topic))

    def _forget_topic_again(self, shard: GroupShard, topic: Topic) -> None:
        if shard.partition.state is PartitionState.ACTIVE:
            self._forget_topic(shard, topic)

    def statistics(self) -> dict[str, int]:
        groups = sum(len(shard.groups) for shard in self.base.shards())
        return {**self.base.statistics(), "groups": groups}

    # --- members of the consumer protocol

    def consumer_heartbeat(
        self, group_id: str, request: HeartbeatInput, reply: Callable[[HeartbeatResult], None]
    ) -> None:
        """ConsumerGroupHeartbeat: `reply(result)`, now or once what it changed is stored."""
        shard, error = self.base.find(group_id)
        if shard is None:
            reply(HeartbeatResult(error))
        else:
            answer = self._answers.to(reply)
            self.consumers.heartbeat(shard, group_id, request, answer)
            answer.waits = True

    def serve_share_groups(self, neighbours: ShareNeighbours) -> None:
        """From now on they are served; those that were loaded by now go on."""
        self.shares.neighbours = neighbours
        for shard in self.base.shards():
            for entry in shard.groups.values():
                if isinstance(entry.group, LiveShareGroup):
                    self.shares.loaded(entry, entry.group)

    def streams_heartbeat(
        self, group_id: str, request: StreamsInput, reply: Callable[[StreamsResult], None]
    ) -> None:
        """StreamsGroupHeartbeat: `reply(result)`, now or once what it changed is stored."""
        shard, error = self.base.find(group_id)
        if shard is None:
            reply(StreamsResult(error))
        else:
            answer = self._answers.to(reply)
            self.streams.heartbeat(shard, group_id, request, answer)
            answer.waits = True

    # --- members

    def join(
        self, group_id: str, request: JoinInput, reply: Callable[[JoinResult], None]
    ) -> ErrorCode:
        """JoinGroup. An error is returned; otherwise `reply` is called, now or later."""
        answer = self._answers.to(reply)
        error = self._join(group_id, request, answer)
        answer.waits = True
        return error

    def _join(
        self, group_id: str, request: JoinInput, reply: Callable[[JoinResult], None]
    ) -> ErrorCode:
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
        group = entry.group
        if isinstance(group, LiveGroup):
            if not group.is_empty:
                return self.mixed.join(entry, group, request, reply)
            group = self.consumers.give_way(entry, group)
        elif isinstance(group, LiveShareGroup):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif isinstance(group, LiveStreamsGroup):
            if not group.is_empty:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            if not group.is_forgettable:  # its last member's leaving is on its way
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            group = self.streams.give_way(entry, group)
        effects = group_core.join(group, reply, request, self.timers.now_ms())
        if is_new:
            if group.is_forgettable:  # refused
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
        answer = self._answers.to(reply)
        error = self._sync(group_id, request, answer)
        answer.waits = True
        return error

    def _sync(
        self, group_id: str, request: SyncInput, reply: Callable[[SyncResult], None]
    ) -> ErrorCode:
        entry, error = self._find_group(group_id)
        if entry is None:
            return _unless_missing(error, ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(entry.group, LiveGroup):
            return self.mixed.sync(entry, entry.group, request, reply)
        if isinstance(entry.group, LiveShareGroup | LiveStreamsGroup):
            return ErrorCode.UNKNOWN_MEMBER_ID
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
        if isinstance(entry.group, LiveGroup):
            return self.mixed.heartbeat(entry, entry.group, member_id, instance_id, generation_id)
        if isinstance(entry.group, LiveShareGroup | LiveStreamsGroup):
            return ErrorCode.UNKNOWN_MEMBER_ID
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
        answer = self._answers.to(reply)
        self._leave(group_id, members, answer)
        answer.waits = True

    def _leave(
        self,
        group_id: str,
        members: list[LeavingMember],
        reply: Callable[[ErrorCode, list[ErrorCode]], None],
    ) -> None:
        entry, error = self._find_group(group_id)
        if entry is None:
            if error is ErrorCode.GROUP_ID_NOT_FOUND:
                reply(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
            else:
                reply(error, [])
            return
        if isinstance(entry.group, LiveGroup):
            self.mixed.leave(entry, entry.group, members, reply)
            return
        if isinstance(entry.group, LiveShareGroup | LiveStreamsGroup):
            # As of a group that is not there (GroupCoordinatorService.leaveGroup).
            reply(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
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
        *,
        speaks_epochs: bool = True,
    ) -> None:
        """OffsetCommit: `reply(error)`, NONE once all offsets are durable. A group that is not
        there is made for a commit without a generation: a simple consumer's; otherwise
        GROUP_ID_NOT_FOUND. The empty group id is a group like any other, as in Kafka.
        `speaks_epochs`: the API's version knows of member epochs (KIP-848), and a generation may
        be one."""
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
        group = entry.group
        error = entry.commit_error(
            member_id,
            instance_id,
            generation_id,
            [(each.topic_id, number) for _, number, each in offsets],
            speaks_epochs=speaks_epochs,
        )
        if error:
            reply(error)
            return
        if isinstance(group, ClassicGroup):
            group_core.touch(group, member_id, self.timers.now_ms())
        elif isinstance(group, LiveGroup) and group.is_classic_member(member_id):
            self.consumers.heard_of(group, member_id)
        records = [offset_record(group_id, *each) for each in offsets]
        shard.commit(entry, records, [StoredOffset(group_id, *each) for each in offsets], reply)

    def fetch(
        self,
        group_id: str,
        require_stable: bool,
        reply: Callable[[ErrorCode, GroupOffsets | None], None],
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """OffsetFetch: `reply(error, table)`; no table: the group has no offsets. Who requires
        stable offsets waits for the commits that are on their way (KIP-447), and for proof that no
        other broker took others since: something appended now is acknowledged, which the log of a
        coordinator that was deposed refuses. So he is told an error while nothing can be appended.
        A member of a consumer group tells its epoch. While the group moves to another broker, or
        nothing can be appended, the error is COORDINATOR_LOAD_IN_PROGRESS, not Kafka's
        NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE: librdkafka (2.16) asks no second time after
        those, and its consumer reads nothing until the next rebalance."""

        def refuse(error: ErrorCode, *, is_moving: bool = True) -> None:
            if is_moving and error in _ELSEWHERE:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            reply(error, None)

        shard, error = self.base.find(group_id)
        if shard is None:
            refuse(error, is_moving=self.base.is_moving(group_id))
            return
        entry = shard.groups.get(group_id)
        if entry is not None and isinstance(entry.group, LiveShareGroup):
            reply(entry.group.offsets_error, None)
            return
        if entry is not None and isinstance(entry.group, LiveGroup | LiveStreamsGroup):
            error = entry.group.fetch_error(member_id, member_epoch)
            if error:
                reply(error, None)
                return

        def answer() -> None:
            if shard.partition.state is not PartitionState.ACTIVE:
                refuse(ErrorCode.NOT_COORDINATOR)
                return
            entry = shard.groups.get(group_id)
            reply(ErrorCode.NONE, None if entry is None else entry.offsets)

        def acknowledged(error: ErrorCode) -> None:
            if error:
                refuse(error)
            else:
                answer()

        if require_stable:
            shard.partition.barrier(lambda: NO_OFFSET, acknowledged)
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
        if isinstance(group, LiveShareGroup):
            reply(group.offsets_error, [])
            return
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
        entries = [e for s in self.base.shards() for e in s.groups.values()]
        return ErrorCode.NONE, [each for each in entries if _is_there(each)]

    def delete_group(self, group_id: str, reply: Callable[[ErrorCode], None]) -> None:
        """DeleteGroups of one group: `reply(error)`, NONE once its tombstones are durable."""
        entry, error = self._find_group(group_id, empty_id_is_fine=True)
        if entry is None:
            reply(error)
        elif not entry.group.is_empty:
            reply(ErrorCode.NON_EMPTY_GROUP)
        elif isinstance(entry.group, LiveShareGroup):
            self.shares.delete(entry, entry.group, reply)
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
        if isinstance(entry.group, LiveShareGroup):
            return  # it stays until somebody deletes it
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

        if isinstance(entry.group, LiveGroup):
            self._delete_offsets(entry.shard, entry.tombstones(keys), _ignore)
            self.consumers.delete(entry, entry.group, done)
            return
        if isinstance(entry.group, LiveStreamsGroup):
            self._delete_offsets(entry.shard, entry.tombstones(keys), _ignore)
            self.streams.delete(entry, entry.group, done)
            return
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
        return GroupShard(
            partition,
            self._limits,
            self.timers,
            self.env.turn,
            self.consumers,
            self.shares,
            self.streams,
        )

    def _find_group(
        self, group_id: str, *, empty_id_is_fine: bool = False
    ) -> tuple[GroupEntry | None, ErrorCode]:
        if not group_id and not empty_id_is_fine:
            return None, ErrorCode.INVALID_GROUP_ID
        shard, error = self.base.find(group_id)
        if shard is None:
            return None, error
        entry = shard.groups.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD or not _is_there(entry):
            return None, ErrorCode.GROUP_ID_NOT_FOUND
        return entry, ErrorCode.NONE

    def _on_topic_event(self, event: TopicEvent) -> None:
        """The catalog's listener: a topic was created, changed or deleted."""
        self.consumers.topics_changed()
        self.shares.topics_changed()
        self.streams.topics_changed()
        topic = event.topic
        current = self._catalog.get(topic.name)
        if current is None or current.id != topic.id:
            self.topic_deleted(topic)

    async def _expire_for_ever(self) -> None:
        while True:
            await trio.sleep(self.config.offsets_retention_check_interval_ms / 1000)
            await self.expire()


def _is_there(entry: GroupEntry) -> bool:
    """Not of a consumer, share or streams group whose first records are on their way."""
    return isinstance(entry.group, ClassicGroup) or entry.group.is_there


def _settings(config: GroupConfig) -> CoordinatorSettings:
    return CoordinatorSettings(
        compression=config.offsets_topic_compression_codec,
        batch_bytes_max=config.batch_bytes_max,
        pending_bytes_max=config.pending_bytes_max,
        load_buffer_size=config.offsets_load_buffer_size,
        last_counts=True,
        loads_max=config.loads_max,
        told_units=TOLD_UNITS,
        append_errors=APPEND_ERRORS,
    )


def _ignore(error: ErrorCode) -> None:
    """Nobody waits; a failed append was logged where it failed."""


def _unless_missing(error: ErrorCode, instead: ErrorCode) -> ErrorCode:
    return instead if error is ErrorCode.GROUP_ID_NOT_FOUND else error
