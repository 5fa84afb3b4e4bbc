"""EntryLogCompactor: what is alive in some entry logs goes to a new one, and they are removed
(feature 14, invariants S).

A record is alive if the index says that it is where its entry is. The order of the steps is what
makes a crash harmless at each of them:

1. a log `*.log.compacting` is made, and the live records are copied into it, each checked;
2. it gets its ledgers map, and is synced;
3. where the index still says the old place, it says the new one from now on: a flush or a deletion
   that came in between has won. The index is synced;
4. the new log is renamed `*.log`, and that is synced;
5. the old logs are removed.

A crash before the end of 2 leaves a log that nothing refers to: the next start removes it. After it
until 4, both places hold the records, and the index says one or the other for each: the collector
looks what is alive in the new log, and compacts the old ones again. After 4 only the old logs may
be left, with nothing alive in them.

Nothing of this touches the journal's mark, and a flush can go on at any step: what a flush writes
to the index goes to its own logs, and step 3 compares and sets between two awaits.

A log with nothing alive in it goes once the index is synced: that it is dead may be known from a
step 3 which found no space to come to its end.

A damaged record that is alive keeps its log as it is; so does one that cannot be read. No space
ends the compaction without harm: what was copied is thrown away.

Owner: the event loop's thread. One `compact` at a time.
"""

from __future__ import annotations

import errno
import logging
from array import array
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

import trio

from bookie.errors import CorruptionError, DamagedRecordError, IndexReadError
from bookie.storage.entry_log_format import HEADER_SIZE, LENGTH_SIZE, read_ledgers_map
from bookie.storage.log_scan import SLICE_COUNT, LogScanner
from runtime.disk import is_full
from runtime.slices import Slices
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from bookie.health.record_check import RecordCheck
    from bookie.parts import BookieParts
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.log_scan import RecordSlice
    from runtime.disk import File
    from runtime.throttle import Throttle
    from wire.buffers import Buffer

logger = logging.getLogger(__name__)

WRITE_SIZE_BYTES = 1 << 20
WRITE_BUFFERS_MAX = 1000
#: Entries of one new log that the index is told of: 40 bytes of memory each.
PENDING_ENTRIES_MAX = 250_000
#: Ledgers of them that are summed up in one turn of the loop.
MOVED_PER_TURN = 5000
MARGIN_SIZE_BYTES = 16 << 20
OFFSET_MASK = 0xFFFFFFFF


@dataclass(slots=True)
class CompactionReport:
    """What one `compact` has done. Bytes are of files."""

    compacted_logs: int = 0
    copied_entries: int = 0
    copied_bytes: int = 0
    #: The removed logs' bytes less the copies'.
    reclaimed_bytes: int = 0
    #: Ids of logs that were kept for what is damaged in them.
    damaged: list[int] = field(default_factory=list)
    #: Logs whose survivors found no space, and the least that one of them lacked.
    no_space_logs: int = 0
    lacked_bytes: int = 0


class _Moves:
    """Copied records of one slice, in columns: from where to where."""

    __slots__ = (
        "entry_ids",
        "ledger_ids",
        "ledgers",
        "log_id",
        "new_offsets",
        "old_offsets",
        "sizes",
    )

    def __init__(self, log_id: int) -> None:
        self.log_id = log_id
        self.ledger_ids = array("q")
        self.entry_ids = array("q")
        self.old_offsets = array("q")
        self.new_offsets = array("q")
        self.sizes = array("q")
        #: Bytes by ledger.
        self.ledgers: dict[int, int] = {}


class _Target:
    """The log that is being written, and what is not in the index of it yet."""

    __slots__ = ("buffered", "buffers", "directory", "log", "moves", "pending", "unsynced")

    def __init__(self, log: EntryLog) -> None:
        self.log = log
        self.buffers: list[Buffer] = []
        self.buffered = 0
        self.unsynced = 0
        self.moves: list[_Moves] = []
        self.pending = 0

    @property
    def end(self) -> int:
        return self.log.size_bytes + self.buffered


class EntryLogCompactor:
    def __init__(
        self,
        parts: BookieParts,
        check: RecordCheck,
        throttles: tuple[Throttle, Throttle],
        owed_bytes: Callable[[], int],
    ) -> None:
        """`throttles`: of entries, of bytes. `owed_bytes()`: what others will write soon, for
        which space is left."""
        self._config = parts.config
        self._disk = parts.env.disk
        self._logs = parts.logs
        self._index = parts.index
        self._check = check
        self._entry_throttle, self._byte_throttle = throttles
        self._owed_bytes = owed_bytes
        #: Left for the index and whatever else is on the disk.
        self._margin_bytes = min(MARGIN_SIZE_BYTES, parts.config.entry_log_size_limit_bytes // 16)
        self._damages = parts.damages
        self._target: _Target | None = None
        #: Logs all of whose survivors are in the target.
        self._copied: list[EntryLog] = []
        #: Where the log that is being copied starts in the target: its end and its moves then.
        self._mark = (0, 0)
        # Of the log that is being copied: its map on disk, and what the index has in it.
        self._map: dict[int, int] | None = None
        self._pointed: set[int] | None = None
        self._report = CompactionReport()
        self._is_stopped = False
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """The bookie has ended: nothing is touched any more."""
        self._is_stopped = True
        self._scope.cancel()

    async def compact(
        self, logs: Iterable[EntryLog], may_go_on: Callable[[], Awaitable[bool]]
    ) -> CompactionReport:
        """Compacts these, in their order, each if there is space, while `may_go_on()`. All are
        complete, and none is the one that the checkpoint names. OSError of a write or a sync, but
        not for want of space: the bookie must end."""
        self._report = report = CompactionReport()
        try:
            for log in logs:
                if not await may_go_on():
                    break
                self._check_running()
                if self._logs.get(log.log_id) is log and log.is_known:
                    await self._compact_log(log)
            await self._finish()
        except OSError as error:
            if self._is_stopped or not is_full(error):
                raise
            logger.warning("compaction stopped, the disk is full: %s", error)
            report.no_space_logs += 1 + len(self._copied)
        finally:
            self._discard()
        return report

    def _check_running(self) -> None:
        if self._is_stopped:
            raise OSError(errno.ECANCELED, "the bookie has ended")

    async def _compact_log(self, log: EntryLog) -> None:
        if self._lacked_bytes(log) > 0:
            # What is copied already is finished first: that gives space.
            await self._finish()
            await self._logs.close_removed()
            if self._logs.get(log.log_id) is not log or not log.is_known:
                return  # a checkpoint removed it meanwhile, or its map cannot be read any more
            if (lacked := self._lacked_bytes(log)) > 0:
                report = self._report
                report.no_space_logs += 1
                report.lacked_bytes = min(lacked, report.lacked_bytes or lacked)
                return
        log.readers += 1
        try:
            await self._copy(log)
        except DamagedRecordError as error:
            logger.error("entry log kept, it cannot be compacted: %s", error)
            self._report.damaged.append(log.log_id)
            self._take_back()
        else:
            self._copied.append(log)
        finally:
            self._logs.release(log)

    def _lacked_bytes(self, log: EntryLog) -> int:
        """That are not free for its survivors, the map, and as much as others need before this is
        done; none if not positive. If the others' does not fit anyway it waits for what is gained
        here."""
        _, free = self._logs.roomiest_directory()
        needed = log.live_bytes + 40 * log.live_count + HEADER_SIZE
        if self._target is not None:
            needed += self._target.buffered  # it is not written yet
        of_others = self._owed_bytes() + self._margin_bytes
        return needed + (of_others if free >= of_others else 0) - free

    async def _copy(self, log: EntryLog) -> None:
        target = self._target
        self._mark = (target.end, len(target.moves)) if target is not None else (HEADER_SIZE, 0)
        self._map = self._pointed = None
        file = self._logs.file(log)
        end = log.records_end or log.size_bytes
        scanner = LogScanner(self._disk, file, end, drops_cached=True)
        while (records := await scanner.next()) is not None:
            alive = self._alive(log, records)
            await self._check.prepare(records, range(len(records.keys)))
            if len(alive) < len(records.keys):
                await self._check_dead(log, file, records, set(alive))
            size = 0
            for i in alive:
                size += records.sizes[i] + LENGTH_SIZE
                if (problem := self._check.problem(records, i)) is not None:
                    self._damaged(log, records.offsets[i] - LENGTH_SIZE, *records.keys[i], problem)
            if alive:
                await self._append(log, records, alive, size)
                await self._entry_throttle.take(len(alive))
                await self._byte_throttle.take(size)
            else:
                await trio.lowlevel.checkpoint()
        if scanner.damage is not None:
            offset, reason = scanner.damage
            self._damaged(log, offset, -1, -1, reason)

    async def _check_dead(
        self, log: EntryLog, file: File, records: RecordSlice, alive: set[int]
    ) -> None:
        """A record whose ids are damaged is not where the index says that *these* ids are, so it
        looks dead: what cannot be believed is looked for among all that the index has here."""
        if self._map is None:
            with suppress(CorruptionError):
                self._map = await self._disk.run(read_ledgers_map, file)
            self._map = self._map or {}
        for i, (ledger_id, _) in enumerate(records.keys):
            if i in alive or (ledger_id in self._map and self._check.problem(records, i) is None):
                continue
            if self._pointed is None:
                self._pointed = await self._offsets_in_index(log)
            if records.offsets[i] in self._pointed:
                reason = "the index says that an entry with other ids is here"
                self._damaged(log, records.offsets[i] - LENGTH_SIZE, *records.keys[i], reason)

    async def _offsets_in_index(self, log: EntryLog) -> set[int]:
        """Where in the log the index says that there is an entry, of any ledger in it.
        DamagedRecordError if that cannot be read."""
        offsets: set[int] = set()
        try:
            for ledger_id in await self._logs.walk.live_ledgers(log):
                after = -1
                while entry_ids := self._index.entry_ids(ledger_id, after, SLICE_COUNT):
                    after = entry_ids[-1]
                    found = self._index.get_many([(ledger_id, entry_id) for entry_id in entry_ids])
                    offsets.update(at & OFFSET_MASK for at in found if at >> 32 == log.log_id)
                    await trio.lowlevel.checkpoint()
        except (CorruptionError, IndexReadError) as error:
            raise DamagedRecordError(log.path, 0, str(error)) from error
        return offsets

    def _damaged(
        self, log: EntryLog, offset: int, ledger_id: int, entry_id: int, reason: str
    ) -> None:
        # Else the next read gives it as it is, and who asks what is sound is told that it is.
        self._damages.cut_reads_at(log.log_id, offset)
        self._damages.report(log.path, offset, ledger_id, entry_id, reason)
        raise DamagedRecordError(log.path, offset, f"ledger {ledger_id} entry {entry_id}: {reason}")

    def _alive(self, log: EntryLog, records: RecordSlice) -> list[int]:
        """DamagedRecordError if the index cannot be read there: the log is kept, and the others
        are compacted."""
        base = log.log_id << 32
        try:
            found = self._index.get_many(records.keys)
        except IndexReadError as error:
            raise DamagedRecordError(log.path, records.offsets[0], str(error)) from error
        return [i for i, offset in enumerate(records.offsets) if found[i] == base | offset]

    async def _append(
        self, log: EntryLog, records: RecordSlice, alive: list[int], size: int
    ) -> None:
        """Queues the records `alive`, of `size` bytes with their lengths, for the target."""
        self._check_running()
        target = self._target
        if target is not None and (
            target.end + size > self._config.entry_log_size_limit_bytes
            or target.pending + len(alive) > PENDING_ENTRIES_MAX
        ):
            await self._finish()
            target = None
        if target is None:
            directory, _ = self._logs.roomiest_directory()
            target = self._target = _Target(await self._logs.create(compacting_in=directory))
            self._mark = (HEADER_SIZE, 0)
        moves = _Moves(log.log_id)
        position = target.end
        start = end = -1
        for i in alive:
            record = records.offsets[i] - LENGTH_SIZE
            # Records that follow each other are one slice.
            if record != end:
                self._add_buffer(target, records, start, end)
                start = record
            end = record + LENGTH_SIZE + records.sizes[i]
            ledger_id, entry_id = records.keys[i]
            moves.ledger_ids.append(ledger_id)
            moves.entry_ids.append(entry_id)
            moves.old_offsets.append(records.offsets[i])
            moves.new_offsets.append(position + LENGTH_SIZE)
            size = LENGTH_SIZE + records.sizes[i]
            moves.sizes.append(size)
            moves.ledgers[ledger_id] = moves.ledgers.get(ledger_id, 0) + size
            position += size
        self._add_buffer(target, records, start, end)
        target.moves.append(moves)
        target.pending += len(alive)
        if target.buffered >= WRITE_SIZE_BYTES or len(target.buffers) >= WRITE_BUFFERS_MAX:
            await self._write(target)

    def _add_buffer(self, target: _Target, records: RecordSlice, start: int, end: int) -> None:
        if start >= 0:
            target.buffers.append(records.data[start - records.origin : end - records.origin])
            target.buffered += end - start

    async def _write(self, target: _Target) -> None:
        buffers, target.buffers = target.buffers, []
        size, target.buffered = target.buffered, 0
        if not size:
            return
        file = self._logs.file(target.log)
        await self._disk.run(file.pwrite, buffers, target.log.size_bytes)
        target.log.size_bytes += size
        target.unsynced += size
        if target.unsynced >= self._config.flush_entry_log_bytes:
            # As in the flush: dirty pages are bounded, their write-back would stall the journal.
            size, target.unsynced = target.unsynced, 0
            end = target.log.size_bytes
            await file.wait_synced()
            file.drop_cached(size, end - size)  # what is old enough to be moved is seldom read

    def _take_back(self) -> None:
        """Forgets what was copied of the last log."""
        target = self._target
        if target is None:
            return
        end, count = self._mark
        if end < target.log.size_bytes:
            self._logs.file(target.log).truncate(end)
            target.log.size_bytes = end
        # What is not written yet and is to be kept stands in front.
        kept: list[Buffer] = []
        target.buffered = left = end - target.log.size_bytes
        for buffer in target.buffers:
            kept.append(memoryview(buffer)[:left])
            left -= len(kept[-1])
        target.buffers = kept
        del target.moves[count:]
        target.pending = sum(len(moves.sizes) for moves in target.moves)

    async def _finish(self) -> None:
        """Steps 2 to 5, for what was copied."""
        if (target := self._target) is not None:
            if not target.moves:
                self._discard()
            else:
                await self._write(target)
                target.log.ledgers = await self._ledgers_of(target.moves)
                await self._logs.write_map(target.log)
                # Not left in the middle, but when the bookie has ended: it is short.
                with trio.CancelScope(shield=True) as self._scope:
                    self._check_running()
                    await self._switch(target)
                self._check_running()
        elif self._copied:
            # Nothing in them is alive by what the index says now. A switch that found no space may
            # have told it so, and power that fails would take that back.
            await self._disk.run(self._index.sync)
            self._check_running()
        await self._remove_copied()

    async def _switch(self, target: _Target) -> None:
        log = target.log
        # From here on the index may refer to it: it is not thrown away any more.
        self._target = None
        try:
            moved = await self._repoint(target)
            await self._disk.run(self._index.sync)
            await self._logs.publish(log)
        except OSError:
            # If it was for want of space, it is like after a crash: see the collector.
            log.doubt()
            log.is_written = False
            raise
        log.ledgers = moved
        await self._logs.walk.settle(log)
        log.is_written = False
        self._report.copied_bytes += log.size_bytes
        self._report.copied_entries += target.pending
        self._report.reclaimed_bytes -= log.size_bytes

    async def _ledgers_of(self, all_moves: list[_Moves]) -> dict[int, int]:
        ledgers: dict[int, int] = {}
        slices = Slices(MOVED_PER_TURN)
        for moves in all_moves:
            if slices.due(len(moves.ledgers)):
                await slices.turn()
            for ledger_id, size in moves.ledgers.items():
                ledgers[ledger_id] = ledgers.get(ledger_id, 0) + size
        return ledgers

    async def _repoint(self, target: _Target) -> dict[int, int]:
        """Bytes by ledger of what the index now says is in the target."""
        moved: dict[int, int] = {}
        base = target.log.log_id << 32
        for moves in target.moves:
            self._repoint_slice(base, moves, moved)
            await trio.lowlevel.checkpoint()
        return moved

    def _repoint_slice(self, base: int, moves: _Moves, moved: dict[int, int]) -> None:
        """Compares and sets; nothing else runs in between."""
        old_base = moves.log_id << 32
        found = self._index.get_many(list(zip(moves.ledger_ids, moves.entry_ids, strict=True)))
        by_ledger: dict[int, tuple[array[int], array[int]]] = {}
        for i, ledger_id in enumerate(moves.ledger_ids):
            if found[i] != old_base | moves.old_offsets[i]:
                continue
            entry_ids, locations = by_ledger.setdefault(ledger_id, (array("q"), array("q")))
            entry_ids.append(moves.entry_ids[i])
            locations.append(base | moves.new_offsets[i])
            moved[ledger_id] = moved.get(ledger_id, 0) + moves.sizes[i]
        for ledger_id, (entry_ids, locations) in by_ledger.items():
            self._index.put(ledger_id, entry_ids, locations)

    async def _remove_copied(self) -> None:
        logs, self._copied = self._copied, []
        for log in logs:
            if self._logs.get(log.log_id) is log:
                self._report.compacted_logs += 1
                self._report.reclaimed_bytes += log.size_bytes
                self._logs.remove(log)
        await self._logs.close_removed_later()

    def _discard(self) -> None:
        """Removes a target that nothing refers to."""
        target, self._target = self._target, None
        self._copied.clear()
        if target is not None and not self._is_stopped:
            target.log.is_written = False
            self._logs.remove(target.log)
