"""Coordinator: the partitions of an internal topic that this broker leads, each with its shard.

A key belongs to the partition that it hashes to; who leads the partition coordinates the key. From
the moment that this broker begins to hold the partition requests are answered
COORDINATOR_LOAD_IN_PROGRESS; once its log is online it is loaded; when the log goes offline,
because it was handed over or lost, all is forgotten and everybody who waits is told
NOT_COORDINATOR, as is everybody who asks from then on.

A load that failed although the log is still here, or an append after which memory cannot be
trusted, is followed by another load: when somebody asks, and after RELOAD_MS if nobody does. What
is due at some time (a transaction that takes too long, a marker that was decided on) would else
wait for a client that never comes.

Owner of all partitions and of their timers. Tasks: one for timers, `loads_max` that load, and those
that `run` is given. What groups, transactions or share groups are is their rooms' business: they
have a Coordinator and give it shards.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic

import trio

from broker.coordinator.load_times import LoadTimes
from broker.coordinator.partition import CoordinatorPartition, PartitionState, S
from broker.coordinator.timers import CoordinatorTimers
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.coordinator.ports import Logs
    from broker.coordinator.settings import CoordinatorSettings
    from broker.coordinator.topic import CoordinatorTopic
    from runtime.env import Env


#: After that time a partition that was closed, and whose log is still here, is loaded anew.
RELOAD_MS = 1_000
#: So long after the end of a tenure who has the partition by then may not be known to all.
MOVES_MS = 10_000


class _Again:
    """A partition that is to be loaded anew."""

    __slots__ = ("_gained", "_index", "timer_at_ms")

    def __init__(self, gained: Callable[[int], object], index: int) -> None:
        self._gained = gained
        self._index = index
        self.timer_at_ms: int | None = None

    def on_timer(self, now_ms: int) -> None:
        self._gained(self._index)


class Coordinator(Generic[S]):
    """`run` it once; constructors start nothing. `new_shard(partition)` is called at the beginning
    of each tenure, when nothing is loaded yet."""

    def __init__(
        self,
        env: Env,
        settings: CoordinatorSettings,
        topic: CoordinatorTopic,
        logs: Logs,
        new_shard: Callable[[CoordinatorPartition[S]], S],
    ) -> None:
        self.topic = topic
        self.timers = CoordinatorTimers(env.clock)
        self.partitions: dict[int, CoordinatorPartition[S]] = {}
        self.is_running = False
        self._env = env
        self._settings = settings
        self._logs = logs
        self._new_shard = new_shard
        # At most one entry per partition of the topic is in the channel.
        self._to_load, self._loads = trio.open_memory_channel[
            tuple[CoordinatorPartition[S], float]
        ](math.inf)
        self.load_times = LoadTimes(env.clock)
        #: By partition, when the last tenure here ended.
        self._left_at_ms: dict[int, int] = {}

    # --- life

    async def run(
        self,
        *tasks: Callable[[], Awaitable[object]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Never returns. `tasks` are the owner's, as long as this runs. Cancelled: everybody who
        waits is told NOT_COORDINATOR."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.timers.run)
                for task in tasks:
                    nursery.start_soon(task)
                for _ in range(self._settings.loads_max):
                    nursery.start_soon(self._load_for_ever)
                self.is_running = True
                self.load_all()
                self._logs.subscribe(self._on_held)
                task_status.started()
        finally:
            self.is_running = False
            for partition in list(self.partitions.values()):
                partition.close()

    def load_all(self) -> None:
        """Starts to load every partition of the topic that is ours and not loaded yet: what is due
        at some time is watched, and what is there is listed, before the first request for it."""
        for index in range(self.topic.partition_count if self.topic.exists else 0):
            self.gained(index)

    def gained(self, index: int) -> CoordinatorPartition[S] | None:
        """Partition `index` may be ours now; loads it if the log manager says so. Idempotent."""
        partition = self.partitions.get(index)
        if partition is not None:
            return partition
        try:
            log = self._logs.get(self.topic.name, index)
        except KafkaError:
            return None
        # Loaded now, a log that is handed over would lack what is acknowledged after that.
        if log.is_closing or log.state.value == "offline":
            return None
        partition = CoordinatorPartition(
            self.topic.name,
            index,
            log,
            self._env,
            self._settings,
            self._new_shard,
            self._on_closed,
        )
        self.partitions[index] = partition
        partition.when_taken_over(self._load_soon)
        return partition

    async def ensure_ready(self, key: str) -> None:
        """Creates the topic if it is not there, and waits until the key's partition is loaded, if
        it is ours. KafkaError: the topic cannot be created."""
        await self.topic.ensure()
        partition = self.gained(self.topic.partition_for(key))
        if partition is not None and self.is_running:
            await partition.settled.wait()

    # --- whose is what

    def find(self, key: str) -> tuple[S | None, ErrorCode]:
        """The loaded shard of a key, or why there is none."""
        if not self.is_running:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self.topic.exists:
            return None, ErrorCode.NOT_COORDINATOR
        return self.find_partition(self.topic.partition_for(key))

    def find_partition(self, index: int) -> tuple[S | None, ErrorCode]:
        """As `find`, by a partition's number."""
        if not self.is_running:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition = self.partitions.get(index)
        if partition is None:
            partition = self.gained(index)
        if partition is None:
            return None, ErrorCode.NOT_COORDINATOR
        if partition.state is PartitionState.ACTIVE:
            return partition.shard, ErrorCode.NONE
        return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def is_moving(self, key: str) -> bool:
        """Whether the key's partition was here until MOVES_MS ago, or all of this ends."""
        if not self.is_running:
            return True
        if not self.topic.exists:
            return False
        left_at_ms = self._left_at_ms.get(self.topic.partition_for(key))
        return left_at_ms is not None and self.timers.now_ms() - left_at_ms < MOVES_MS

    @property
    def is_loading(self) -> bool:
        """Whether some partition is not loaded yet: a list of what there is would lack its part."""
        return any(p.state is PartitionState.LOADING for p in self.partitions.values())

    def shards(self) -> list[S]:
        """Of the partitions that are loaded."""
        return [partition.shard for partition in self._active()]

    def statistics(self) -> dict[str, int]:
        active = self._active()
        return {
            "partitions_active": len(active),
            "partitions_loading": len(self.partitions) - len(active),
            "batches": sum(each.batch_count for each in active),
            "pending_bytes": sum(each.pending_bytes for each in active),
            "timers": len(self.timers),
        }

    # --- inside

    def _active(self) -> list[CoordinatorPartition[S]]:
        return [p for p in self.partitions.values() if p.state is PartitionState.ACTIVE]

    def _on_closed(self, partition: CoordinatorPartition[S]) -> None:
        if self.partitions.get(partition.index) is partition:
            del self.partitions[partition.index]
            self._left_at_ms[partition.index] = self.timers.now_ms()
        if self.is_running and partition.may_be_loaded_again:
            again = _Again(self.gained, partition.index)
            self.timers.arm(again, self.timers.now_ms() + RELOAD_MS)

    def _on_held(self, topic: str, index: int) -> None:
        """The log manager's listener. A tenure that is over is not waited for: its log is offline,
        and the partition was closed when that happened."""
        if topic == self.topic.name and self.is_running:
            self.gained(index)

    def _load_soon(self, partition: CoordinatorPartition[S]) -> None:
        self._to_load.send_nowait((partition, self._env.clock.monotonic()))

    async def _load_for_ever(self) -> None:
        while True:
            partition, since = await self._loads.receive()
            await partition.load()
            if partition.state is PartitionState.ACTIVE:
                self.load_times.loaded(since)
