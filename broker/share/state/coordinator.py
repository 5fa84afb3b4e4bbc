"""ShareStateCoordinator: the share partitions whose partition of `__share_group_state` this broker
leads.

A key belongs to the partition that it hashes to. Who leads which partition, loading it and writing
to it is broker/coordinator's part; what a request makes of a key is share_state_core's. Requests
are plain calls on the loop's thread, with a callback that is called exactly once, possibly before
the call returns.

The topic is not compacted, as updates mean nothing without their snapshot. Instead the front of
each log is deleted, as by DeleteRecords, up to what is needed. A key that nobody writes to would
keep all that comes behind its snapshot; so it is written anew from time to time, if that lets more
go than it adds. Known deviation: Kafka writes cold keys anew unless all of them are cold.

Owner of all keys' state. Tasks: the coordinator's, one that prunes, one for cold keys. Both look at
the shards that are active when they look: a tenure that is over has none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from broker.cluster.topic import SHARE_STATE_TOPIC
from broker.coordinator.coordinator import Coordinator
from broker.coordinator.settings import CoordinatorSettings
from broker.coordinator.topic import CoordinatorTopic
from broker.share.ports import ShareState
from broker.share.state.keys import coordinator_key
from broker.share.state.shard import APPEND_ERRORS, StateShard
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from broker.coordinator.partition import CoordinatorPartition
    from broker.coordinator.ports import Catalog
    from broker.share.ports import ShareKey
    from broker.share.state.config import ShareStateConfig
    from broker.share.state.ports import StateLogs
    from broker.share.state.shard import Reply
    from broker.share.state.share_state_core import Write
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: What is refused for lack of room is a request, before anything is done.
_NO_LIMIT = 1 << 62
RELOAD_MS = 1_000
#: What it costs the turn to answer one request whose records are stored.
TOLD_UNITS = 10
#: Keys that are looked at before others have the loop; one that is written anew costs ten, and one
#: more for every so many batches.
KEYS_PER_TURN = 1_000
REWRITE_UNITS = 10
BATCHES_PER_UNIT = 10
#: A log whose beginning does not move in time is left until the next look.
PRUNE_SECONDS = 30.0
#: Batches that are written at once, in units of about a microsecond what it costs, and each batch.
WRITE_BATCHES = 500
REQUEST_UNITS = 40
BATCH_UNITS = 2


class _Reload:
    """A shard that waits to be loaded anew."""

    __slots__ = ("_reload", "_shard", "timer_at_ms")

    def __init__(self, reload: Callable[[StateShard], None], shard: StateShard) -> None:
        self._reload = reload
        self._shard = shard
        self.timer_at_ms: int | None = None

    def on_timer(self, now_ms: int) -> None:
        self._reload(self._shard)


class ShareStateCoordinator:
    """`run` it once; constructors start nothing."""

    def __init__(
        self,
        env: Env,
        config: ShareStateConfig,
        topic_configs: Mapping[str, str],
        topics: Catalog,
        logs: StateLogs,
    ) -> None:
        self.config = config
        self.topic = CoordinatorTopic(
            topics, SHARE_STATE_TOPIC, config.state_topic_num_partitions, topic_configs
        )
        self.base = Coordinator[StateShard](
            env, _settings(config), self.topic, logs, self._new_shard
        )
        self.timers = self.base.timers
        self.load_times = self.base.load_times
        #: Records that were deleted from the beginnings of logs, and snapshots for that.
        self.pruned_count = self.rewritten_count = 0
        self._topics = topics
        self._logs = logs
        #: By partition: not before that time again.
        self._reload_at_ms: dict[int, int] = {}

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Cancelled: everybody who waits is told NOT_COORDINATOR."""
        await self.base.run(self._prune_for_ever, self._rewrite_for_ever, task_status=task_status)

    async def ensure_ready(self, key: str) -> None:
        """Creates `__share_group_state` if it is not there, and waits until the partition of the
        key (`coordinator_key`) is loaded, if it is ours. KafkaError: it cannot be created."""
        await self.base.ensure_ready(key)

    def statistics(self) -> dict[str, int]:
        return {
            **self.base.statistics(),
            "share_partitions": sum(len(shard.states) for shard in self.base.shards()),
            "pruned_records": self.pruned_count,
            "cold_snapshots": self.rewritten_count,
        }

    # --- requests

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, reply: Reply) -> None:
        """InitializeShareGroupState of one key; of `reply` the error counts."""
        shard = self._shard(key, reply)
        if shard is not None:
            shard.initialize(key, state_epoch, start_offset, reply)

    def read(self, key: ShareKey, leader_epoch: int, reply: Reply) -> None:
        """ReadShareGroupState of one key."""
        shard = self._shard(key, reply)
        if shard is not None:
            shard.read(key, leader_epoch, reply)

    def read_summary(self, key: ShareKey, reply: Reply) -> None:
        """ReadShareGroupStateSummary of one key."""
        shard = self._shard(key, reply)
        if shard is not None:
            shard.read_summary(key, reply)

    def delete(self, key: ShareKey, reply: Reply) -> None:
        """DeleteShareGroupState of one key, whose topic may be gone."""
        shard = self._shard(key, reply, may_be_gone=True)
        if shard is not None:
            shard.delete(key, reply)

    def write(self, key: ShareKey, request: Write, reply: Reply) -> Iterator[int]:
        """WriteShareGroupState of one key; of `reply` the error counts. Yields what each step cost,
        in units of about a microsecond. Of very many batches some may be written although others
        are refused, if the key changes in between: each says what one record has come to, and who
        wrote them will write those that count again."""
        batches, start = request.batches, 0
        answers = _Answers(reply)
        while len(batches) - start > WRITE_BATCHES:
            some = batches[start : start + WRITE_BATCHES]
            start += WRITE_BATCHES
            part = request._replace(start_offset=-1, delivery_complete_count=-1, batches=some)
            self._write(key, part, answers.another())
            yield REQUEST_UNITS + BATCH_UNITS * len(some)
        rest = batches[start:]
        self._write(key, request._replace(batches=rest), answers.another())
        answers.told_all()
        yield REQUEST_UNITS + BATCH_UNITS * len(rest)

    def _write(self, key: ShareKey, request: Write, reply: Reply) -> None:
        shard = self._shard(key, reply)
        if shard is not None:
            shard.write(key, request, reply)

    def _shard(
        self, key: ShareKey, reply: Reply, *, may_be_gone: bool = False
    ) -> StateShard | None:
        """None: it is answered."""
        error = ErrorCode.NONE
        shard: StateShard | None = None
        if not key.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif key.partition < 0 or not key.topic_id.int:
            error = ErrorCode.INVALID_REQUEST
        elif not may_be_gone and not self._is_known(key.topic_id, key.partition):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            shard, error = self.base.find(coordinator_key(key))
        if shard is None:
            reply(ShareState(error))
        return shard

    def _is_known(self, topic_id: UUID, partition: int) -> bool:
        topic = self._topics.get_by_id(topic_id)
        return topic is not None and partition < topic.partition_count

    # --- what is not asked for

    async def prune(self) -> None:
        """Deletes what is redundant from the beginning of each log."""
        for shard in self.base.shards():
            if shard.is_active:
                await self._prune(shard)

    async def _prune(self, shard: StateShard) -> None:
        index, offset = shard.partition.index, shard.redundancy.redundant_offset()
        try:
            before = self._logs.get(self.topic.name, index).log_start_offset
            if offset <= before:
                return
            with trio.move_on_after(PRUNE_SECONDS) as scope:
                await self._logs.delete_records(self.topic.name, index, offset)
        except KafkaError as error:
            logger.info("not_pruned", kv(partition=index, error=error))
            return
        if not scope.cancelled_caught:
            self.pruned_count += offset - before

    async def rewrite_cold(self) -> None:
        """New snapshots of keys that were not written to for
        `share.coordinator.cold.partition.snapshot.interval.ms`."""
        slices = Slices(KEYS_PER_TURN)
        for shard in self.base.shards():
            for key in list(shard.states):
                state = shard.states.get(key)
                if not shard.is_active or shard.is_full:
                    break
                if state is None or not shard.redundancy.is_mostly_superseded():
                    continue
                if shard.rewrite(key):
                    self.rewritten_count += 1
                    if slices.due(REWRITE_UNITS + len(state.batches) // BATCHES_PER_UNIT):
                        await slices.turn()
                elif slices.due():
                    await slices.turn()

    async def _prune_for_ever(self) -> None:
        while True:
            await trio.sleep(self.config.state_topic_prune_interval_ms / 1000)
            await self.prune()

    async def _rewrite_for_ever(self) -> None:
        while True:
            await trio.sleep(self.config.cold_partition_snapshot_interval_ms / 1000)
            await self.rewrite_cold()

    # --- for shards

    def reload(self, shard: StateShard) -> None:
        """Ends the tenure in memory, and begins it anew with what the log has: at once, but the
        same partition once a second only, as a log that has no bookies refuses all that comes."""
        now_ms = self.timers.now_ms()
        at_ms = max(now_ms, self._reload_at_ms.get(shard.partition.index, now_ms))
        self._reload_at_ms[shard.partition.index] = at_ms + RELOAD_MS
        if at_ms == now_ms:
            self._reload(shard)
        else:
            self.timers.arm(_Reload(self._reload, shard), at_ms)

    def _reload(self, shard: StateShard) -> None:
        shard.partition.close()
        if self.base.is_running:
            self.base.gained(shard.partition.index)

    def _new_shard(self, partition: CoordinatorPartition[StateShard]) -> StateShard:
        return StateShard(partition, self)


class _Answers:
    """Several answers as one: the first error, once all have come."""

    __slots__ = ("_error", "_left", "_reply")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._left = 1
        self._error = ErrorCode.NONE

    def another(self) -> Reply:
        self._left += 1
        return self._one_came

    def told_all(self) -> None:
        """No more will be asked for."""
        self._one_came(ShareState(ErrorCode.NONE))

    def _one_came(self, state: ShareState) -> None:
        self._error = self._error or state.error
        self._left -= 1
        if not self._left:
            self._reply(ShareState(self._error))


def _settings(config: ShareStateConfig) -> CoordinatorSettings:
    return CoordinatorSettings(
        compression=config.state_topic_compression_codec,
        batch_bytes_max=config.batch_bytes_max,
        pending_bytes_max=_NO_LIMIT,
        load_buffer_size=config.load_buffer_size,
        last_counts=False,  # a record says what changed since the one before it
        loads_max=config.loads_max,
        told_units=TOLD_UNITS,
        append_errors=APPEND_ERRORS,
    )
