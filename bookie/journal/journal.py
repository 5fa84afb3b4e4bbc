"""The journal: what makes an add durable (features 5, 6).

Records are appended by reference to the write cache's memory; records that follow each other there
stay one slice. All that was appended in a burst of input becomes one group: one checksum, one
`pwritev`, one sync, and then every waiting `done(Status.EOK)` is called in the order of appending.
While a sync runs the next group builds.

What is written in one turn of the loop is bounded: copying a large group into cold page cache takes
longer than others may wait. The rest of it follows in later turns; before all of it is written it
is no part of the journal, as after a torn write.

Records under deferred sync (`append_unsynced`) are answered once their group is written, which may
be beside a running sync and is before a sync that would hold the loop. A FORCE cuts the journal and
waits for that group (`cut`, `wait_durable`), so it covers every record answered before it.

Owner: the event loop's thread. A state machine without a task: it moves when records are appended
(at the end of the turn), when a sync finishes, and when a new file is ready.

Of runs of at least `journal_kept_entry_min_bytes` it tells where they are in the journal
(`placements`), for those who let large entries stay there (bookie/storage/adopted.py).

Invariants:
- `done` is called only after the sync that covers its record, never twice, in order; but that of
  `append_unsynced` after the write, and the sync follows without being asked for;
- groups are numbered without a gap over all files; a file is left only when all of it is synced;
- the first OSError ends the journal: nothing is written or acknowledged after it (invariant B7).
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import trio

from bookie.journal.group import Group, JournalStatistics, Placement
from bookie.journal.journal_format import (
    FORCE,
    GROUP_HEADER_SIZE,
    NO_LEDGER,
    GroupHeader,
    Position,
    filler,
    first_group_offset,
    pack_group_header,
    padding_size,
    special_record,
)
from runtime.env import RealClock
from wire.bookkeeper.status import Status
from wire.checksum import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.journal.group import Done
    from bookie.journal.journal_files import JournalFiles
    from runtime.disk import File
    from runtime.env import Clock
    from runtime.turn import Turn


#: Writing so many bytes costs about a microsecond, the unit of a turn: 2 ms for 1 MiB where the
#: page cache is cold.
TURN_UNIT_BITS = 9


def _told_before(_status: Status) -> None:
    """In the place of a `done` that was called when its record was written."""


class Journal:
    __slots__ = (
        "_alignment",
        "_attest_interval_ms",
        "_attestation",
        "_attested_sequence",
        "_buffered_writes_threshold",
        "_building",
        "_clock",
        "_completed",
        "_completing",
        "_content_sequence",
        "_deferred",
        "_durable",
        "_fail",
        "_failure",
        "_file",
        "_file_size",
        "_files",
        "_group_size_max",
        "_has_written",
        "_is_put_off",
        "_journal_id",
        "_long_run_min",
        "_offset",
        "_progressed",
        "_pumping",
        "_put_off_count",
        "_run_crc",
        "_run_end",
        "_run_start",
        "_run_view",
        "_sealed",
        "_sequence",
        "_statistics",
        "_sync_running",
        "_sync_started_at",
        "_syncing",
        "_syncs_before",
        "_turn",
        "_turn_function",
        "_turn_size",
        "_turn_size_max",
        "_unsynced",
        "_written_before",
        "placements",
        "queued_bytes",
    )

    def __init__(
        self,
        config: BookieConfig,
        turn: Turn,
        files: JournalFiles,
        fail: Callable[[OSError], None],
        progressed: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        """`fail` is told the first error, once; whoever owns the journal ends the bookie.
        `progressed` is called when groups were completed: the queue has room again."""
        self._progressed = progressed
        self._turn = turn
        self._files = files
        self._fail = fail
        self._alignment = config.journal_alignment_bytes
        self._group_size_max = config.journal_group_size_max_bytes
        self._buffered_writes_threshold = config.journal_buffered_writes_threshold_bytes
        #: Bytes to write in one turn, and what is left of them.
        self._turn_size = self._turn_size_max = config.journal_turn_size_max_bytes
        #: `_go_on` will be called, or whoever waits does what it would; the how manieth time.
        self._is_put_off = False
        self._put_off_count = 0
        self._long_run_min = config.journal_kept_entry_min_bytes or sys.maxsize
        #: Of long runs, in the order of writing; whoever knows the views takes them out.
        self.placements: deque[Placement] = deque()
        self._file: File | None = None
        self._file_size = files.size_bytes
        self._journal_id = 0
        self._offset = 0
        self._sequence = 0
        #: Where the last durable group ends.
        self._durable = Position(0, 0, 0)
        #: The last group with records that somebody waited for, and up to which one the group that
        #: was written last says that all were durable (see `attest`).
        self._content_sequence = 0
        self._attested_sequence = 0
        self._attestation: Group | None = None
        self._attest_interval_ms = config.journal_attest_interval_ms
        #: Records appended and not durable yet.
        self.queued_bytes = 0
        # Groups on their way: being filled, full, written, under the running sync.
        self._building = Group()
        self._sealed: deque[Group] = deque()
        self._unsynced: list[Group] = []
        self._syncing: list[Group] = []
        self._completed: deque[Group] = deque()
        # The slice that the next record may still lengthen.
        self._run_view: memoryview | None = None
        self._run_start = 0
        self._run_end = 0
        #: None if it is not known; then it is of no record of the run.
        self._run_crc: int | None = None
        self._deferred = False
        self._pumping = False
        self._completing = False
        self._sync_running = False
        #: Some of `_unsynced` have `written_dones` that were not called yet.
        self._has_written = False
        self._failure: OSError | None = None
        self._turn_function = self._end_of_turn
        self._statistics = JournalStatistics()
        # Of the statistics, when the file was taken into use.
        self._written_before = self._syncs_before = 0
        self._clock = RealClock() if clock is None else clock
        self._sync_started_at = 0.0

    def open(self, sequence: int, offset: int | None = None) -> None:
        """Starts in the file that `files.prepare` made (at `offset`, if it was adopted); groups are
        numbered from `sequence` + 1."""
        assert self._file is None
        assert sequence >= 0
        self._sequence = sequence
        opened = self._next_file()
        assert opened, "the first journal was not prepared"
        if offset is not None:
            assert offset >= self._offset, "groups are behind the file's header"
            self._offset = offset
        self._durable = Position(self._journal_id, self._offset, sequence)

    # Appending.

    def append(
        self, view: memoryview, start: int, end: int, done: Done, crc: int | None = None
    ) -> None:
        """Queues the record in `view[start:end]`, which does not change until `done`. `crc`: its
        CRC32C, if somebody knows it; else it is read for its group's."""
        size = end - start
        run_crc = self._run_crc
        if view is self._run_view and start == self._run_end and (crc is None) is (run_crc is None):
            self._run_end = end
            if crc is not None and run_crc is not None:
                self._run_crc = joined(run_crc, crc, size)
        else:
            self._close_run()
            self._run_view = view
            self._run_start = start
            self._run_end = end
            self._run_crc = crc
        assert size > 0
        group = self._building
        group.dones.append(done)
        group.record_count += 1
        group.size_bytes += size
        self.queued_bytes += size
        if group.size_bytes >= self._group_size_max:
            self._seal()
        if not self._deferred:
            self._start_turn(group)

    def append_unsynced(
        self, view: memoryview, start: int, end: int, done: Done, crc: int | None = None
    ) -> None:
        """As `append`, but `done` is called once the record is written, before the sync (deferred
        sync, invariants D): a crash may lose it, until a group behind it is durable."""
        self._building.written_dones.append(done)
        self.append(view, start, end, _told_before, crc)

    def append_special(self, record: bytes) -> Group:
        """Queues a record that is no entry; `wait_durable` with the group waits for it."""
        assert record
        self._close_run()
        group = self._building
        group.buffers.append(record)
        group.record_count += 1
        group.size_bytes += len(record)
        self.queued_bytes += len(record)
        if not self._deferred:
            self._start_turn(group)
        return group

    def _start_turn(self, group: Group) -> None:
        """Once for the first record of a burst."""
        assert not self._deferred
        self._deferred = True
        self._turn.defer_last(self._turn_function)
        now = self._clock.monotonic()
        if group.record_count == 1:
            group.appended_at = now
        if group is not self._building:  # the record was so large that it filled the group
            self._building.appended_at = now

    def attest(self) -> bool:
        """If nothing is on its way: appends a group that says that all before it are durable,
        unless one has said so. Returns whether it did.

        Without it, damage in the last group cannot be told from a write that the crash tore."""
        if self._attested_sequence >= self._content_sequence or self._failure is not None:
            return False
        if self._sync_running or self._unsynced or self._sealed or self._building.record_count:
            return False
        assert not self.queued_bytes, "nothing is on its way, and some of it is counted"
        self._attestation = self.append_special(special_record(NO_LEDGER, FORCE))
        self._seal()
        return True

    async def attest_when_idle(self) -> None:
        """`attest` whenever nothing was added for a while, until cancelled."""
        groups = -1
        while self._attest_interval_ms > 0:
            await trio.sleep(self._attest_interval_ms / 1000)
            if groups == self._statistics.groups:
                self.attest()
            groups = self._statistics.groups

    def cut(self) -> Group:
        """Ends the group that is being filled. What is appended from now on goes to later groups
        than the one that is returned, which has all that was appended before, or is empty and
        stands for the present end of the journal."""
        self._close_run()
        if self._building.record_count:
            self._seal()
        assert not self._building.buffers
        assert self._run_view is None
        for groups in (self._sealed, self._unsynced, self._syncing, self._completed):
            if groups:
                assert groups[-1].record_count
                return groups[-1]
        assert self._durable.sequence == self._sequence, "a group was written and is nowhere"
        durable = Group()
        durable.end = self._durable
        return durable

    async def wait_durable(self, group: Group) -> Position:
        """Waits until the group is synced; where it ends. Raises the journal's OSError."""
        while not self.is_durable(group):
            if self._failure is not None:
                raise self._failure
            if self._is_put_off:  # while stopping, nobody may be there to run the turn
                count = self._put_off_count
                await trio.lowlevel.checkpoint()
                self._go_on(count)
                continue
            if group.synced is None:
                group.synced = trio.Event()
            await group.synced.wait()
        assert group.end is not None
        assert group.end.sequence <= self._sequence
        return group.end

    def is_durable(self, group: Group) -> bool:
        return group.end is not None and group.end.sequence <= self._durable.sequence

    def _close_run(self) -> None:
        if self._run_view is not None:
            assert 0 <= self._run_start < self._run_end <= len(self._run_view)
            buffers = self._building.buffers
            if self._run_end - self._run_start >= self._long_run_min:
                self._building.long_runs.append(
                    (len(buffers), self._run_view, self._run_start, self._run_end)
                )
            if self._run_crc is not None:
                self._building.crcs[len(buffers)] = self._run_crc
            buffers.append(self._run_view[self._run_start : self._run_end])
            self._run_view = self._run_crc = None

    def _seal(self) -> None:
        self._close_run()
        sealed = self._building
        assert sealed.record_count >= len(sealed.dones)
        assert sealed.buffers
        assert sealed.end is None
        self._sealed.append(sealed)
        self._building = Group()
        if self._deferred:  # the burst goes on
            self._building.appended_at = sealed.appended_at

    # Writing and syncing.

    def _end_of_turn(self) -> None:
        self._deferred = False
        self.pump()

    def pump(self) -> None:
        """Writes what is queued and starts a sync, as far as that is possible now."""
        assert not (self._syncing and not self._sync_running and self._failure is None)
        if self._pumping:
            return
        self._pumping = True
        self._turn_size = self._turn_size_max
        try:
            while self._failure is None and self._step():
                pass
        except OSError as error:
            self.stop(error)
        finally:
            self._pumping = False
        self._complete()

    def _step(self) -> bool:
        """Does what there is to do; true if something new may have become possible."""
        waiting = self._building.size_bytes + sum(group.size_bytes for group in self._sealed)
        if waiting and (
            not self._sync_running
            or waiting >= self._buffered_writes_threshold
            or self._building.written_dones
            or any(group.written_dones for group in self._sealed)
        ):
            self._write_some()
        if self._has_written:
            self._tell_written()
            # A sync may hold the loop up, and the answers are to leave before it.
            self._put_off(self._turn.defer_last)
            return False
        if self._unsynced and not self._sync_running:
            return self._start_sync()
        return False

    def _write_some(self) -> None:
        """As much as there is room for in the journal, and in this turn. What comes while something
        is put off is one group with what comes after it."""
        if self._is_put_off:
            return
        if self._building.record_count:
            self._seal()
        while self._sealed and self._make_room(self._sealed[0]):
            if not self._turn_size:
                self._put_off(self._turn.later)
                return
            # It stays in line until all of it is written, and while that may fail: its adds are
            # refused then.
            if self._write(self._sealed[0]):
                self._sealed.popleft()

    def _put_off(self, until: Callable[[Callable[[], None]], None]) -> None:
        """What is left is done by `until`'s time; whoever waits for it may do so sooner."""
        if self._is_put_off:
            return
        self._is_put_off = True
        self._put_off_count += 1
        until(partial(self._go_on, self._put_off_count))
        for group in self._pending_groups():
            if group.synced is not None:
                group.synced.set()
                group.synced = None

    def _go_on(self, count: int) -> None:
        """Once for each time that it was put off, whoever comes first."""
        if self._is_put_off and count == self._put_off_count and self._file is not None:
            self._is_put_off = False
            self.pump()
            self._turn.spent_units += (self._turn_size_max - self._turn_size) >> TURN_UNIT_BITS

    def _make_room(self, group: Group) -> bool:
        size = GROUP_HEADER_SIZE + group.size_bytes
        size += padding_size(size, self._alignment)
        if self._offset + size <= self._file_size:
            return True
        # The next file's first group tells the replay that this file is complete, so it is
        # written only when that is true.
        return not self._unsynced and not self._sync_running and self._next_file()

    def _next_file(self) -> bool:
        # A file is left only when all of it is synced; `_make_room` asks.
        assert not self._unsynced
        assert not self._sync_running
        written = self._statistics.written_bytes - self._written_before
        syncs = self._statistics.syncs - self._syncs_before
        taken = self._files.take_next(written // max(syncs, 1))
        if taken is None:
            return False
        self._written_before += written
        self._syncs_before += syncs
        assert taken[0] > self._journal_id, "journals are numbered upwards"
        if self._file is not None:
            self._file.close()
        self._journal_id, self._file = taken
        self._offset = first_group_offset(self._alignment)
        self._statistics.files += 1
        return True

    def filled_bytes(self) -> int:
        """Of the file in use, which are written."""
        return self._offset

    def leave(self) -> bool:
        """If nothing is on its way, and the next file is prepared: goes on in that one. Whether it
        does."""
        is_idle = not (self._sync_running or self._unsynced or self._sealed)
        if self._failure is not None or not is_idle or self._building.record_count:
            return False
        if not self._next_file():
            return False
        self._durable = Position(self._journal_id, self._offset, self._sequence)
        return True

    def _write(self, group: Group) -> bool:
        """Writes the group, or what of it there is room for in this turn; whether all of it."""
        assert self._file is not None
        assert group.end is None, "a group is written once"
        start = self._clock.monotonic()
        if group.pieces is None:
            self._begin(group, start)
        pieces, at, size = group.take_pieces(self._turn_size)
        self._file.pwrite(pieces, at)
        self._turn_size -= size
        group.write_seconds += self._clock.monotonic() - start
        if group.pieces:
            return False
        self._finish(group)
        return True

    def _begin(self, group: Group, now: float) -> None:
        """What the group's write is to be. No other one begins before it is finished."""
        assert group.record_count
        assert group.size_bytes == sum(map(len, group.buffers)), "what was counted is written"
        sequence = self._sequence + 1
        assert self._durable.sequence < sequence
        assert self._offset % self._alignment == 0, "groups start aligned"
        header = pack_group_header(
            GroupHeader(
                self._journal_id,
                self._offset,
                sequence,
                self._durable.sequence,
                group.size_bytes,
                group.record_count,
            ),
            group.buffers,
            group.crcs,
        )
        self._attested_sequence = self._durable.sequence
        pieces = group.pieces = deque([header, *group.buffers])
        size = GROUP_HEADER_SIZE + group.size_bytes
        if padding := padding_size(size, self._alignment):
            pieces.append(filler(padding))
        group.pieces_at = self._offset
        group.pieces_end = self._offset + size + padding
        self._statistics.queue_latency.record(now - group.appended_at, group.record_count)

    def _finish(self, group: Group) -> None:
        """All of it is written."""
        assert group.pieces_at == group.pieces_end
        padded_size = group.pieces_end - self._offset
        if group.long_runs:
            self._place(group)
        self._offset += padded_size
        assert self._offset % self._alignment == 0
        assert self._offset <= self._file_size, "`_make_room` was asked"
        self._sequence += 1
        if group is not self._attestation:
            self._content_sequence = self._sequence
        group.end = Position(self._journal_id, self._offset, self._sequence)
        group.buffers = []
        self._unsynced.append(group)
        if group.written_dones:
            self._has_written = True
        statistics = self._statistics
        statistics.groups += 1
        statistics.groups_written_ahead += self._sync_running
        statistics.groups_in_slices += padded_size > self._turn_size_max
        statistics.write_latency.record(group.write_seconds)
        statistics.written_bytes += padded_size

    def _place(self, group: Group) -> None:
        """Notes where the long runs of the group that is written at `_offset` are."""
        at = self._offset + GROUP_HEADER_SIZE
        counted = 0
        for index, view, start, end in group.long_runs:
            at += sum(map(len, group.buffers[counted:index]))
            counted = index
            self.placements.append(Placement(view, start, end, self._journal_id, at))
        group.long_runs = []

    def _tell_written(self) -> None:
        self._has_written = False
        for group in list(self._unsynced):
            assert group.end is not None, "an answer before the write"
            dones, group.written_dones = group.written_dones, []
            for done in dones:
                done(Status.EOK)

    def _start_sync(self) -> bool:
        """True if the sync was done when this returns."""
        assert self._file is not None
        assert self._unsynced
        assert not self._sync_running
        assert not self._syncing
        assert not self._has_written, "those who wait for the write are told before the sync"
        self._syncing, self._unsynced = self._unsynced, []
        self._sync_running = True
        self._statistics.syncs += 1
        self._sync_started_at = self._clock.monotonic()
        self._file.sync(self._synced)
        return not self._sync_running

    def _synced(self, error: OSError | None) -> None:
        assert self._sync_running, "a sync ends once"
        self._sync_running = False
        if error is not None:
            self.stop(error)
            return
        if self._failure is not None:
            return
        self._statistics.sync_latency.record(self._clock.monotonic() - self._sync_started_at)
        groups, self._syncing = self._syncing, []
        for group in groups:
            self.queued_bytes -= group.size_bytes
        assert self.queued_bytes >= 0
        end = groups[-1].end
        assert end is not None
        # Written as `_sequence + 1` each: none is missing among those that are durable now.
        assert end.sequence == self._durable.sequence + len(groups)
        self._durable = end
        self._completed.extend(groups)
        # If this is not `pump`'s own sync, done at once: the next write and sync go on their way
        # before anybody is told, so that the disk works meanwhile.
        self.pump()

    def _complete(self) -> None:
        """Tells those who wait. One of them may append, and so come here again: then the loop that
        is already running tells the others, in order."""
        if self._completing or not self._completed:
            return
        self._completing = True
        try:
            okay = Status.EOK
            completed = self._completed
            statistics = self._statistics
            now = self._clock.monotonic()
            while completed:
                group = completed.popleft()
                assert self.is_durable(group), "an answer before the sync"
                assert not group.written_dones
                statistics.records += group.record_count
                statistics.add_latency.record(now - group.appended_at, group.record_count)
                for done in group.dones:
                    done(okay)
                group.dones = []
                if group.synced is not None:
                    group.synced.set()
        finally:
            self._completing = False
        self._progressed()

    # The end.

    def stop(self, error: OSError) -> None:
        """Ends the journal: an I/O error, whose outcome is unknown and is never retried."""
        if self._failure is not None:
            return
        self._failure = error
        for group in self._pending_groups():
            if group.synced is not None:
                group.synced.set()
        self._fail(error)

    def refuse_pending(self, status: Status) -> None:
        """After the end: answers every add that will never be acknowledged."""
        assert self._failure is not None
        for group in self._pending_groups():
            assert not self.is_durable(group), "durable, and refused"
            dones, group.dones = [*group.written_dones, *group.dones], []
            group.written_dones = []
            for done in dones:
                done(status)

    def _pending_groups(self) -> list[Group]:
        return [*self._syncing, *self._unsynced, *self._sealed, self._building]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def statistics(self) -> JournalStatistics:
        """The live counters; the caller does not change them."""
        self._statistics.queued_bytes = self.queued_bytes
        return self._statistics
