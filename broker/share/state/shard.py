"""The share partitions of one partition of `__share_group_state`, for one tenure of its log.

What a request changes is in memory at once, and is answered when its record is acknowledged. Later
records build upon it. So when the log refuses one, all behind it is answered with an error, too,
although some of it may be stored: every request may be repeated. Then everything here is forgotten
and loaded anew, once what is on its way is settled; until then requests are told
COORDINATOR_LOAD_IN_PROGRESS.

What changes nothing is answered behind a barrier (broker/coordinator/partition.py): a coordinator
that was replaced would tell a leader what was stored before others acknowledged more.

Who waits for longer than `share.coordinator.write.timeout.ms` is told COORDINATOR_NOT_AVAILABLE;
what he wrote may be stored nevertheless.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.coordinator.partition import CoordinatorPartition, PartitionState
from broker.share.ports import ShareState
from broker.share.state import share_state_core
from broker.share.state.pruning_core import Redundancy
from broker.share.state.records import encoded, parse_record
from broker.share.state.share_state_core import KeyState, Tombstone
from runtime.logs import kv
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.coordinator.timers import CoordinatorTimers
    from broker.share.ports import ShareKey
    from broker.share.state.config import ShareStateConfig
    from broker.share.state.share_state_core import Outcome, StateRecord, Write

    Reply = Callable[[ShareState], None]

logger = logging.getLogger(__name__)

#: What leaders and coordinators of groups are told if a record could not be stored (Kafka's
#: ShareCoordinatorService); others pass as they are.
APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
#: Of those that wait for too long, so many are told in one turn of the loop.
TOLD_PER_TURN = 500


class Owner(Protocol):
    """What a shard needs of the coordinator."""

    @property
    def timers(self) -> CoordinatorTimers: ...
    @property
    def config(self) -> ShareStateConfig: ...

    def reload(self, shard: StateShard, /) -> None:
        """Ends the tenure in memory, and begins it anew with what the log has."""


class _Waiting:
    """Who waits for an acknowledgement. He is answered once, by whatever comes first."""

    __slots__ = ("deadline_ms", "reply")

    def __init__(self, reply: Reply, deadline_ms: int) -> None:
        self.reply: Reply | None = reply
        self.deadline_ms = deadline_ms

    def answer(self, state: ShareState) -> None:
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(state)


class StateShard:
    """Owner of its keys' state; a Shard of broker/coordinator."""

    def __init__(self, partition: CoordinatorPartition[StateShard], owner: Owner) -> None:
        self.partition = partition
        self.states: dict[ShareKey, KeyState] = {}
        #: Of what is durable.
        self.redundancy = Redundancy()
        #: Memory is ahead of the log; it will be loaded anew.
        self.is_forgetting = False
        self.timer_at_ms: int | None = None
        self._owner = owner
        #: In the order of their deadlines; those in front may have been answered.
        self._waiting: deque[_Waiting] = deque()

    # --- requests: each is answered once, possibly before the call returns

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, reply: Reply) -> None:
        state, now_ms = self.states.get(key), self._owner.timers.wall_ms()
        self._carry_out(
            key, share_state_core.initialize(state, state_epoch, start_offset, now_ms), reply
        )

    def write(self, key: ShareKey, request: Write, reply: Reply) -> None:
        state, now_ms = self.states.get(key), self._owner.timers.wall_ms()
        limit = self._owner.config.snapshot_update_records_per_snapshot
        self._carry_out(key, share_state_core.write(state, request, limit, now_ms), reply)

    def read(self, key: ShareKey, leader_epoch: int, reply: Reply) -> None:
        """Told is what is stored when it is answered, and all that is on its way before it."""
        state, now_ms = self.states.get(key), self._owner.timers.wall_ms()
        limit = self._owner.config.snapshot_update_records_per_snapshot
        outcome = share_state_core.read(state, leader_epoch, limit, now_ms)
        self._carry_out(key, outcome, reply, told=self._told(outcome.state or state, outcome))

    def read_summary(self, key: ShareKey, reply: Reply) -> None:
        """Of a key that is not there as of one to which nothing was delivered yet."""
        told = ShareState(ErrorCode.NONE)
        state = self.states.get(key)
        if state is not None:
            told = self._told(state, share_state_core.NOTHING)._replace(batches=())
        self._carry_out(key, share_state_core.NOTHING, reply, told=told)

    def delete(self, key: ShareKey, reply: Reply) -> None:
        self._carry_out(key, share_state_core.delete(self.states.get(key)), reply)

    # --- what is not asked for

    def rewrite(self, key: ShareKey) -> bool:
        """Its state in a new snapshot, if the last one is old: all of the log behind that must be
        kept. Whether it was."""
        state, now_ms = self.states.get(key), self._owner.timers.wall_ms()
        interval_ms = self._owner.config.cold_partition_snapshot_interval_ms
        # A clock that was set back does not make it young.
        if state is None or now_ms - interval_ms < state.write_ms <= now_ms:
            return False
        fresh = share_state_core.rewritten(state, now_ms)
        self._store(key, fresh, fresh, self._done)
        return True

    @property
    def is_active(self) -> bool:
        return self.partition.state is PartitionState.ACTIVE and not self.is_forgetting

    @property
    def is_full(self) -> bool:
        """So much waits to be stored that nothing more is taken."""
        return self.partition.pending_bytes > self._owner.config.pending_bytes_max

    # --- inside

    @staticmethod
    def _told(state: KeyState | None, outcome: Outcome) -> ShareState:
        if outcome.error or state is None:
            return ShareState(outcome.error)
        return ShareState(
            ErrorCode.NONE,
            state.state_epoch,
            state.start_offset,
            state.delivery_complete_count,
            state.batches,
            max(state.leader_epoch, 0),
        )

    def _carry_out(
        self, key: ShareKey, outcome: Outcome, reply: Reply, told: ShareState | None = None
    ) -> None:
        if told is None:
            told = ShareState(outcome.error)
        if not self.is_active:
            reply(ShareState(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        if self.is_full:
            reply(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        waiting = self._wait(reply)
        acknowledged = partial(self._acknowledged, waiting, told)
        if outcome.record is None:
            self.partition.barrier(
                lambda: encoded(key, share_state_core.mark(self.states.get(key))), acknowledged
            )
        else:
            self._store(key, outcome.record, outcome.state, acknowledged)

    def _store(
        self,
        key: ShareKey,
        record: StateRecord,
        after: KeyState | None,
        done: Callable[[ErrorCode], None],
    ) -> None:
        if after is None:
            self.states.pop(key, None)
        else:
            self.states[key] = after
        stored = partial(self._stored, key, record)
        self.partition.write_in_units([encoded(key, record)], stored, done)

    def _stored(self, key: ShareKey, record: StateRecord, _which: slice, offset: int) -> None:
        self._note(key, record, offset)

    def _note(self, key: ShareKey, record: StateRecord, offset: int) -> None:
        """It is durable."""
        if isinstance(record, KeyState):
            self.redundancy.snapshot(key, offset)
        elif isinstance(record, Tombstone):
            self.redundancy.tombstone(key, offset)
        else:
            self.redundancy.passed(offset)

    def _acknowledged(self, waiting: _Waiting, told: ShareState, error: ErrorCode) -> None:
        if error:
            told = ShareState(error)
        elif self.is_forgetting:
            # It may build upon what is not stored.
            told = ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        waiting.answer(told)
        self._done(error)

    def _done(self, error: ErrorCode) -> None:
        if error and self.is_active:
            self.is_forgetting = True
            logger.warning("loaded_anew", kv(partition=self.partition.index, error=error.name))
            self.partition.after_pending(partial(self._owner.reload, self))

    # --- who waits

    def _wait(self, reply: Reply) -> _Waiting:
        timers, waiting = self._owner.timers, self._waiting
        while waiting and waiting[0].reply is None:
            waiting.popleft()
        deadline_ms = timers.now_ms() + self._owner.config.write_timeout_ms
        one = _Waiting(reply, deadline_ms)
        waiting.append(one)
        if self.timer_at_ms is None:
            timers.arm(self, deadline_ms)
        return one

    def on_timer(self, now_ms: int) -> None:
        told = 0
        while self._waiting:
            first = self._waiting[0]
            if first.reply is not None:
                if first.deadline_ms > now_ms or told == TOLD_PER_TURN:
                    self._owner.timers.arm(self, max(first.deadline_ms, now_ms + 1))
                    return
                told += 1
            self._waiting.popleft().answer(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    # --- the tenure

    def apply(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        """A record of the log, when it is loaded. Nobody writes them in transactions: what a
        foreign tool wrote that way is passed over."""
        stored = parse_record(key, value) if producer_id == NO_PRODUCER_ID else None
        if stored is None:
            self.redundancy.passed(offset)
            return
        of, record = stored
        after = share_state_core.apply(self.states.get(of), record)
        if after is None:
            self.states.pop(of, None)
        else:
            self.states[of] = after
        self._note(of, record, offset)

    def end_transaction(self, producer_id: int, *, committed: bool) -> Iterator[None]:
        """Of what `apply` passed over."""
        return iter(())

    def loaded(self) -> None:
        """Nothing waits for it."""

    def closed(self) -> None:
        """Who waits is told to find the coordinator again, though what he wrote may be stored."""
        self._owner.timers.cancel(self)
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.answer(ShareState(ErrorCode.NOT_COORDINATOR))

    def statistics(self) -> dict[str, int]:
        return {"share_partitions": len(self.states)}
