"""One partition of a coordinator's topic that this broker leads, and what is kept of it in memory.

    LOADING --all records applied--> ACTIVE --log offline--> CLOSED
    LOADING --not taken over, or cannot be read--> CLOSED

What is CLOSED while its log is still ours is loaded anew by the coordinator, which makes another
one.

The log is the truth. What a coordinator keeps of the partition is its *shard* (Kafka's name): the
partition gives it every record of the log while it loads, and writes what it wants to be stored.
Nothing here knows what a record says.

Records of one turn of the loop go into one batch: `write` queues a unit (the records of one
request, never split over two batches), the end of the turn builds the batch, and one ack answers
all of its units in order. What is more than a batch's worth comes in units of its own
(`write_in_units`); each batch adds what it costs to the turn, and a turn that has enough leaves the
other partitions' batches to the next. What a transaction writes and the markers that end it have
batches of their own, in order with the others (units).

What follows an ack is counted, too: a unit that is told lets others do their work (a parked batch
is numbered, an answer is written, markers leave), and a batch has hundreds of units. They are told
in the order in which they were written, as many as the turn has room for; the others in later ones.
Until it is told, a unit counts as on its way. All are told before the partition closes.
"""

from __future__ import annotations

import logging
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

from broker.coordinator.loading import load_records
from broker.coordinator.telling import Telling
from broker.coordinator.units import (
    MARKER_BYTES,
    NOBODY,
    Done,
    KeyValue,
    Marker,
    Producer,
    Stored,
    Unit,
    cost_of,
    cut,
    next_batch,
)
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.coordinator.ports import Appended, Log
    from broker.coordinator.settings import CoordinatorSettings
    from broker.coordinator.telling import Batch
    from broker.log.transactions.origin import Origin
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: What a batch costs a turn (runtime/turn.py): 50 us, 3 us a record, 128 bytes each us.
BATCH_UNITS = 50
RECORD_UNITS = 3
BYTES_PER_UNIT_BITS = 7

#: An append that ends so was the tenure's last.
_TENURE_OVER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)


class PartitionState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class Shard(Protocol):
    """What a coordinator keeps in memory of one partition, for one tenure of its log."""

    def apply(self, key: bytes, value: bytes | None, offset: int, producer_id: int, /) -> None:
        """A record of the log, when it is loaded; no value: a tombstone. `producer_id`: of whose
        transaction it is part, which counts once that is committed; NO_PRODUCER_ID: of none.
        WireError: it cannot be read, so the partition is closed."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> Iterator[None]:
        """A marker of the log, when it is loaded. Yields wherever others may have the loop."""

    def loaded(self) -> None:
        """Every record of the log was applied: from now on the shard may write."""

    def closed(self) -> None:
        """The tenure is over. Who waits for something that is not being written is told so here;
        writes on their way are answered by their `done`."""

    def statistics(self) -> dict[str, int]:
        """How much it holds, by name."""


S = TypeVar("S", bound=Shard)


class CoordinatorPartition(Generic[S]):
    """Owner of its shard; made by the coordinator for one tenure of the log."""

    def __init__(
        self,
        topic: str,
        index: int,
        log: Log,
        env: Env,
        settings: CoordinatorSettings,
        new_shard: Callable[[CoordinatorPartition[S]], S],
        on_closed: Callable[[CoordinatorPartition[S]], None],
    ) -> None:
        self.index = index
        self.state = PartitionState.LOADING
        self.settled = trio.Event()  # no longer LOADING
        self.pending_bytes = 0
        self.batch_count = 0
        #: The log holds what no coordinator wrote: another look at it would find the same.
        self.is_unreadable = False
        self._told = {"topic": topic, "partition": index}  # in lines of the server's log
        self._log = log
        self._env = env
        self._settings = settings
        self._on_closed = on_closed
        self._queue: list[Unit] = []
        self._begin: Callable[[CoordinatorPartition[S]], None] | None = None
        #: Batches that wait for their acks, or for a turn in which they are told.
        self._sent = Telling(env.turn, settings.told_units, self._free)
        self.shard = new_shard(self)

    # --- writing

    def write(self, records: Sequence[KeyValue], done: Done) -> None:
        """Queues the records of one request; `done(NONE)` once they are durable, `done(error)` as
        clients are told if not: in the order of the calls. What is refused for lack of room, or
        because the partition is not ACTIVE, is told at once, before this returns."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
            return
        size = sum(map(cost_of, records))
        if self._has_room(size):
            self._queue_unit(Unit(records, done, size))
        else:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def write_in_units(
        self,
        records: Sequence[KeyValue],
        stored: Callable[[slice, int], None],
        done: Done,
        producer: Producer = NOBODY,
    ) -> None:
        """As `write`, for as many records as there may be: in units of a batch's size.
        `stored(which, offset)` is called for `records[which]` when these are durable, the first of
        them at that offset, in order: of a large request some may be, and others not. `done` is
        called after the last, the first error stands for all. What there is no room for is refused
        as a whole. `producer`: in whose transaction."""
        units = list(cut(records, self._settings.batch_bytes_max))
        refusal = ErrorCode.NONE
        if self.state is not PartitionState.ACTIVE:
            refusal = ErrorCode.NOT_COORDINATOR
        elif not self._has_room(sum(size for _, size in units)):
            refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if refusal or not units:
            if producer.origin is not None:
                self.give_back(producer.origin)
            done(refusal)
            return
        left = len(units)
        failed = ErrorCode.NONE

        def unit_done(error: ErrorCode) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if not left:
                done(failed)

        for which, size in units:
            unit = Unit(records[which], unit_done, size, partial(stored, which), producer)
            self._queue_unit(unit)

    def write_marker(self, marker: Marker, stored: Stored, done: Done) -> None:
        """Ends a transaction behind all that was written until now. `stored(offset)` once that is
        durable, and then `done(NONE)`; `done(error)`, the log's own, if it is refused."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._has_room(MARKER_BYTES):
            self._queue_unit(Unit([], done, MARKER_BYTES, stored, marker=marker))
        else:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def ask_transaction(self, origin: Origin, producer_id: int, epoch: int, done: Done) -> None:
        """Whether a transaction may write here, as the log's. What is written then has that
        origin, or it is given back."""
        self._log.ask_transaction(origin, producer_id, epoch, done)

    def give_back(self, origin: Origin) -> None:
        self._log.give_back(origin)

    def _has_room(self, size: int) -> bool:
        limit = self._settings.pending_bytes_max
        return not self.pending_bytes or self.pending_bytes + size <= limit

    def _queue_unit(self, unit: Unit) -> None:
        self.pending_bytes += unit.size_bytes
        if not self._queue:
            self._env.turn.defer(self._flush)
        self._queue.append(unit)

    def after_pending(self, function: Callable[[], None]) -> None:
        """Calls `function()` once all that was written until now is acknowledged or has failed;
        at once if nothing waits."""
        mark = Unit([], lambda _error: function(), 0)
        if self._queue:
            self._queue.append(mark)
        elif not self._sent.join(mark):
            function()

    def barrier(self, record: Callable[[], KeyValue], done: Done) -> None:
        """`done(NONE)` once something that is appended after this call is acknowledged: whoever
        hears that owned the log when it asked, and may answer from memory. `done(error)`, as of a
        write, if that is not acknowledged. If nothing else waits to be appended `record()` is,
        which must change nothing: what the log says of its key by then. To make it may be dear, so
        it is asked for then alone."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._queue:
            self._queue.append(Unit([], done, 0))
        else:
            changes_nothing = record()
            self._queue_unit(Unit([changes_nothing], done, cost_of(changes_nothing)))

    @property
    def leader_epoch(self) -> int:
        """Of the tenure; each has a higher one."""
        return self._log.leader_epoch

    def _flush(self) -> None:
        """One batch; the next comes in a turn of its own, unless a transaction parts them."""
        turn = self._env.turn
        while self._queue:
            if turn.is_spent:
                turn.later(self._flush)
                return
            queue = self._queue
            taken, count, size = next_batch(queue, self._settings.batch_bytes_max)
            units, self._queue = queue[:taken], queue[taken:]
            turn.spent_units += BATCH_UNITS + RECORD_UNITS * count + (size >> BYTES_PER_UNIT_BITS)
            is_parted = any(unit.is_alone for unit in [*units, *self._queue[:1]])
            if self._queue and not is_parted:
                turn.later(self._flush)
            self._append(units)
            if not is_parted:
                return

    def _append(self, units: list[Unit]) -> None:
        records = [record for unit in units for record in unit.records]
        unit = next((unit for unit in units if not unit.is_mark), None)
        sent = self._sent.add(units)
        if self.state is not PartitionState.ACTIVE or unit is None:
            self._sent.settle(sent, ErrorCode.NOT_COORDINATOR)
            return
        self.batch_count += 1
        appended = partial(self._appended, sent)
        if unit.marker is not None:
            marker = unit.marker
            self._log.append_marker(
                marker.producer_id, marker.producer_epoch, marker.end, marker.version, appended
            )
            return
        producer = unit.producer
        batch = build_batch(
            [Record(at, 0, key, value) for at, (key, value) in enumerate(records)],
            base_timestamp=self._env.clock.time_ms(),
            compression=self._settings.compression,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            is_transactional=producer is not NOBODY,
        )
        self._log.append_nowait(
            memoryview(bytearray(batch)), appended, internal=True, origin=producer.origin
        )

    def _appended(self, sent: Batch, append: Appended) -> None:
        error = append.error
        if not error:
            self._sent.settle(sent, error, append.base_offset)
            return
        units = sent.units
        logger.warning("append failed", kv(**self._told, requests=len(units), error=error.name))
        is_marker = any(unit.marker is not None for unit in units)
        told = error if is_marker else self._settings.append_errors.get(error, error)
        self._sent.settle(sent, told)
        if error in _TENURE_OVER:
            self.close()

    def _free(self, unit: Unit) -> None:
        self.pending_bytes -= unit.size_bytes

    # --- the log's tenure

    def when_taken_over(self, begin: Callable[[CoordinatorPartition[S]], None]) -> None:
        """`begin(self)` once the log is online; at once if it is. Whenever the log goes offline the
        partition is closed."""
        self._begin = begin
        self._log.watch(self._look_at_log)
        self._look_at_log()

    async def load(self) -> None:
        """Applies every record of the log, then serves. Closes itself if that cannot be done."""
        try:
            await load_records(
                self._log,
                self.shard,
                self._env,
                read_bytes_max=self._settings.load_buffer_size,
                is_wanted=lambda: self.state is PartitionState.LOADING,
                last_counts=self._settings.last_counts,
            )
        except (KafkaError, WireError) as error:
            logger.warning("cannot be loaded", kv(**self._told, error=error))
            self.is_unreadable = isinstance(error, WireError)
            self.close()
            return
        if self.state is not PartitionState.LOADING:
            return  # lost meanwhile
        self.state = PartitionState.ACTIVE
        self.shard.loaded()
        logger.info("loaded", kv(**self._told, **self.shard.statistics()))
        self.settled.set()

    @property
    def is_closed(self) -> bool:
        return self.state is PartitionState.CLOSED

    @property
    def may_be_loaded_again(self) -> bool:
        """Whether the log is still here, and worth another look."""
        log = self._log
        return log.state.value == "online" and not (log.is_closing or self.is_unreadable)

    def close(self) -> None:
        """The log is no longer ours: everybody is told to find the coordinator again."""
        if not self.is_closed:
            # What was stored was stored by this tenure: who is told finds its shard as it was.
            self._sent.tell_settled()
        if self.is_closed:
            return  # perhaps by one of them
        self.state = PartitionState.CLOSED
        self._log.unwatch(self._look_at_log)
        self.shard.closed()
        self.settled.set()
        self._on_closed(self)

    def _look_at_log(self) -> None:
        state = self._log.state.value
        if state == "offline":
            self.close()
        elif state == "online" and self._begin is not None:
            begin, self._begin = self._begin, None
            begin(self)
