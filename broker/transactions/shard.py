"""The transactional ids of one partition of `__transaction_state`, for one tenure of its log.

Carries out what the state machines want (types): records are written, answers leave, behind the
barrier if they are from memory alone, markers are sent, time is watched. A record that the log
refuses leaves memory ahead of it: then everything here is forgotten and loaded anew, once what is
on its way is settled; until then requests are told COORDINATOR_LOAD_IN_PROGRESS.

A client of version 2 that begins its next transaction while the last one still ends would be told
CONCURRENT_TRANSACTIONS. It waits here instead, for at most
`add.partitions.to.txn.retry.backoff.max.ms`, and its time is that of the markers, not of a poll.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from broker.coordinator.partition import CoordinatorPartition, PartitionState
from broker.transactions import txn_core
from broker.transactions.markers import MarkerJob, pause_ms
from broker.transactions.records import parse_record, txn_record, txn_tombstone
from broker.transactions.types import (
    AT_REST,
    AddInput,
    Answer,
    Append,
    ArmTimer,
    Completed,
    Effect,
    Forget,
    MarkerPace,
    NeedProducerId,
    SendMarkers,
    Transaction,
    TxnResult,
)
from runtime.logs import kv
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from broker.coordinator.timers import CoordinatorTimers
    from broker.coordinator.units import KeyValue
    from broker.transactions.markers import MarkerSender, Results
    from broker.transactions.types import Continuation, Markers, TxnSnapshot
    from runtime.turn import Turn

logger = logging.getLogger(__name__)

Reply = Callable[[TxnResult], None]
#: With a fresh producer id, or None if there is none to be had now.
WithId = Callable[["int | None"], None]

#: Who was refused as one that was deposed, and was not, tries again after that time.
DOUBTED_MS = 1_000
#: A transaction that took too long is looked at again after that time, if it needs a producer id
#: that cannot be had now.
NO_ID_MS = 1_000
#: Requests that wait for the end of one transaction; more are told CONCURRENT_TRANSACTIONS.
WAITING_MAX = 100
#: Of what was loaded, what begins in one turn of the loop: 2 ms. An id costs 1, and one that does
#: something PARTITION_UNITS more, and as much again for each partition.
START_UNITS = 3_000
PARTITION_UNITS = 20
#: A record of a transaction of so many partitions costs a unit of the turn, by their logarithm.
PARTITIONS_PER_UNIT_BITS = 3


class Owner(Protocol):
    """What a shard needs of the coordinator."""

    @property
    def timers(self) -> CoordinatorTimers: ...
    @property
    def turn(self) -> Turn: ...
    @property
    def markers(self) -> MarkerSender: ...
    @property
    def server_version(self) -> int:
        """Of transactions, as all brokers have it now."""

    @property
    def wait_ms(self) -> int:
        """How long a request waits for a transaction's end."""

    def want_id(self, call: WithId, /) -> None:
        """Calls it with a fresh producer id, later."""

    def reload(self, shard: TxnShard, /) -> None:
        """Ends the tenure in memory, and begins it anew with what the log has."""


class TxnEntry:
    """One transactional id."""

    __slots__ = ("shard", "timer_at_ms", "txn")

    def __init__(self, shard: TxnShard, txn: Transaction) -> None:
        self.shard = shard
        self.txn = txn
        self.timer_at_ms: int | None = None

    def on_timer(self, now_ms: int) -> None:
        self.shard.tick(self, None)


class WaitingAdd:
    """Partitions that are added once the transaction before has ended."""

    __slots__ = ("_entry", "reply", "request", "timer_at_ms")

    def __init__(self, entry: TxnEntry, request: AddInput, reply: Reply) -> None:
        self._entry = entry
        self.request = request
        self.reply = reply
        self.timer_at_ms: int | None = None

    def on_timer(self, now_ms: int) -> None:
        self._entry.shard.give_up(self._entry, self)
        self.reply(TxnResult(ErrorCode.CONCURRENT_TRANSACTIONS))


class TxnShard:
    """Owner of its transactional ids; a Shard of broker/coordinator."""

    __slots__ = ("_owner", "_waiting", "completions_refused", "coordinator_epoch", "entries",
                 "is_forgetting", "partition")  # fmt: skip

    def __init__(self, partition: CoordinatorPartition[TxnShard], owner: Owner) -> None:
        self.partition = partition
        self.entries: dict[str, TxnEntry] = {}
        #: Memory is ahead of the log; it will be loaded anew.
        self.is_forgetting = False
        #: Transactions that are complete, which the log did not take: since then it is forgotten.
        self.completions_refused = 0
        #: The leader epoch of this tenure: markers of an older one are refused.
        self.coordinator_epoch = -1
        self._owner = owner
        #: Who waits for the end of which.
        self._waiting: dict[TxnEntry, list[WaitingAdd]] = {}

    # --- what happens to an id

    def carry_out(
        self,
        entry: TxnEntry,
        effects: Iterable[Effect],
        attempt: int = 0,
        *,
        lacks_leader: bool = False,
    ) -> None:
        """Does what the state machine wants, in its order. `attempt` and `lacks_leader`: of markers
        that are sent again."""
        for effect in effects:
            match effect:
                case Answer(token, result, needs_barrier):
                    assert callable(token)
                    if needs_barrier:
                        self.answer_behind_barrier(entry, token, result)
                    else:
                        token(result)
                case Append() if self.is_forgetting:
                    # A Complete*, of an id that will be loaded as it was before.
                    self.completions_refused += 1
                case Append(snapshot, then):
                    done = partial(self._stored, entry, then)
                    self.partition.write([self._record_of(snapshot)], done)
                case SendMarkers(markers):
                    self._send(entry, markers, attempt, lacks_leader)
                case ArmTimer(at_ms):
                    self._owner.timers.arm(entry, at_ms)
                case Forget():
                    self.forget_all()
                case NeedProducerId():
                    raise AssertionError("who calls sees to it")

    def answer_behind_barrier(self, entry: TxnEntry | str, reply: Reply, result: TxnResult) -> None:
        """From memory alone, so only if this broker still owns the log, and the log took all that
        the answer rests on: what it refused of that is told before. `entry`: of an id that is not
        there, its name."""

        def record() -> KeyValue:
            if isinstance(entry, str):
                return txn_tombstone(entry)
            return self._record_of(entry.txn.snapshot())

        def done(error: ErrorCode) -> None:
            if not error and self.is_forgetting:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            reply(TxnResult(error) if error else result)

        self.partition.barrier(record, done)

    def add(self, entry: TxnEntry, request: AddInput, reply: Reply, *, may_wait: bool) -> None:
        """Partitions enter the transaction, now or once the one before has ended."""
        if may_wait and entry.txn.is_ending and len(self._waiting.get(entry, ())) < WAITING_MAX:
            waiting = WaitingAdd(entry, request, reply)
            self._waiting.setdefault(entry, []).append(waiting)
            timers = self._owner.timers
            timers.arm(waiting, timers.now_ms() + self._owner.wait_ms)
            return
        now_ms = self._owner.timers.now_ms()
        self.carry_out(entry, txn_core.add_partitions(entry.txn, reply, request, now_ms))

    def give_up(self, entry: TxnEntry, waiting: WaitingAdd) -> None:
        """It has waited for long enough."""
        every = self._waiting[entry]
        every.remove(waiting)
        if not every:
            del self._waiting[entry]

    def tick(self, entry: TxnEntry, fresh_id: int | None) -> None:
        """Its time may be up."""
        if not self.is_active or self.entries.get(entry.txn.transactional_id) is not entry:
            return
        now_ms = self._owner.timers.now_ms()
        version = self._owner.server_version
        effects = txn_core.tick(entry.txn, now_ms, server_version=version, fresh_id=fresh_id)
        if effects != [NeedProducerId()]:
            self.carry_out(entry, effects)
            return

        def with_id(fresh_id: int | None) -> None:
            if fresh_id is not None:
                self.tick(entry, fresh_id)
            elif self.is_active:
                self._owner.timers.arm(entry, self._owner.timers.now_ms() + NO_ID_MS)

        self._owner.want_id(with_id)

    def expire(self, names: Sequence[str]) -> None:
        """Forgets ids that nobody has used for long: at once in memory, as what comes next under
        the name lies behind the tombstone in the log."""
        for name in names:
            self._owner.timers.cancel(self.entries.pop(name))

        def done(error: ErrorCode) -> None:
            if error:
                self.forget_all()

        self.partition.write_in_units([txn_tombstone(name) for name in names], _ignore, done)

    @property
    def is_active(self) -> bool:
        return self.partition.state is PartitionState.ACTIVE and not self.is_forgetting

    def forget_all(self) -> None:
        """The log lacks something that memory has. What is on its way is waited for: it may yet be
        stored, and a load that does not see it would be behind the log."""
        if self.is_active:
            self.is_forgetting = True
            logger.warning("loaded_anew", kv(partition=self.partition.index))
            self._tell_all_waiting(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.partition.after_pending(partial(self._owner.reload, self))

    # --- inside

    def _record_of(self, snapshot: TxnSnapshot) -> KeyValue:
        """It has all partitions of the transaction, which may be very many."""
        self._owner.turn.spent_units += len(snapshot.partitions) >> PARTITIONS_PER_UNIT_BITS
        return txn_record(snapshot)

    def _stored(self, entry: TxnEntry, then: Continuation, error: ErrorCode) -> None:
        now_ms = self._owner.timers.now_ms()
        if error and isinstance(then, Completed):
            self.completions_refused += 1
        self.carry_out(entry, txn_core.stored(entry.txn, then, error, now_ms))
        self._wake(entry)

    def _send(self, entry: TxnEntry, markers: Markers, attempt: int, lacks_leader: bool) -> None:
        marked = partial(self._marked, entry, markers.round_id, attempt + 1)
        job = MarkerJob(
            markers,
            self.coordinator_epoch,
            marked,
            partial(self._is_wanted, entry, markers.round_id),
            lacks_leader,
        )
        sender = self._owner.markers
        if markers.pace is MarkerPace.FIRST:
            sender.send(job)
        elif markers.pace is MarkerPace.AGAIN:
            sender.send(job, pause_ms=pause_ms(attempt - 1))
        else:
            told = kv(transactional_id=entry.txn.transactional_id, partition=self.partition.index)
            logger.warning("marker_refused", told)

            def looked(error: ErrorCode) -> None:
                """If the log is somebody else's, the tenure is over by now."""
                if not error:
                    job.done = partial(marked, is_owner=True)
                sender.send(job, pause_ms=DOUBTED_MS)

            self.partition.barrier(lambda: self._record_of(entry.txn.snapshot()), looked)

    def _is_wanted(self, entry: TxnEntry, round_id: int) -> bool:
        return self.is_active and entry.txn.is_ending and entry.txn.round_id == round_id

    def _marked(
        self,
        entry: TxnEntry,
        round_id: int,
        attempt: int,
        results: Results,
        *,
        is_owner: bool = False,
    ) -> None:
        if self.is_active:
            now_ms = self._owner.timers.now_ms()
            if is_owner and ErrorCode.INVALID_PRODUCER_EPOCH in results.values():
                name = entry.txn.transactional_id
                logger.warning("epoch_used_by_another_producer", kv(transactional_id=name))
            effects = txn_core.marked(entry.txn, round_id, results, now_ms, is_owner=is_owner)
            lacks_leader = ErrorCode.LEADER_NOT_AVAILABLE in results.values()
            self.carry_out(entry, effects, attempt, lacks_leader=lacks_leader)
            self._wake(entry)

    def _wake(self, entry: TxnEntry) -> None:
        if entry in self._waiting and not entry.txn.is_ending and self.is_active:
            for each in self._waiting.pop(entry):
                self._owner.timers.cancel(each)
                self.add(entry, each.request, each.reply, may_wait=False)

    def _tell_all_waiting(self, error: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in chain.from_iterable(waiting.values()):
            self._owner.timers.cancel(each)
            each.reply(TxnResult(error))

    # --- the tenure

    def apply(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        """A record of the log, when it is loaded. Nobody writes them in transactions: what a
        foreign tool wrote that way is passed over."""
        stored = parse_record(key, value) if producer_id == NO_PRODUCER_ID else None
        if stored is None:
            return
        name = stored.transactional_id
        if stored.snapshot is None:
            self.entries.pop(name, None)
            return
        self.entries[name] = TxnEntry(self, Transaction.restore(stored.snapshot))

    def end_transaction(self, producer_id: int, *, committed: bool) -> Iterator[None]:
        """Of what `apply` passed over."""
        return iter(())

    def loaded(self) -> None:
        """What was decided is told again, what is open has its time."""
        self.coordinator_epoch = self.partition.leader_epoch
        self._start_some(iter([*self.entries.values()]))

    def _start_some(self, entries: Iterator[TxnEntry]) -> None:
        """There may be very many: some in this turn, the others in later ones. Requests for these
        are served meanwhile, and may have ended a transaction, or the id, by then."""
        now_ms = self._owner.timers.now_ms()
        left = START_UNITS
        for entry in entries:
            left -= 1
            if entry.txn.state not in AT_REST:
                left -= PARTITION_UNITS * (1 + len(entry.txn.partitions))
                self.carry_out(entry, txn_core.start(entry.txn, now_ms))
            if not self.is_active:
                return
            if left < 0:
                self._owner.turn.later(partial(self._start_some, entries))
                return

    def closed(self) -> None:
        """Who waits is told to find the coordinator again. Timers are left to themselves: a tick
        of a tenure that is over does nothing."""
        self._tell_all_waiting(ErrorCode.NOT_COORDINATOR)

    def statistics(self) -> dict[str, int]:
        return {"transactional_ids": len(self.entries)}


def _ignore(which: slice, offset: int) -> None:
    """Nobody waits for so many of them."""
