"""AppendQueue: from numbered batches to acknowledged ledger entries, in order.

Batches are put here with their offsets already given. `flush`, once per turn, cuts what is queued
into entries: what came together travels together. Entries are acknowledged in order, and each ack
moves the high watermark over its batches and answers them.

A ledger is sealed synchronously: everything queued is pushed, then the offset index, then a
snapshot of producer state, which at that moment describes exactly what was pushed before it. (A
snapshot that knew of batches behind it would, after a crash, answer a producer's retry of a lost
batch as a duplicate: a lost record.) For the same reason `push_snapshot` empties the queue first,
and a ledger that must not grow any more is protected before batches are numbered: whoever puts
asks `is_full`, and keeps what he has until the next ledger is there (broker/log/partition.py).

In front of each snapshot go the transactions that were aborted since the last one, and at the seal
all of the ledger (broker/log/transactions/aborted_index.py). A ledger that follows one without a
seal, whose writer died, begins with a snapshot, so that each boundary has one on one side.

A snapshot of many producers has parts. What they say is settled when the snapshot is taken; one is
encoded and pushed in each turn of the loop, and batches wait behind the last of them.

Owner: the event loop's thread; every method is synchronous but `wait_drained`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    HEADER_SIZE,
    KIND_ABORTED,
    KIND_BATCHES,
    KIND_INDEX,
    KIND_SNAPSHOT,
    pack_header,
)
from ledger.errors import LedgerError
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.walk import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.read.segment import Segment
    from broker.log.settings import LogSettings
    from broker.log.transactions.origin import Origin
    from ledger.writer import LedgerWriter
    from runtime.turn import Gathered, Turn


#: Above every size.
NO_LIMIT = 1 << 62


class Append(ABC):
    """One batch on its way. `finished()` is called exactly once, in offset order, when the batch
    is acknowledged or `error` is set. Subclassed by whoever wants to hear of it, so that a batch
    costs one object and no closure."""

    __slots__ = (
        "base_offset", "error", "error_message", "last_offset", "log_append_time_ms",
        "max_timestamp", "min_timestamp", "record_indexes", "record_messages", "records",
    )  # fmt: skip

    #: Of a batch that may be part of a transaction; whoever sends such has it.
    origin: Origin | None = None

    def __init__(self, records: memoryview) -> None:
        self.records = records
        self.base_offset = -1
        self.last_offset = -1
        self.log_append_time_ms = -1
        self.max_timestamp = -1
        #: Of an answer that only waits for others: it brings no record of its own.
        self.min_timestamp = INT64_MAX
        self.error = ErrorCode.NONE
        self.error_message: str | None = None
        self.record_indexes: Sequence[int] = ()  # which records of the batch are to blame
        self.record_messages: Sequence[str] = ()  # and for what, if it is not the same for all

    def fail(self, error: KafkaError) -> None:
        self.refuse(error)
        self.finished()

    def refuse(self, error: KafkaError) -> None:
        """What it will be told when it is finished."""
        self.error, self.error_message = error.code, error.message
        self.record_indexes = error.record_indexes
        self.record_messages = error.record_messages
        self.base_offset = -1

    @abstractmethod
    def finished(self) -> None:
        """The batch is acknowledged, or refused: see `error`."""


class CallbackAppend(Append):
    """For those who append now and then: calls `done(append)`."""

    __slots__ = ("_done",)

    def __init__(self, records: memoryview, done: Callable[[Append], None]) -> None:
        super().__init__(records)
        self._done = done

    def finished(self) -> None:
        self._done(self)


@dataclass(slots=True)
class _Entry:
    """One entry that was pushed and is not yet acknowledged."""

    appends: list[Append]
    end_offset: int
    size_bytes: int
    snapshot_entry_id: int = -1


class AppendQueue:
    def __init__(
        self,
        settings: LogSettings,
        turn: Turn,
        flushes: Gathered,
        *,
        on_progress: Callable[[], None],
        on_lost: Callable[[str], None],
        on_attention: Callable[[], None],
        take_snapshot: Callable[[], Sequence[Callable[[], bytes]]],
        take_aborted: Callable[[bool], Sequence[bytes]] = lambda _: (),
    ) -> None:
        """`flushes`: of all partitions, once a turn. `on_progress`: the high watermark moved (once
        per acknowledged entry). `on_lost`: the ledger failed, nothing more will be acknowledged.
        `on_attention`: the keeper should look (a ledger is needed, or one is full).
        `take_aborted`: the contents of entries with the aborted transactions since the last call,
        or with all of the ledger, which is sealed."""
        self._settings = settings
        self._turn = turn
        self._flushes = flushes
        self._on_progress = on_progress
        self._on_lost = on_lost
        self._on_attention = on_attention
        self._take_snapshot = take_snapshot
        self._take_aborted = take_aborted
        #: What the next ledger begins with, before any batch.
        self.opening_snapshot: Sequence[Callable[[], bytes]] = ()
        self._is_opening = False
        self._writer: LedgerWriter | None = None
        self._segment: Segment | None = None
        self._queue: deque[Append] = deque()
        self._queued_bytes = 0
        self._in_flight: deque[_Entry] = deque()
        self._bytes_in_flight = 0
        self._bytes_since_snapshot = 0
        #: Of the snapshot that is being pushed: parts that are not, and its first entry.
        self._parts: deque[Callable[[], bytes]] = deque()
        self._snapshot_entry_id = -1
        self._part_awaits_turn = False
        self._flush_deferred = False
        self._drained = trio.Event()
        self._stopped = False
        self.high_watermark = 0
        self.pushed_offset = 0
        self.sealed = True
        #: The keeper is called when the ledger is as large as this, or by what is pushed when the
        #: loop's clock is as far as that.
        self.attention_bytes = NO_LIMIT
        self.attention_time = inf
        #: How much may be put for one ledger.
        self.ledger_bytes_max = NO_LIMIT
        #: What was put for the open ledger, or, if there is none, for the next one.
        self._ledger_bytes = 0

    @property
    def is_full(self) -> bool:
        """What is put from now on is for a ledger that has enough."""
        return self._ledger_bytes >= self.ledger_bytes_max

    @property
    def is_empty(self) -> bool:
        """Nothing is queued (something may be in flight)."""
        return not self._queue

    @property
    def needs_ledger(self) -> bool:
        return bool(self._queue) and self.sealed

    @property
    def oldest(self) -> tuple[Append, str] | None:
        """What is unanswered for the longest, and what it waits for."""
        for entry in self._in_flight:
            if entry.appends:
                return entry.appends[0], "acks of bookies"
        if self._queue:
            return self._queue[0], "a ledger" if self.sealed else "a place among those in flight"
        return None

    def statistics(self) -> tuple[int, int, int]:
        """(batches queued, entries in flight, bytes in flight)."""
        return len(self._queue), len(self._in_flight), self._bytes_in_flight

    # -- in ------------------------------------------------------------------------------------

    def put(self, append: Append) -> None:
        assert append.base_offset <= append.last_offset, "it was given its offsets"
        self._queue.append(append)
        size = len(append.records)
        self._queued_bytes += size
        self._ledger_bytes += size
        if not self._flush_deferred:
            self._flush_deferred = True
            self._flushes.defer(self._flush)

    def put_duplicate(self, append: Append) -> None:
        """A batch that is here already: answered when its original is, at its last offset."""
        append.records = _NOTHING
        if append.last_offset < self.high_watermark:
            append.finished()
        elif self._queue:
            self._queue.append(append)
        else:
            assert self._in_flight, "its original is not acknowledged, so it is on its way"
            self._in_flight[-1].appends.append(append)

    def put_refused(self, append: Append, error: KafkaError, offset: int) -> None:
        """A batch that is refused because of what stands at `offset`: told when that is
        acknowledged, as nobody could know of it before."""
        append.refuse(error)
        append.last_offset = offset
        self.put_duplicate(append)

    def attach(self, writer: LedgerWriter, segment: Segment) -> None:
        """A new open ledger: what is queued goes there."""
        assert self.sealed
        assert not self._in_flight, "the predecessor was drained before it was closed"
        assert not self._bytes_in_flight
        assert not self._parts, "its snapshot was written to the end"
        assert self.high_watermark >= self.pushed_offset, "all of it is acknowledged"
        self._writer, self._segment = writer, segment
        self.sealed = False
        self._bytes_since_snapshot = 0
        if self.opening_snapshot:
            self._snapshot_entry_id = writer.last_add_pushed + 1
            self._parts.extend(self.opening_snapshot)
            self.opening_snapshot = ()
            self._is_opening = True
            self._push_part()
        self._flush()

    def seal(self) -> None:
        """Pushes all that is queued, the index and a snapshot; nothing after them. Of a snapshot
        in parts the rest follows (`wait_drained`)."""
        if self.sealed or self._stopped:
            return
        self._end_snapshot()  # the seal's own takes the place of one that is under way
        self._push_queued(limited=False)
        segment, writer = self._segment, self._writer
        if self._stopped or segment is None or writer is None:
            return
        assert segment.index is not None
        head = pack_header(KIND_INDEX, self.pushed_offset)
        segment.index_entry = writer.last_add_pushed + 1
        self._push([head, segment.index.to_bytes()], _Entry([], self.pushed_offset, 0))
        self._push_aborted(is_sealed=True)
        self._begin_snapshot()
        assert not self._queue, "nothing is left for behind the seal"
        self.sealed = True
        self._ledger_bytes = 0

    def push_snapshot(self) -> None:
        """Writes the producers' state behind everything that was put until now, if a ledger is
        open: one that is sealed has it."""
        if self.sealed:
            return
        self._end_snapshot()
        self._push_queued(limited=False)
        self._push_aborted(is_sealed=False)
        self._begin_snapshot()

    def _end_snapshot(self) -> None:
        """One that is under way is given up; not the ledger's first, without which nobody could
        tell what was open where the ledger begins."""
        while self._is_opening and self._parts and not self._stopped:
            self._push_part()
        self._parts.clear()

    def _push_aborted(self, *, is_sealed: bool) -> None:
        if self._stopped or self._writer is None:
            return
        for content in self._take_aborted(is_sealed):
            head = pack_header(KIND_ABORTED, self.pushed_offset)
            self._push([head, content], _Entry([], self.pushed_offset, 0))

    def _begin_snapshot(self) -> None:
        writer = self._writer
        if self._stopped or writer is None:
            return
        self._is_opening = False
        self._snapshot_entry_id = writer.last_add_pushed + 1
        self._bytes_since_snapshot = 0
        assert not self._queue, "a snapshot knows of no batch behind it"
        self._parts.extend(self._take_snapshot())
        self._push_part()

    def _push_part(self) -> None:
        """The next one of the snapshot; those behind it in later turns."""
        writer = self._writer
        assert writer is not None
        assert 0 <= self._snapshot_entry_id <= writer.last_add_pushed + 1
        is_first = writer.last_add_pushed < self._snapshot_entry_id
        part = self._parts.popleft()
        flags = (0 if is_first else FLAG_CONTINUED) | (FLAG_CONTINUES if self._parts else 0)
        head = pack_header(KIND_SNAPSHOT, self.pushed_offset, flags=flags)
        noted = -1 if self._parts else self._snapshot_entry_id
        self._push([head, part()], _Entry([], self.pushed_offset, 0, noted))
        if self._parts and not self._part_awaits_turn:
            self._part_awaits_turn = True
            self._turn.later(self._push_later_part)

    def _push_later_part(self) -> None:
        self._part_awaits_turn = False
        if not self._parts:  # the ledger was lost, or sealed
            return
        self._push_part()
        if not self._parts and not self.sealed:
            self._flush()

    def stop(self) -> list[Append]:
        """Nothing more is pushed or acknowledged; gives back what was not."""
        self._stopped = True
        lost = [append for entry in self._in_flight for append in entry.appends]
        lost += self._queue
        self._in_flight.clear()
        self._parts.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._drained.set()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        return lost

    async def wait_drained(self) -> None:
        """Every entry that was pushed, and a snapshot to its end, is acknowledged, or the queue was
        stopped."""
        while (self._in_flight or self._parts) and not self._stopped:
            self._drained = trio.Event()
            await self._drained.wait()
        assert self._stopped or not self._bytes_in_flight

    # -- out -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flush_deferred = False
        if self.sealed:
            if self._queue:
                self._on_attention()
            return
        if self._parts:
            return  # the last part flushes
        self._push_queued(limited=True)
        if self._bytes_since_snapshot >= self._settings.snapshot_interval_bytes:
            self.push_snapshot()
        segment = self._segment
        if segment is not None and (
            segment.size_bytes >= self.attention_bytes or trio.current_time() >= self.attention_time
        ):
            self._on_attention()

    def _push_queued(self, *, limited: bool) -> None:
        settings = self._settings
        queue = self._queue
        target = settings.entry_bytes_target
        while queue and not self._stopped:
            # Nothing in flight and one batch is how many partitions find themselves in a burst:
            # then there is nothing to weigh up, and nothing to put together.
            if limited and self._in_flight and not self._may_push():
                return
            append = queue.popleft()
            appends = [append]
            size = len(append.records)
            while queue and size + len(queue[0].records) <= target:
                append = queue.popleft()
                size += len(append.records)
                appends.append(append)
            self._queued_bytes -= size
            assert self._queued_bytes >= 0, "what is taken out was put in"
            self._push_batches(appends, size)
        assert self._queue or not self._queued_bytes

    def _may_push(self) -> bool:
        settings, in_flight = self._settings, len(self._in_flight)
        if (
            in_flight >= settings.entries_in_flight_eager
            and self._queued_bytes < settings.entry_bytes_eager
        ):
            return False  # the next ack flushes
        return (
            in_flight < settings.entries_in_flight_max
            and self._bytes_in_flight < settings.bytes_in_flight_max
        )

    def _push_batches(self, appends: list[Append], size: int) -> None:
        if not size:  # duplicates only: their originals are in flight or acknowledged
            self._attach_duplicates(appends)
            return
        # Duplicates may be anywhere among them, with offsets that lie before or between the others.
        first = self.pushed_offset
        head = appends[0]
        end = (head.last_offset if len(appends) == 1 else max(map(_last_offset, appends))) + 1
        assert head.base_offset == first or not head.records, "offsets are without a gap"
        assert end > first
        self._note(appends, first, size + HEADER_SIZE)
        self.pushed_offset = end
        if size > self._settings.entry_bytes_max:
            self._push_spanning(appends, first, end, size)
            return
        payload: list[bytes | memoryview] = [pack_header(KIND_BATCHES, first, end - first)]
        payload += [append.records for append in appends]
        self._push(payload, _Entry(appends, end, size))

    def _attach_duplicates(self, appends: list[Append]) -> None:
        if self._in_flight:
            self._in_flight[-1].appends += appends
        else:
            for append in appends:
                append.finished()

    def _push_spanning(self, appends: list[Append], first: int, end: int, size: int) -> None:
        """One batch that is larger than an entry may be; its last entry acknowledges it."""
        limit = self._settings.entry_bytes_max
        records = appends[0].records
        assert len(records) == size, "it is one batch"
        for start in range(0, size, limit):
            last = start + limit >= size
            flags = (FLAG_CONTINUED if start else 0) | (0 if last else FLAG_CONTINUES)
            head = pack_header(KIND_BATCHES, first, end - first, flags)
            part = records[start : start + limit]
            entry = _Entry(appends, end, len(part)) if last else _Entry([], first, len(part))
            self._push([head, part], entry)

    def _push(self, payload: list[bytes | memoryview], entry: _Entry) -> None:
        writer = self._writer
        if writer is None or self._stopped:
            return
        assert not self._in_flight or self._in_flight[-1].end_offset <= entry.end_offset
        self._in_flight.append(entry)
        self._bytes_in_flight += entry.size_bytes
        try:
            writer.append_nowait(payload, self._entry_done)
        except LedgerError as error:
            self._on_lost(f"{type(error).__name__}: {error}")

    def _note(self, appends: list[Append], first: int, size: int) -> None:
        """Index and ledger facts of an entry that is about to be pushed."""
        segment, writer = self._segment, self._writer
        assert segment is not None
        assert writer is not None
        assert segment.index is not None
        assert not self.sealed, "a sealed ledger takes no batches"
        segment.index.add(writer.last_add_pushed + 1, first, size, segment.max_timestamp)
        segment.size_bytes += size
        self._ledger_bytes += HEADER_SIZE
        for append in appends:
            if append.max_timestamp > segment.max_timestamp:
                segment.max_timestamp = append.max_timestamp
                segment.max_timestamp_offset = append.base_offset
            if append.min_timestamp < segment.min_timestamp:
                segment.min_timestamp = append.min_timestamp
        self._bytes_since_snapshot += size

    def _entry_done(self, _entry_id: int, error: LedgerError | None) -> None:
        """One entry is acknowledged (they come in order), or the ledger is lost to us."""
        if self._stopped:
            return
        if error is not None:
            self._on_lost(f"{type(error).__name__}: {error}")
            return
        entry = self._in_flight.popleft()
        self._bytes_in_flight -= entry.size_bytes
        assert self._bytes_in_flight >= 0, "an entry is acknowledged once"
        assert self.high_watermark <= entry.end_offset <= self.pushed_offset, "and in their order"
        self.high_watermark = entry.end_offset
        for append in entry.appends:
            append.finished()
        if self._queue and not self._flush_deferred:
            self._flush_deferred = True
            self._flushes.defer(self._flush)
        if entry.snapshot_entry_id >= 0 and self._segment is not None:
            self._segment.snapshot_entry = entry.snapshot_entry_id
            self._on_attention()
        if not self._in_flight:
            self._drained.set()
        self._on_progress()


_NOTHING = memoryview(b"")
_last_offset = attrgetter("last_offset")
