"""TransactionCoordinator: the transactional ids whose `__transaction_state` partition this broker
leads.

An id belongs to the partition that it hashes to. Who leads which partition, loading it and writing
to it is broker/coordinator's part; what an id does is txn_core's contract; markers leave by
markers. Here is what requests do with an id.

Requests are plain calls on the loop's thread: what can be answered at once is answered before the
call returns; the rest by the callback that the call is given, exactly once.

Owner of all ids' state. Tasks: the coordinator's, one for producer ids, one for expiry, and the
markers' one.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import trio

from broker.cluster.topic import TRANSACTION_TOPIC
from broker.coordinator.coordinator import Coordinator
from broker.coordinator.settings import CoordinatorSettings
from broker.coordinator.topic import CoordinatorTopic
from broker.transactions import txn_core
from broker.transactions.errors import APPEND_ERRORS
from broker.transactions.markers import MarkerSender
from broker.transactions.shard import TxnEntry, TxnShard
from broker.transactions.types import (
    AddInput,
    EndInput,
    InitInput,
    NeedProducerId,
    Transaction,
    TxnResult,
)
from metadata.store import MetadataError
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode
from wire.kafka.records.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from broker.coordinator.partition import CoordinatorPartition
    from broker.transactions.config import TransactionConfig
    from broker.transactions.ports import Neighbours, OtherBrokers
    from broker.transactions.shard import Reply, WithId
    from broker.transactions.types import Effect
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: Ids that are looked at before others have the loop, and that are forgotten at once.
IDS_PER_TURN = 1_000
#: What is refused for lack of room is a request, before anything is done; never the record of
#: something that was.
_NO_LIMIT = 1 << 62
RELOAD_MS = 1_000
#: What a stored record of an id costs the turn: an answer, a batch that no longer waits, markers.
TOLD_UNITS = 40
#: Of those who wait for a producer id: some 20 to 40 us each, with the record that it goes to.
WANTED_PER_TURN = 50


class _Reload:
    """A shard that waits to be loaded anew."""

    __slots__ = ("_reload", "_shard", "timer_at_ms")

    def __init__(self, reload: Callable[[TxnShard], None], shard: TxnShard) -> None:
        self._reload = reload
        self._shard = shard
        self.timer_at_ms: int | None = None

    def on_timer(self, now_ms: int) -> None:
        self._reload(self._shard)


class TransactionCoordinator:
    """`run` it once; constructors start nothing."""

    def __init__(
        self,
        env: Env,
        config: TransactionConfig,
        topic_configs: Mapping[str, str],
        neighbours: Neighbours,
        brokers: OtherBrokers,
        server_version: Callable[[], int],
    ) -> None:
        """`server_version()`: of transactions, as all brokers have it now."""
        self.env = env
        self.config = config
        self.topic = CoordinatorTopic(
            neighbours.topics,
            TRANSACTION_TOPIC,
            config.transaction_state_log_num_partitions,
            topic_configs,
        )
        self.base = Coordinator[TxnShard](
            env, _settings(config), self.topic, neighbours.logs, self._new_shard
        )
        self.timers = self.base.timers
        self.load_times = self.base.load_times
        self.turn = env.turn
        self.markers = MarkerSender(
            env.turn, self.timers, neighbours.topics, neighbours.own, brokers
        )
        self.wait_ms = config.add_partitions_to_txn_retry_backoff_max_ms
        self._ids = neighbours.ids
        self._server_version = server_version
        self._wanted: deque[WithId] = deque()
        self._has_wanted = trio.Event()
        #: By partition: not before that time again.
        self._reload_at_ms: dict[int, int] = {}

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Cancelled: everybody who waits is told NOT_COORDINATOR."""
        try:
            await self.base.run(
                self._expire_for_ever,
                self._fetch_ids_for_ever,
                self.markers.run,
                task_status=task_status,
            )
        finally:
            while self._wanted:
                self._wanted.popleft()(None)

    async def ensure_ready(self, transactional_id: str) -> None:
        """Creates `__transaction_state` if it is not there, and waits until the id's partition is
        loaded, if it is ours. KafkaError: the topic cannot be created."""
        await self.base.ensure_ready(transactional_id)

    def statistics(self) -> dict[str, int]:
        ids = sum(len(shard.entries) for shard in self.base.shards())
        refused = sum(shard.completions_refused for shard in self.base.shards())
        return {
            **self.base.statistics(),
            **self.markers.statistics(),
            "transactional_ids": ids,
            "completions_refused": refused,
        }

    # --- requests

    def init_producer_id(self, transactional_id: str, request: InitInput, reply: Reply) -> None:
        """InitProducerId of a transactional id."""
        if not transactional_id or (request.producer_id < 0) != (request.epoch < 0):
            reply(TxnResult(ErrorCode.INVALID_REQUEST))
        elif not 0 < request.timeout_ms <= self.config.transaction_max_timeout_ms:
            reply(TxnResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        else:
            self._init(transactional_id, request, reply, None)

    def _init(
        self, transactional_id: str, request: InitInput, reply: Reply, fresh_id: int | None
    ) -> None:
        shard, error = self._find(transactional_id)
        if shard is None:
            reply(TxnResult(error))
            return
        entry = shard.entries.get(transactional_id)
        if entry is None:
            entry = TxnEntry(shard, Transaction(transactional_id))
        effects = txn_core.init_producer_id(
            entry.txn,
            reply,
            request,
            self.timers.now_ms(),
            server_version=self.server_version,
            fresh_id=fresh_id,
        )

        def again(fresh_id: int | None) -> None:
            self._again(
                reply, fresh_id, lambda: self._init(transactional_id, request, reply, fresh_id)
            )

        if effects == [NeedProducerId()]:
            self.want_id(again)
            return
        assert not entry.txn.is_new, "an id that is new is given an epoch"
        shard.entries[transactional_id] = entry
        shard.carry_out(entry, effects)

    def add_partitions(
        self, transactional_id: str, request: AddInput, reply: Reply, *, may_wait: bool = False
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn. `may_wait`: a moment, for the end of the transaction
        before, rather than be told CONCURRENT_TRANSACTIONS at once."""
        shard, entry = self._find_entry(transactional_id, reply)
        if shard is not None and entry is not None:
            shard.add(entry, request, reply, may_wait=may_wait)

    def verify(self, transactional_id: str, request: AddInput, reply: Reply) -> None:
        """Whether partitions are in the producer's transaction."""
        shard, entry = self._find_entry(transactional_id, reply)
        if shard is not None and entry is not None:
            shard.carry_out(entry, txn_core.verify(entry.txn, reply, request))

    def end(self, transactional_id: str, request: EndInput, reply: Reply) -> None:
        """EndTxn."""
        self._end(transactional_id, request, reply, None)

    def _end(
        self, transactional_id: str, request: EndInput, reply: Reply, fresh_id: int | None
    ) -> None:
        shard, entry = self._find_entry(transactional_id, reply)
        if shard is None or entry is None:
            return
        effects: list[Effect] = txn_core.end(
            entry.txn, reply, request, self.timers.now_ms(), fresh_id=fresh_id
        )

        def again(fresh_id: int | None) -> None:
            self._again(
                reply, fresh_id, lambda: self._end(transactional_id, request, reply, fresh_id)
            )

        if effects == [NeedProducerId()]:
            self.want_id(again)
        else:
            shard.carry_out(entry, effects)

    # --- administration

    def describe(self, transactional_id: str) -> tuple[ErrorCode, Transaction | None]:
        """DescribeTransactions of one id, as memory has it."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST, None
        shard, error = self._find(transactional_id)
        if shard is None:
            return error, None
        entry = shard.entries.get(transactional_id)
        if entry is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None
        return ErrorCode.NONE, entry.txn

    def list_transactions(self) -> tuple[ErrorCode, Iterator[Transaction]]:
        """Every id of this broker, perhaps very many; an error while some are being loaded."""
        if not self.base.is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, iter(())
        if self.base.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, iter(())
        return ErrorCode.NONE, self._every()

    def _every(self) -> Iterator[Transaction]:
        """In as many turns as the caller likes: those that are forgotten meanwhile may be told."""
        for shard in self.base.shards():
            for entry in list(shard.entries.values()):
                yield entry.txn

    async def expire(self) -> None:
        """Writes tombstones for ids that nobody has used for `transactional.id.expiration.ms`."""
        slices = Slices(IDS_PER_TURN)
        for shard in self.base.shards():
            names = list(shard.entries)
            for start in range(0, len(names), IDS_PER_TURN):
                some = names[start : start + IDS_PER_TURN]
                if slices.due(len(some)):
                    await slices.turn()
                if shard.is_active:
                    self._expire_some(shard, some)

    def _expire_some(self, shard: TxnShard, names: list[str]) -> None:
        now_ms, after_ms = self.timers.now_ms(), self.config.transactional_id_expiration_ms
        expired = []
        for name in names:
            entry = shard.entries.get(name)
            if entry is not None and txn_core.is_expired(entry.txn, now_ms, after_ms):
                expired.append(name)
        if expired:
            shard.expire(expired)

    # --- for shards

    @property
    def server_version(self) -> int:
        return self._server_version()

    def want_id(self, call: WithId) -> None:
        """Calls it with a fresh producer id, or with None if there is none to be had now."""
        self._wanted.append(call)
        self._has_wanted.set()

    def reload(self, shard: TxnShard) -> None:
        """Ends the tenure in memory, and begins it anew with what the log has: at once, but the
        same partition once a second only, as a log that has no bookies refuses all that comes."""
        now_ms = self.timers.now_ms()
        at_ms = max(now_ms, self._reload_at_ms.get(shard.partition.index, now_ms))
        self._reload_at_ms[shard.partition.index] = at_ms + RELOAD_MS
        if at_ms == now_ms:
            self._reload(shard)
        else:
            self.timers.arm(_Reload(self._reload, shard), at_ms)

    def _reload(self, shard: TxnShard) -> None:
        shard.partition.close()
        if self.base.is_running:
            self.base.gained(shard.partition.index)

    # --- inside

    def _new_shard(self, partition: CoordinatorPartition[TxnShard]) -> TxnShard:
        return TxnShard(partition, self)

    def _find(self, transactional_id: str) -> tuple[TxnShard | None, ErrorCode]:
        shard, error = self.base.find(transactional_id)
        if shard is None:
            return None, error
        if shard.is_forgetting:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if shard.partition.pending_bytes > self.config.pending_bytes_max:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        return shard, ErrorCode.NONE

    def _find_entry(
        self, transactional_id: str, reply: Reply
    ) -> tuple[TxnShard | None, TxnEntry | None]:
        """Of an id that somebody uses. None: it was answered."""
        if not transactional_id:
            reply(TxnResult(ErrorCode.INVALID_REQUEST))
            return None, None
        shard, error = self._find(transactional_id)
        if shard is None:
            reply(TxnResult(error))
            return None, None
        entry = shard.entries.get(transactional_id)
        if entry is None:
            unknown = TxnResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            shard.answer_behind_barrier(transactional_id, reply, unknown)
        return shard, entry

    def _again(self, reply: Reply, fresh_id: int | None, call: Callable[[], None]) -> None:
        if fresh_id is None:
            reply(TxnResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            call()

    async def _fetch_ids_for_ever(self) -> None:
        """Some in a turn: most ids are at hand, and whoever has his goes on at once."""
        slices = Slices(WANTED_PER_TURN)
        while True:
            if slices.due():
                await slices.turn()
            while not self._wanted:
                self._has_wanted = trio.Event()
                await self._has_wanted.wait()
            fresh_id: int | None = None
            try:
                fresh_id = await self._ids.take()
            except MetadataError as error:
                logger.warning("producer_id_unavailable", kv(error=error))
            self._wanted.popleft()(fresh_id)

    async def _expire_for_ever(self) -> None:
        interval_ms = self.config.transaction_remove_expired_transaction_cleanup_interval_ms
        while True:
            await trio.sleep(interval_ms / 1000)
            await self.expire()


def _settings(config: TransactionConfig) -> CoordinatorSettings:
    return CoordinatorSettings(
        compression=Compression.NONE,
        batch_bytes_max=config.batch_bytes_max,
        pending_bytes_max=_NO_LIMIT,
        load_buffer_size=config.transaction_state_log_load_buffer_size,
        last_counts=True,
        loads_max=config.loads_max,
        told_units=TOLD_UNITS,
        append_errors=APPEND_ERRORS,
    )
