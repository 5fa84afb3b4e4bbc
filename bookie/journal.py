"""The journal: what makes an add durable (features.md #5, #6; ledgers.md 3.1).

Records are appended by reference to the write cache's memory; records that follow each other there
stay one slice. All that was appended in a burst of input becomes one group: one checksum, one
`pwritev`, one sync, and then every waiting `done(Status.EOK)` is called in the order of appending.
While a sync runs the next group builds.

Owner: the event loop's thread. A state machine without a task: it moves when records are appended
(at the end of the turn), when a sync finishes, and when a new file is ready.

Invariants:
- `done` is called only after the sync that covers its record, never twice, in order;
- groups are numbered without a gap over all files; a file is left only when all of it is synced;
- the first OSError ends the journal: nothing is written or acknowledged after it (ledgers.md
  2.5.7).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bookie.journal_format import (
    GROUP_HEADER_SIZE,
    GroupHeader,
    Position,
    align,
    pack_group_header,
)
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.journal_files import JournalFiles
    from runtime.disk import File
    from runtime.turn import Turn
    from wire.buffers import Buffer

    Done = Callable[[Status], None]


class Group:
    """Records that are written and synced together, and who waits for them."""

    __slots__ = ("buffers", "dones", "end", "record_count", "size_bytes", "synced")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.dones: list[Done] = []
        self.size_bytes = 0
        self.record_count = 0
        #: Where it ends in the journal, once it was written.
        self.end: Position | None = None
        #: Set on demand, by those who wait without a `done`.
        self.synced: trio.Event | None = None


@dataclass(slots=True)
class JournalStatistics:
    records: int = 0
    groups: int = 0
    syncs: int = 0
    written_bytes: int = 0
    queued_bytes: int = 0
    files: int = 0


class Journal:
    __slots__ = (
        "_alignment",
        "_buffered_writes_threshold",
        "_building",
        "_completed",
        "_completing",
        "_deferred",
        "_durable",
        "_fail",
        "_failure",
        "_file",
        "_file_size",
        "_files",
        "_group_size_max",
        "_journal_id",
        "_offset",
        "_progressed",
        "_pumping",
        "_run_end",
        "_run_start",
        "_run_view",
        "_sealed",
        "_sequence",
        "_statistics",
        "_sync_running",
        "_syncing",
        "_turn",
        "_turn_function",
        "_unsynced",
        "queued_bytes",
    )

    def __init__(
        self,
        config: BookieConfig,
        turn: Turn,
        files: JournalFiles,
        fail: Callable[[OSError], None],
        progressed: Callable[[], None],
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
        self._file: File | None = None
        self._file_size = files.size_bytes
        self._journal_id = 0
        self._offset = 0
        self._sequence = 0
        #: Where the last durable group ends.
        self._durable = Position(0, 0, 0)
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
        self._deferred = False
        self._pumping = False
        self._completing = False
        self._sync_running = False
        self._failure: OSError | None = None
        self._turn_function = self._end_of_turn
        self._statistics = JournalStatistics()

    def open(self, sequence: int) -> None:
        """Starts in the file that `files.prepare` made; groups are numbered from `sequence` + 1."""
        self._sequence = sequence
        opened = self._next_file()
        assert opened, "the first journal was not prepared"
        self._durable = Position(self._journal_id, self._offset, sequence)

    # Appending.

    def append(self, view: memoryview, start: int, end: int, done: Done) -> None:
        """Queues the record in `view[start:end]`, which does not change until `done`."""
        if view is self._run_view and start == self._run_end:
            self._run_end = end
        else:
            self._close_run()
            self._run_view = view
            self._run_start = start
            self._run_end = end
        size = end - start
        group = self._building
        group.dones.append(done)
        group.record_count += 1
        group.size_bytes += size
        self.queued_bytes += size
        if group.size_bytes >= self._group_size_max:
            self._seal()
        if not self._deferred:
            self._deferred = True
            self._turn.defer(self._turn_function)

    def append_special(self, record: bytes) -> Group:
        """Queues a record that is no entry; `wait_durable` with the group waits for it."""
        self._close_run()
        group = self._building
        group.buffers.append(record)
        group.record_count += 1
        group.size_bytes += len(record)
        self.queued_bytes += len(record)
        if not self._deferred:
            self._deferred = True
            self._turn.defer(self._turn_function)
        return group

    def cut(self) -> Group:
        """Ends the group that is being filled. What is appended from now on goes to later groups
        than the one that is returned, which has all that was appended before, or is empty and
        stands for the present end of the journal."""
        self._close_run()
        if self._building.record_count:
            self._seal()
        for groups in (self._sealed, self._unsynced, self._syncing, self._completed):
            if groups:
                return groups[-1]
        durable = Group()
        durable.end = self._durable
        return durable

    async def wait_durable(self, group: Group) -> Position:
        """Waits until the group is synced; where it ends. Raises the journal's OSError."""
        while not self.is_durable(group):
            if self._failure is not None:
                raise self._failure
            if group.synced is None:
                group.synced = trio.Event()
            await group.synced.wait()
        assert group.end is not None
        return group.end

    def is_durable(self, group: Group) -> bool:
        return group.end is not None and group.end.sequence <= self._durable.sequence

    def _close_run(self) -> None:
        if self._run_view is not None:
            self._building.buffers.append(self._run_view[self._run_start : self._run_end])
            self._run_view = None

    def _seal(self) -> None:
        self._close_run()
        self._sealed.append(self._building)
        self._building = Group()

    # Writing and syncing.

    def _end_of_turn(self) -> None:
        self._deferred = False
        self.pump()

    def pump(self) -> None:
        """Writes what is queued and starts a sync, as far as that is possible now."""
        if self._pumping:
            return
        self._pumping = True
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
        if waiting and (not self._sync_running or waiting >= self._buffered_writes_threshold):
            if self._building.record_count:
                self._seal()
            while self._sealed and self._make_room(self._sealed[0]):
                self._write(self._sealed.popleft())
        if self._unsynced and not self._sync_running:
            return self._start_sync()
        return False

    def _make_room(self, group: Group) -> bool:
        size = align(GROUP_HEADER_SIZE + group.size_bytes, self._alignment)
        if self._offset + size <= self._file_size:
            return True
        # The next file's first group tells the replay that this file is complete, so it is
        # written only when that is true.
        return not self._unsynced and not self._sync_running and self._next_file()

    def _next_file(self) -> bool:
        taken = self._files.take_next()
        if taken is None:
            return False
        if self._file is not None:
            self._file.close()
        self._journal_id, self._file = taken
        self._offset = self._alignment
        self._statistics.files += 1
        return True

    def _write(self, group: Group) -> None:
        assert self._file is not None
        sequence = self._sequence + 1
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
        )
        size = GROUP_HEADER_SIZE + group.size_bytes
        padded_size = align(size, self._alignment)
        self._file.pwrite([header, *group.buffers, bytes(padded_size - size)], self._offset)
        self._offset += padded_size
        self._sequence = sequence
        group.end = Position(self._journal_id, self._offset, sequence)
        group.buffers = []
        self._unsynced.append(group)
        statistics = self._statistics
        statistics.groups += 1
        statistics.written_bytes += padded_size

    def _start_sync(self) -> bool:
        """True if the sync was done when this returns."""
        assert self._file is not None
        self._syncing, self._unsynced = self._unsynced, []
        self._sync_running = True
        self._statistics.syncs += 1
        self._file.sync(self._synced)
        return not self._sync_running

    def _synced(self, error: OSError | None) -> None:
        self._sync_running = False
        if error is not None:
            self.stop(error)
            return
        if self._failure is not None:
            return
        groups, self._syncing = self._syncing, []
        for group in groups:
            self.queued_bytes -= group.size_bytes
        end = groups[-1].end
        assert end is not None
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
            while completed:
                group = completed.popleft()
                self._statistics.records += group.record_count
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
            dones, group.dones = group.dones, []
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
