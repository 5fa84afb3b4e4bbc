"""One partition of a coordinator's topic that this broker leads, and what is kept of it in memory.

    LOADING --all records applied--> ACTIVE --log offline--> CLOSED
    LOADING --not taken over, or cannot be read--> CLOSED

The log is the truth. What a coordinator keeps of the partition is its *shard* (Kafka's name): the
partition gives it every record of the log while it loads, and writes what it wants to be stored.
Nothing here knows what a record says.

Records of one turn of the loop go into one batch: `write` queues a unit (the records of one
request, never split over two batches), the end of the turn builds the batch, and one ack answers
all of its units in order. What is more than a batch's worth comes in units of its own
(`write_in_units`); each batch adds what it costs to the turn, and a turn that has enough leaves the
other partitions' batches to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

from broker.coordinator.loading import load_records
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from broker.coordinator.ports import Appended, Log
    from broker.coordinator.settings import CoordinatorSettings
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: A record's key and value; a None value is a tombstone.
KeyValue = tuple[bytes, bytes | None]
Done = Callable[[ErrorCode], None]

#: What a record costs beside its key and value, at most: lengths, deltas, attributes.
_RECORD_OVERHEAD = 24
#: Records of one batch, of several requests together, and of one unit of a long list.
_BATCH_RECORDS_MAX = 500
#: What a batch costs a turn (runtime/turn.py): 3 us a record, 128 bytes each us.
RECORD_UNITS = 3
BYTES_PER_UNIT_BITS = 7

#: An append that ends so was the tenure's last.
_TENURE_OVER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)


def _cost(record: KeyValue) -> int:
    """Bytes of a batch, at most."""
    key, value = record
    return len(key) + len(value or b"") + _RECORD_OVERHEAD


class PartitionState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class Shard(Protocol):
    """What a coordinator keeps in memory of one partition, for one tenure of its log."""

    def apply(self, key: bytes, value: bytes | None, /) -> None:
        """A record of the log, when it is loaded; no value: a tombstone. WireError: it cannot be
        read, so the partition is closed."""

    def loaded(self) -> None:
        """Every record of the log was applied: from now on the shard may write."""

    def closed(self) -> None:
        """The tenure is over. Who waits for something that is not being written is told so here;
        writes on their way are answered by their `done`."""

    def statistics(self) -> dict[str, int]:
        """How much it holds, by name."""


S = TypeVar("S", bound=Shard)


@dataclass(slots=True)
class _Unit:
    """The records of one request, and who waits for them. Without records: a mark in the order."""

    records: Sequence[KeyValue]
    done: Done
    size_bytes: int


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
        self._told = {"topic": topic, "partition": index}  # in lines of the server's log
        self._log = log
        self._env = env
        self._settings = settings
        self._on_closed = on_closed
        self._queue: list[_Unit] = []
        self._begin: Callable[[CoordinatorPartition[S]], None] | None = None
        #: Batches that wait for their acks, by number and in that order.
        self._in_flight: dict[int, list[_Unit]] = {}
        self.shard = new_shard(self)

    # --- writing

    def write(self, records: Sequence[KeyValue], done: Done) -> None:
        """Queues the records of one request; `done(NONE)` once they are durable, `done(error)` as
        clients are told if not: in the order of the calls. What is refused for lack of room, or
        because the partition is not ACTIVE, is told at once, before this returns."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
            return
        size = sum(map(_cost, records))
        if self._has_room(size):
            self._queue_unit(_Unit(records, done, size))
        else:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def write_in_units(
        self, records: Sequence[KeyValue], stored: Callable[[slice], None], done: Done
    ) -> None:
        """As `write`, for as many records as there may be: in units of a batch's size.
        `stored(which)` is called for `records[which]` when these are durable, in order: of a large
        request some may be, and others not. `done` is called after the last, the first error stands
        for all. What there is no room for is refused as a whole."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
            return
        units, size = self._units_of(records)
        if not self._has_room(size):
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        left = len(units)
        failed = ErrorCode.NONE

        def unit_done(which: slice, error: ErrorCode) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if not error:
                stored(which)
            if not left:
                done(failed)

        for which, unit_size in units:
            self._queue_unit(_Unit(records[which], partial(unit_done, which), unit_size))
        if not units:
            done(ErrorCode.NONE)

    def _units_of(self, records: Sequence[KeyValue]) -> tuple[list[tuple[slice, int]], int]:
        """((which of them, size in bytes) of each unit, size of all)."""
        units: list[tuple[slice, int]] = []
        total = size = start = 0
        for at, cost in enumerate(map(_cost, records)):
            is_full = at - start >= _BATCH_RECORDS_MAX
            if at > start and (is_full or size + cost > self._settings.batch_bytes_max):
                units.append((slice(start, at), size))
                total += size
                start, size = at, 0
            size += cost
        if records:
            units.append((slice(start, len(records)), size))
        return units, total + size

    def _has_room(self, size: int) -> bool:
        limit = self._settings.pending_bytes_max
        return not self.pending_bytes or self.pending_bytes + size <= limit

    def _queue_unit(self, unit: _Unit) -> None:
        self.pending_bytes += unit.size_bytes
        if not self._queue:
            self._env.turn.defer(self._flush)
        self._queue.append(unit)

    def after_pending(self, function: Callable[[], None]) -> None:
        """Calls `function()` once all that was written until now is acknowledged or has failed;
        at once if nothing waits."""
        mark = _Unit([], lambda _error: function(), 0)
        if self._queue:
            self._queue.append(mark)
        elif self._in_flight:
            next(reversed(self._in_flight.values())).append(mark)
        else:
            function()

    def barrier(self, record: KeyValue, done: Done) -> None:
        """`done(NONE)` once something that is appended after this call is acknowledged: whoever
        hears that owned the log when it asked, and may answer from memory. `done(error)`, as of a
        write, if that is not acknowledged. If nothing else waits to be appended `record` is, which
        must change nothing: what the log says of its key by then."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
        elif self._queue:
            self._queue.append(_Unit([], done, 0))
        else:
            self._queue_unit(_Unit([record], done, _cost(record)))

    @property
    def leader_epoch(self) -> int:
        """Of the tenure; each has a higher one."""
        return self._log.leader_epoch

    def _flush(self) -> None:
        """One batch; the next comes in a turn of its own."""
        queue, turn = self._queue, self._env.turn
        if turn.is_spent:
            turn.later(self._flush)
            return
        size = count = taken = 0
        for unit in queue:
            if taken and unit.records:
                size += unit.size_bytes
                count += len(unit.records)
                if size > self._settings.batch_bytes_max or count > _BATCH_RECORDS_MAX:
                    break
            elif unit.records:
                size, count = unit.size_bytes, len(unit.records)
            taken += 1
        units, self._queue = queue[:taken], queue[taken:]
        turn.spent_units += RECORD_UNITS * count + (size >> BYTES_PER_UNIT_BITS)
        if self._queue:
            turn.later(self._flush)
        if units:
            self._append(units)

    def _append(self, units: list[_Unit]) -> None:
        records = [record for unit in units for record in unit.records]
        if self.state is not PartitionState.ACTIVE or not records:
            self._fail(self.batch_count + 1, units, ErrorCode.NOT_COORDINATOR)
            return
        batch = build_batch(
            [Record(at, 0, key, value) for at, (key, value) in enumerate(records)],
            base_timestamp=self._env.clock.time_ms(),
            compression=self._settings.compression,
        )
        self.batch_count += 1
        number = self.batch_count
        self._in_flight[number] = units
        self._log.append_nowait(
            memoryview(bytearray(batch)), partial(self._appended, number), internal=True
        )

    def _appended(self, number: int, append: Appended) -> None:
        error = append.error
        if not error:
            # Until the last is told, `after_pending` joins them.
            self._finish(self._in_flight[number], error)
            del self._in_flight[number]
            return
        units = self._in_flight.pop(number)
        logger.warning("append failed", kv(**self._told, requests=len(units), error=error.name))
        self._fail(number, units, self._settings.append_errors.get(error, error))
        if error in _TENURE_OVER:
            self.close()

    def _fail(self, number: int, units: list[_Unit], error: ErrorCode) -> None:
        """What the log refuses at once is told in line, too: behind the batches before it, which
        may still be acknowledged."""
        earlier = [each for at, each in self._in_flight.items() if at < number]
        if earlier:
            earlier[-1].append(_Unit([], lambda _error: self._finish(units, error), 0))
        else:
            self._finish(units, error)

    def _finish(self, units: list[_Unit], error: ErrorCode) -> None:
        for unit in units:
            self.pending_bytes -= unit.size_bytes
            unit.done(error)

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
                self.shard.apply,
                self._env,
                read_bytes_max=self._settings.load_buffer_size,
                is_wanted=lambda: self.state is PartitionState.LOADING,
                told=self._told,
            )
        except (KafkaError, WireError) as error:
            logger.warning("cannot be loaded", kv(**self._told, error=error))
            self.close()
            return
        if self.state is not PartitionState.LOADING:
            return  # lost meanwhile
        self.state = PartitionState.ACTIVE
        self.shard.loaded()
        logger.info("loaded", kv(**self._told, **self.shard.statistics()))
        self.settled.set()

    def close(self) -> None:
        """The log is no longer ours: everybody is told to find the coordinator again."""
        if self.state is PartitionState.CLOSED:
            return
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
