"""The journal's files: made ahead, written once before use, reused (journalReuseFiles).

A sync is about half as long if the file does not grow and its blocks were written before, so the
journal writes into such files, unless its syncs are large and its files are used only once. The
next one is prepared in the background under its final name; taking it into use is no more than
turning to it. Were the one in use full before, all writes would wait: where it fills up faster than
the next one is written ahead, what is left of that is only allocated. A journal whose records are
all in entry logs becomes a spare; the identity in each group's header keeps its old bytes from
being taken for records of its next life.

Owner: the event loop's thread; slow calls go through `Disk.run`.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import trio

from bookie.journal.journal_format import (
    FILE_HEADER_SIZE,
    align,
    file_name,
    filler,
    journal_id_of,
    pack_file_header,
    parse_file_header,
)
from runtime.disk import FREE_AT_ONCE, is_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from runtime.disk import Disk, File

logger = logging.getLogger(__name__)

SPARE_PREFIX = "spare-"
UNFINISHED_NAME = "unfinished"
ALLOCATE_SLICE_SIZE_BYTES = 1024 * 1024
#: Of the first journal of a process, beside which none is in use: a sync and two hops between
#: threads for each MiB of it were a twentieth of a start's processor time, and more of its time.
FIRST_SLICE_SIZE_BYTES = 8 * ALLOCATE_SLICE_SIZE_BYTES
FULL_RETRY_SECONDS = 1.0
#: A new journal that will be an entry log is allocated and not written ahead, if a sync has this
#: much on average: a sync takes up to twice as long there (`python -m bench.journal_files`), but
#: writing ahead is writing all of it twice.
UNWRITTEN_SYNC_MIN_BYTES = 512 << 10


def list_journals(disk: Disk, directory: str) -> list[int]:
    """The ids of the journals in a directory, ascending."""
    ids = [journal_id_of(name) for name in disk.list(directory)]
    return sorted(journal_id for journal_id in ids if journal_id is not None)


class JournalFiles:
    __slots__ = (
        "_are_adopted",
        "_config",
        "_directory",
        "_disk",
        "_filled",
        "_has_room",
        "_is_waited_for",
        "_last_journal_id",
        "_needed",
        "_next",
        "_sync_bytes",
        "_used",
        "size_bytes",
    )

    def __init__(self, config: BookieConfig, disk: Disk, directory: str) -> None:
        self._config = config
        self._disk = disk
        self._directory = directory
        self.size_bytes = align(config.journal_size_bytes, config.journal_alignment_bytes)
        self._last_journal_id = 0
        self._next: tuple[int, File] | None = None
        self._needed = trio.Event()
        #: Those that were left last became entry logs, so the next one will.
        self._are_adopted = False
        self._sync_bytes = 0
        #: Bytes of the journal in use that are written.
        self._filled: Callable[[], int] = lambda: 0
        #: All writes wait for the next journal.
        self._is_waited_for = False
        self._has_room: Callable[[bool], None] = lambda _: None
        #: Ids of journals that were written, or left by an earlier life: not yet recycled.
        self._used: set[int] = set()

    def load(self, last_journal_id: int) -> None:
        """Takes note of what an earlier life left; new ids are above all of them and above
        `last_journal_id`, the mark's."""
        self._used = set(list_journals(self._disk, self._directory))
        self._last_journal_id = max(self._used, default=0)
        self._last_journal_id = max(self._last_journal_id, last_journal_id)

    def take_next(self, sync_bytes: int = 0) -> tuple[int, File] | None:
        """The prepared journal (its id, the file), or None while it is not ready yet. `sync_bytes`:
        of a sync of the one before, on average."""
        self._sync_bytes = sync_bytes
        taken, self._next = self._next, None
        self._is_waited_for = taken is None
        if taken is not None:
            assert taken[0] <= self._last_journal_id
            self._used.add(taken[0])
        self._needed.set()
        return taken

    def on_room(self, function: Callable[[bool], None]) -> None:
        """`function(False)` when the next journal found no space, `function(True)` each time one
        is ready."""
        self._has_room = function

    async def run(self, kick: Callable[[], None], filled: Callable[[], int]) -> None:
        """Prepares the next journal whenever there is none, then calls `kick`. `filled()`: bytes of
        the one in use that are written. Never returns. OSError if a disk call fails; if there is no
        space, it is tried again and again."""
        self._filled = filled
        while True:
            if self._next is not None:
                await self._needed.wait()
            self._needed = trio.Event()
            if self._next is None:
                try:
                    await self.prepare()
                except OSError as error:
                    if not is_full(error):
                        raise
                    self._has_room(False)
                    # A checkpoint may make a spare of a journal that is in use now.
                    await trio.sleep(FULL_RETRY_SECONDS)
                    continue
                self._has_room(True)
                kick()

    async def go_on_in(self, journal_id: int, end: int, group_end: int) -> None:
        """Takes an earlier life's last journal for the next one, to go on at `end`: on a disk that
        is full no other can be made. What a crash left behind `end` becomes zeros first, or it
        could be taken for what follows; and what fills up from the end of the last group is
        written again, for no checksum tells whether it is there. ValueError if it was made with
        other settings; OSError."""
        assert self._next is None
        path = f"{self._directory}/{file_name(journal_id)}"
        file = self._disk.open(path)
        header = pack_file_header(journal_id, self._config.journal_alignment_bytes, self.size_bytes)
        found = parse_file_header(file.pread(FILE_HEADER_SIZE, 0))  # the replay has, so it can be
        if file.size() != self.size_bytes or found != parse_file_header(header):
            file.close()
            raise ValueError(f"{path} was made with other settings")
        if file.pread(len(header), 0) != header:
            # The crash tore the block while it was written: no group is behind it.
            file.pwrite([header], 0)
        for at in range(end, self.size_bytes, ALLOCATE_SLICE_SIZE_BYTES):
            size = min(ALLOCATE_SLICE_SIZE_BYTES, self.size_bytes - at)
            await self._disk.run(file.allocate, size, at)
        if group_end < end:
            file.pwrite([filler(end - group_end)], group_end)
        await file.wait_synced()
        self._next = (journal_id, file)

    async def prepare(self, slice_size_bytes: int = ALLOCATE_SLICE_SIZE_BYTES) -> None:
        """Makes the next journal: a spare with a new header, or a new file full of zeros, which
        are written and synced so many at a time, or allocated. When it returns, the file and its
        name are durable."""
        disk, config = self._disk, self._config
        assert self._next is None
        journal_id = self._last_journal_id + 1
        assert journal_id not in self._used
        path = f"{self._directory}/{file_name(journal_id)}"
        source = self._find_spare()
        if source is None:
            source = f"{self._directory}/{UNFINISHED_NAME}"
            await self._make_file(source, slice_size_bytes)
        disk.rename(source, path)
        self._last_journal_id = journal_id
        file = disk.open(path)
        header = pack_file_header(journal_id, config.journal_alignment_bytes, self.size_bytes)
        try:
            file.pwrite([header], 0)
            await file.wait_synced()
            await disk.run(disk.sync_directory, self._directory)
        except BaseException:
            file.close()
            raise
        self._next = (journal_id, file)

    def _find_spare(self) -> str | None:
        """A spare of the right size; others are removed."""
        for name in self._disk.list(self._directory):
            if name.startswith(SPARE_PREFIX):
                path = f"{self._directory}/{name}"
                file = self._disk.open(path)
                size = file.size()
                file.close()
                if size == self.size_bytes:
                    return path
                self._disk.remove(path)
        return None

    async def _make_file(self, path: str, slice_size_bytes: int) -> None:
        if self._disk.exists(path):
            self._disk.remove(path)  # a crash left it; its space is counted as free then
        _, free = self._disk.usage(self._directory)
        if free < self.size_bytes:
            # Not tried: half a journal would take the space from those who can use it.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        file = self._disk.open(path, create=True)
        try:
            is_allocated = self._are_adopted and self._sync_bytes >= UNWRITTEN_SYNC_MIN_BYTES
            for at in range(0, self.size_bytes, slice_size_bytes):
                is_late = self._is_waited_for or self._filled() > at + slice_size_bytes
                if is_allocated or is_late:
                    await self._disk.run(file.preallocate, self.size_bytes)
                    await file.wait_synced()
                    return
                # In slices, each synced: a journal's worth of dirty pages at once would make the
                # syncs of the journal in use wait behind them.
                size = min(slice_size_bytes, self.size_bytes - at)
                await self._disk.run(file.allocate, size, at)
                await file.wait_synced()
        except OSError as error:
            if is_full(error):
                self._disk.remove(path)
            raise
        finally:
            file.close()

    async def recycle(self, mark_journal_id: int) -> None:
        """Journals before the mark's are not needed any more: a few become spares, the others are
        removed. Call it only when the mark is durable."""
        assert mark_journal_id <= self._last_journal_id
        old = sorted(journal_id for journal_id in self._used if journal_id < mark_journal_id)
        if not old:
            return
        names = set(self._disk.list(self._directory))
        removed: list[File] = []
        adopted = False
        spare_count = sum(name.startswith(SPARE_PREFIX) for name in names)
        for journal_id in old:
            name = file_name(journal_id)
            if name in names:
                path = f"{self._directory}/{name}"
                if self._disk.link_count(path) > 1:
                    # It is an entry log too (bookie/storage/adopted.py), and nothing else from now.
                    self._disk.remove(path)
                    adopted = True
                elif spare_count < self._config.journal_spare_files_max:
                    self._disk.rename(path, f"{self._directory}/{SPARE_PREFIX}{journal_id:x}")
                    spare_count += 1
                else:
                    removed.append(self._disk.open(path))
                    self._disk.remove(path)
            assert journal_id < mark_journal_id, "the mark's and all behind it are needed"
            self._used.discard(journal_id)
        self._are_adopted = adopted
        await self._disk.run(self._disk.sync_directory, self._directory)
        for file in removed:
            while not await self._disk.run(file.discard, FREE_AT_ONCE):
                pass
        logger.debug("journals recycled before=%x count=%d", mark_journal_id, len(old))

    def close(self) -> None:
        if self._next is not None:
            self._next[1].close()
            self._next = None
