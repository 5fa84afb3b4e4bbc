"""One partition of `__consumer_offsets` that this broker leads, and the groups that live in it.

    LOADING --all records applied--> ACTIVE --log offline--> CLOSED
    LOADING --not taken over, or cannot be read--> CLOSED

The log is the truth. Offsets and deletions change the tables only when their records are
acknowledged, in the log's order; a group's state machine runs ahead in memory, as Kafka's does, and
answers its members only after what they rely on is stored (`Persist`).

Records of one turn of the loop go into one batch: `write` queues a unit (the records of one
request, never split over two batches), the end of the turn builds the batch, and one ack answers
all of its units in order. What is more than a batch's worth comes in units of its own
(`write_offsets`); each batch adds what it costs to the turn, and a turn that has enough leaves the
other partitions' batches to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.groups.classic.group_core import ClassicGroup
from broker.groups.classic.types import Answer, ArmTimer, Effect, GroupLimits, Persist
from broker.groups.offsets.table import GroupOffsets
from broker.groups.records import (
    StoredGroup,
    StoredOffset,
    StoredRecord,
    group_record,
    parse_record,
)
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import build_batch, records_data, scan_batches
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record, read_records

if TYPE_CHECKING:
    from broker.coordinator.ports import Appended, Log
    from broker.coordinator.timers import GroupTimers
    from broker.groups.config import GroupConfig
    from broker.groups.offsets.table import OffsetKey
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
#: Records that are loaded before others have the loop: 1 to 2 ms.
_RECORDS_PER_TURN = 150
#: Decompressed records of one batch, at most: more is no batch that a coordinator wrote.
_BATCH_SIZE_MAX = 256 * 1024 * 1024

#: What members are told if their group's records could not be stored (Kafka's
#: `appendGroupMetadataErrorToResponseError`); others pass as they are.
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def _cost(record: KeyValue) -> int:
    """Bytes of a batch, at most."""
    key, value = record
    return len(key) + len(value or b"") + _RECORD_OVERHEAD


class PartitionState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(slots=True)
class _Unit:
    """The records of one request, and who waits for them. Without records: a mark in the order."""

    records: Sequence[KeyValue]
    done: Done
    size_bytes: int


class GroupEntry:
    """One group: its members' state machine and its offsets."""

    __slots__ = ("group", "offsets", "partition", "timer_at_ms")

    def __init__(self, partition: CoordinatorPartition, group: ClassicGroup) -> None:
        self.partition = partition
        self.group = group
        self.offsets = GroupOffsets()
        self.timer_at_ms: int | None = None

    @property
    def is_pristine(self) -> bool:
        """A group that only a commit made, and that nothing has come to."""
        group = self.group
        return group.is_forgettable and group.protocol_type is None and self.offsets.is_unused

    def tombstones(self, keys: list[OffsetKey]) -> list[StoredOffset]:
        return [StoredOffset(self.group.group_id, *key, None) for key in keys]

    def on_timer(self, now_ms: int) -> None:
        if self.partition.state is PartitionState.ACTIVE:
            self.partition.carry_out(self, self.group.tick(now_ms))


class CoordinatorPartition:
    """Owner of its groups; made by the coordinator for one tenure of the log."""

    def __init__(
        self,
        index: int,
        log: Log,
        env: Env,
        config: GroupConfig,
        timers: GroupTimers,
        on_closed: Callable[[CoordinatorPartition], None],
    ) -> None:
        self.index = index
        self.state = PartitionState.LOADING
        self.groups: dict[str, GroupEntry] = {}
        self.settled = trio.Event()  # no longer LOADING
        self.pending_bytes = 0
        self.batch_count = 0
        self._log = log
        self._env = env
        self._config = config
        self._timers = timers
        self._on_closed = on_closed
        self._limits = GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            members_max=config.group_max_size,
        )
        self._queue: list[_Unit] = []
        self._begin: Callable[[CoordinatorPartition], None] | None = None
        self._last_units: list[_Unit] | None = None  # of the last batch that waits for its ack

    # --- groups

    def create(self, group_id: str) -> GroupEntry:
        entry = GroupEntry(self, ClassicGroup(group_id, self._limits))
        self.groups[group_id] = entry
        return entry

    def forget(self, entry: GroupEntry) -> None:
        """The log does not know this group; nor does anybody who waits."""
        self._timers.cancel(entry)
        if self.groups.get(entry.group.group_id) is entry:
            del self.groups[entry.group.group_id]

    def carry_out(
        self, entry: GroupEntry, effects: Iterable[Effect], stored: Done | None = None
    ) -> bool:
        """Does what the state machine wants, in its order. `stored` is called when what it wants
        to be stored is; True: there was such a thing."""
        has_persist = False
        for effect in effects:
            if isinstance(effect, Answer):
                assert callable(effect.token)
                effect.token(effect.result)
            elif isinstance(effect, ArmTimer):
                self._timers.arm(entry, effect.at_ms)
            else:
                has_persist = True
                done = partial(self._persisted, entry, effect, stored)
                self.write([group_record(effect.snapshot)], done)
        return has_persist

    def _persisted(
        self, entry: GroupEntry, effect: Persist, stored: Done | None, error: ErrorCode
    ) -> None:
        effects = entry.group.stored(effect.then, error, self._timers.now_ms())
        self.carry_out(entry, effects)
        if stored is not None:
            stored(error)

    # --- writing

    def write(self, records: Sequence[KeyValue], done: Done) -> None:
        """Queues the records of one request; `done(NONE)` once they are durable, `done(error)` as
        members are told if not. `done` may be called before this returns."""
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
            return
        size = sum(map(_cost, records))
        if self._has_room(size):
            self._queue_unit(_Unit(records, done, size))
        else:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def write_offsets(
        self, records: Sequence[KeyValue], offsets: Sequence[StoredOffset], done: Done
    ) -> None:
        """As `write`, for as many records as there may be: in units of a batch's size. The first
        records are those of `offsets`, and each is applied when it is stored: of a large request
        some may be, and others not. `done` is called after the last, the first error stands for
        all. What there is no room for is refused as a whole."""
        units = self._units_of(records)
        if self.state is not PartitionState.ACTIVE:
            done(ErrorCode.NOT_COORDINATOR)
            return
        if not self._has_room(sum(size for _, size in units)):
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        left = len(units)
        failed = ErrorCode.NONE

        def unit_done(which: slice, error: ErrorCode) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if not error:
                for each in offsets[which]:
                    self.apply_offset(each)
            if not left:
                done(failed)

        for which, size in units:
            self._queue_unit(_Unit(records[which], partial(unit_done, which), size))
        if not units:
            done(ErrorCode.NONE)

    def _units_of(self, records: Sequence[KeyValue]) -> list[tuple[slice, int]]:
        """(which of them, size in bytes) of each unit."""
        units: list[tuple[slice, int]] = []
        size = start = 0
        for at, cost in enumerate(map(_cost, records)):
            is_full = at - start >= _BATCH_RECORDS_MAX
            if at > start and (is_full or size + cost > self._config.batch_bytes_max):
                units.append((slice(start, at), size))
                start, size = at, 0
            size += cost
        if records:
            units.append((slice(start, len(records)), size))
        return units

    def _has_room(self, size: int) -> bool:
        limit = self._config.pending_bytes_max
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
        elif self._last_units is not None:
            self._last_units.append(mark)
        else:
            function()

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
                if size > self._config.batch_bytes_max or count > _BATCH_RECORDS_MAX:
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
            self._finish(units, ErrorCode.NOT_COORDINATOR)
            return
        batch = build_batch(
            [Record(at, 0, key, value) for at, (key, value) in enumerate(records)],
            base_timestamp=self._timers.wall_ms(),
            compression=self._config.offsets_topic_compression_codec,
        )
        self.batch_count += 1
        self._last_units = units
        self._log.append_nowait(
            memoryview(bytearray(batch)), partial(self._appended, units), internal=True
        )

    def _appended(self, units: list[_Unit], append: Appended) -> None:
        if self._last_units is units:
            self._last_units = None
        error = _APPEND_ERRORS.get(append.error, append.error)
        if error:
            logger.warning(
                "append failed",
                kv(partition=self.index, requests=len(units), error=append.error.name),
            )
        self._finish(units, error)
        if error is ErrorCode.NOT_COORDINATOR:
            self.close()

    def _finish(self, units: list[_Unit], error: ErrorCode) -> None:
        for unit in units:
            self.pending_bytes -= unit.size_bytes
            unit.done(error)

    # --- the log's tenure

    def when_taken_over(self, begin: Callable[[CoordinatorPartition], None]) -> None:
        """`begin(self)` once the log is online; at once if it is. Whenever the log goes offline the
        partition is closed."""
        self._begin = begin
        self._log.watch(self._look_at_log)
        self._look_at_log()

    async def load(self) -> None:
        """Applies every record of the log, then serves. Closes itself if that cannot be done."""
        try:
            await self._load_records()
        except (KafkaError, WireError) as error:
            logger.warning("cannot be loaded", kv(partition=self.index, error=error))
            self.close()
            return
        if self.state is not PartitionState.LOADING:
            return  # lost meanwhile
        self.state = PartitionState.ACTIVE
        now_ms = self._timers.now_ms()
        for entry in list(self.groups.values()):
            self.carry_out(entry, entry.group.start(now_ms))
        logger.info("loaded", kv(partition=self.index, groups=len(self.groups)))
        self.settled.set()

    async def _load_records(self) -> None:
        log = self._log
        await log.wait_loaded()
        if log.state.value != "online":
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        offset, end = log.log_start_offset, log.high_watermark
        while offset < end and self.state is PartitionState.LOADING:
            result = await log.read(offset, self._config.offsets_load_buffer_size)
            # Joined, since a batch that spans several entries comes in as many parts.
            await self._apply_batches(memoryview(b"".join(result.parts)))
            if result.next_offset <= offset:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"nothing to read at {offset}")
            offset = result.next_offset
            await trio.lowlevel.checkpoint()

    async def _apply_batches(self, batches: memoryview) -> None:
        at = 0
        slices = Slices(_RECORDS_PER_TURN)
        for header in scan_batches(batches):
            batch = batches[at : at + header.size]
            at += header.size
            if header.is_control or header.is_transactional:
                # Nothing here writes either; a log that another server wrote may hold them.
                logger.warning(
                    "transactional batch not applied",
                    kv(partition=self.index, offset=header.base_offset),
                )
                continue
            unpack = partial(records_data, batch, header, size_max=_BATCH_SIZE_MAX)
            if header.compression is Compression.NONE:
                data = unpack()
            else:
                data = await self._env.disk.run(unpack)
            if slices.due():
                await slices.turn()
            for record in read_records(data, header.record_count):
                if slices.due():
                    await slices.turn()
                if record.key is not None:
                    stored = parse_record(record.key, record.value)
                    if stored is not None:
                        self.apply(stored)

    def apply(self, stored: StoredRecord) -> None:
        """A record of the log, when it is loaded."""
        if isinstance(stored, StoredGroup):
            if stored.snapshot is None:
                self.groups.pop(stored.group_id, None)
                return
            before = self.groups.get(stored.group_id)
            group = ClassicGroup.restore(stored.snapshot, self._limits)
            self.groups[stored.group_id] = entry = GroupEntry(self, group)
            if before is not None:
                entry.offsets = before.offsets
        elif isinstance(stored, StoredOffset):
            self.apply_offset(stored)

    def apply_offset(self, stored: StoredOffset) -> None:
        """An offset's record that the log has. A commit makes its group, if that is not there: a
        simple consumer's. A tombstone finds what it deletes, or nothing to do."""
        entry = self.groups.get(stored.group_id)
        if entry is None:
            if stored.value is None:
                return
            entry = self.create(stored.group_id)
        entry.offsets.apply(stored.topic, stored.partition, stored.value)

    def apply_deletion(self, entry: GroupEntry) -> None:
        """The log has this group's tombstone. If somebody joined since that was queued the group
        stays, as its generation follows in the log; and if a commit was queued since, it begins
        anew as that of a simple consumer, which is how a load would read the same records."""
        if not entry.group.is_forgettable:
            return
        self.forget(entry)
        if not entry.offsets.is_unused:
            self.create(entry.group.group_id).offsets = entry.offsets

    def close(self) -> None:
        """The log is no longer ours: everybody is told to find the coordinator again."""
        if self.state is PartitionState.CLOSED:
            return
        self.state = PartitionState.CLOSED
        self._log.unwatch(self._look_at_log)
        for entry in self.groups.values():
            self._timers.cancel(entry)
            self.carry_out(entry, entry.group.close(ErrorCode.NOT_COORDINATOR))
        self.settled.set()
        self._on_closed(self)

    def _look_at_log(self) -> None:
        state = self._log.state.value
        if state == "offline":
            self.close()
        elif state == "online" and self._begin is not None:
            begin, self._begin = self._begin, None
            begin(self)
