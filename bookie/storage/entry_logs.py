"""Entry logs: the entries of all ledgers, in the order of the flushes (feature 7).

A location, as the index keeps it, is `log id << 32 | offset of the entry, after its length`.

Logs that are being written have a writer each (bookie/storage/entry_log_writer.py), or are journals
still (bookie/storage/adopted.py). All others are complete: they are only read, until every ledger
in them is deleted; then the file is removed.

Owner: the event loop's thread; slow calls go through `Disk.run`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

import trio

from bookie.errors import BookieStartError, CorruptionError
from bookie.storage.entry_log import EntryLog
from bookie.storage.entry_log_format import (
    COMPACTING_SUFFIX,
    HEADER_SIZE,
    LENGTH_SIZE,
    MAP_BATCH_COUNT,
    MAP_ENTRY_ID,
    MAP_LEDGER_ID,
    RECORD_START,
    RECORD_START_SIZE,
    MapBatch,
    log_id_of,
    log_name,
    pack_header,
    pack_map_batch,
    pack_map_items,
    read_adopted_journal_id,
    unpack_map_batch,
)
from bookie.storage.ledgers_map import LedgersMap, outline_map
from bookie.storage.map_walk import MapWalk
from bookie.storage.removed_files import RemovedFiles
from bookie.storage.sorting import sort_in_slices
from runtime.disk import is_full
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from bookie.config import BookieConfig
    from bookie.storage.ledger_directories import LedgerDirectories
    from runtime.disk import Disk, File

logger = logging.getLogger(__name__)

#: Ledgers in the logs' maps that are looked at before the loop gets its turn, and what it costs to
#: remove a log, in those.
DROPPED_PER_TURN = 10_000
REMOVAL_UNITS = 1000
#: What it costs to look whether a log is dead, in those.
LOG_UNITS = 4
#: Removed logs that are open until they are freed: this share of openFileLimit, or so many.
REMOVED_SHARE = 4
REMOVED_MIN = 8
#: Ledgers that are written into a map in one turn.
MAP_ITEMS_PER_TURN = 2000


class EntryLogs:
    __slots__ = (
        "_config",
        "_directories",
        "_directory",
        "_disk",
        "_has_dead",
        "_last_log_id",
        "_logs",
        "_open",
        "_removed_max",
        "adopted",
        "adopted_count",
        "deleted_bytes",
        "removed",
        "walk",
    )

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        directory: str,
        directories: LedgerDirectories | None = None,
    ) -> None:
        """`directories`, if there are more than `directory`."""
        self._config = config
        self._disk = disk
        self._directory = directory
        self._directories = directories
        self._logs: dict[int, EntryLog] = {}
        #: Logs with an open file, the one used last at the end.
        self._open: OrderedDict[int, EntryLog] = OrderedDict()
        self._last_log_id = -1
        #: Forgets ledgers in the logs whose maps are on disk.
        self.walk = MapWalk(self, disk)
        #: By their journals' ids, those that are journals still. What is in them is not known
        #: before the start has looked into the checkpoint.
        self.adopted: dict[int, EntryLog] = {}
        #: Still open; with more of them dead logs wait until some are freed.
        self.removed = RemovedFiles(disk)
        self._removed_max = max(REMOVED_MIN, config.entry_log_open_files_max // REMOVED_SHARE)
        self._has_dead = False
        #: Size of the logs that went because all of their ledgers were deleted.
        self.deleted_bytes = 0
        #: Journals that became entry logs in this life.
        self.adopted_count = 0

    # Start.

    async def load(self, last_log_id: int, known: Set[int] = frozenset()) -> None:
        """Finds the logs of earlier lives and reads their ledgers maps; the collector need not look
        at those that have none but `known` ledgers. New logs get ids above theirs and above
        `last_log_id`, which the checkpoint knows: no id is used twice."""
        self._last_log_id = last_log_id
        directories = self._directories.paths if self._directories else (self._directory,)
        for directory in directories:
            # A log that an earlier life removed may not be gone for good: its id would be used
            # again, in another directory, and be in both after the power failed.
            self._disk.sync_directory(directory)
        found = [
            (log_id, f"{directory}/{name}")
            for directory in directories
            for name in self._disk.list(directory)
            if (log_id := log_id_of(name.removesuffix(COMPACTING_SUFFIX))) is not None
        ]
        for log_id, path in found:
            if log_id in self._logs:
                raise BookieStartError(f"{path} and {self._logs[log_id].path} have the same id")
            log = await self._disk.run(self._load_log, log_id, path, known)
            self._last_log_id = max(self._last_log_id, log_id)
            if log.journal_id >= 0:
                self.adopted[log.journal_id] = log
            if log.is_compacting and not log.is_known and not log.is_doubtful:
                # Its compaction did not come as far as telling the index of it.
                assert log.file is not None
                log.file.close()
                self._disk.remove(path)
                continue
            if log.is_compacting:
                log.doubt()
            self._logs[log_id] = log
            self._opened(log)

    def _load_log(self, log_id: int, path: str, known: Set[int]) -> EntryLog:
        """On a worker thread: there are thousands, with maps of thousands of ledgers each."""
        file = self._disk.open(path)
        log = EntryLog(log_id, path, file.size(), None, file=file)
        try:
            log.map = outline_map(file, known)
        except CorruptionError as error:
            # A log that has no more than a torn header was being made when the crash came.
            log.is_doubtful = log.size_bytes > HEADER_SIZE
            logger.warning("entry log without a readable map: %s", error)
        else:
            if log.map is not None:
                log.records_end = log.map.offset
            else:
                log.journal_id = read_adopted_journal_id(file)
                log.is_written = log.journal_id >= 0
        return log

    def incomplete(self) -> list[EntryLog]:
        """Logs of earlier lives that never got a ledgers map, in the order of writing."""
        return [log for log in self.unknown() if not log.is_doubtful]

    def unknown(self) -> list[EntryLog]:
        """Logs of which it is not known what is in them, and that nobody writes."""
        return [
            log
            for log_id, log in sorted(self._logs.items())
            if not log.is_known and not log.is_written
        ]

    def all(self) -> list[EntryLog]:
        return list(self._logs.values())

    def scan(self, log: EntryLog, start: int) -> Iterator[tuple[int, int, int, int]]:
        """(ledger id, entry id, offset of the entry, its size) of the records from `start` on,
        up to the end or to the first that cannot be one."""
        file = self.file(log)
        at = start
        while at + RECORD_START_SIZE <= log.size_bytes:
            length, ledger_id, entry_id = RECORD_START.unpack(file.pread(RECORD_START_SIZE, at))
            end = at + LENGTH_SIZE + length
            if (ledger_id, entry_id) == (MAP_LEDGER_ID, MAP_ENTRY_ID) and length > 0:
                at = end
                continue
            if length < RECORD_START_SIZE - LENGTH_SIZE or end > log.size_bytes or ledger_id < 0:
                return
            yield ledger_id, entry_id, at + LENGTH_SIZE, length
            at = end

    async def complete(self, log: EntryLog, end: int, ledgers: dict[int, int]) -> None:
        """Gives a log that a crash left without one its ledgers map; `end` is where its records
        end, what is beyond is cut off."""
        file = self.file(log)
        file.truncate(end)
        log.size_bytes = end
        log.ledgers = ledgers
        try:
            await self.write_map(log)
        except OSError:
            log.ledgers = None  # still incomplete, should it be tried again
            raise
        await self.walk.settle(log)

    # Making logs: for their writers.

    def roomiest_directory(self) -> tuple[str, int]:
        """Of the ledger directories the one with the most free space, and how much. OSError."""
        paths = self._directories.paths if self._directories else (self._directory,)
        free, path = max((self._disk.usage(path)[1], path) for path in paths)
        return path, free

    async def create(self, *, compacting_in: str | None = None) -> EntryLog:
        """A new log with its header, durable, its name too; `is_written` is set. OSError.

        `compacting_in`: the directory, for a log of compaction; it has another name until it is
        `publish`ed, so a crash leaves nothing that could be taken for an entry log."""
        log_id = self._last_log_id = self._last_log_id + 1
        if compacting_in is not None:
            directory, suffix = compacting_in, COMPACTING_SUFFIX
        else:
            directory = self._directories.choose() if self._directories else self._directory
            suffix = ""
        path = f"{directory}/{log_name(log_id)}{suffix}"
        file = self._disk.open(path, create=True, exclusive=True)
        try:
            file.pwrite([pack_header(0, 0)], 0)
        except OSError:
            file.close()
            self._disk.remove(path)
            raise
        await file.wait_synced()
        await self._disk.run(self._disk.sync_directory, directory)
        log = EntryLog(log_id, path, HEADER_SIZE, {}, is_written=True, file=file)
        self._logs[log_id] = log
        self._opened(log)
        return log

    def link(self, journal_path: str) -> int:
        """A journal that is in use gets the name of an entry log beside its own; the log's id.
        OSError, and then it has no such name."""
        log_id = self._last_log_id + 1
        self._disk.link(journal_path, f"{self._directory}/{log_name(log_id)}")
        self._last_log_id = log_id
        return log_id

    async def adopt(self, log_id: int, journal_id: int) -> EntryLog:
        """Takes what was linked for a log that is a journal still; its name is durable. OSError; if
        it is for want of space, there is no such name."""
        path = f"{self._directory}/{log_name(log_id)}"
        try:
            await self._disk.run(self._disk.sync_directory, self._directory)
        except OSError as error:
            if is_full(error):
                self._disk.remove(path)
            raise
        file = self._disk.open(path)
        log = EntryLog(log_id, path, file.size(), {}, is_written=True, file=file)
        log.journal_id = journal_id
        self._logs[log_id] = self.adopted[journal_id] = log
        self._opened(log)
        return log

    def take_for_adopted(self, log: EntryLog, journal_id: int) -> None:
        """It is a journal that is to be an entry log, whatever its header says."""
        log.journal_id = journal_id
        log.is_written, log.is_doubtful = True, False
        self.adopted[journal_id] = log

    def disown(self, log: EntryLog) -> None:
        """Takes the name of an entry log from a journal: nothing refers to it by that name. The
        file is the journal's."""
        del self._logs[log.log_id]
        if self.adopted.get(log.journal_id) is log:
            del self.adopted[log.journal_id]
        self._close_file(log)
        self._disk.remove(log.path)
        self.removed.removed_in(log.path.rpartition("/")[0])

    def has_last_name(self, log: EntryLog) -> bool:
        """Of one that is, or was, a journal: there is no other name of the file."""
        return self._disk.link_count(log.path) == 1

    async def write_map(self, log: EntryLog) -> None:
        """Ends a log: its ledgers map, then the header that points at it; durable. OSError.

        The log is complete, and its ledgers need not be in memory, when the caller has it
        `walk.settle`d."""
        assert log.ledgers is not None
        file = self.file(log)
        offset = log.size_bytes
        ledgers = dict(log.ledgers)  # deletions go on meanwhile
        batches = await self._pack_batches(ledgers)
        if not batches:
            return
        records = b"".join(batches)
        await self._disk.run(file.pwrite, [records], offset)
        log.size_bytes += len(records)
        log.records_end = offset
        # The header points at the map only once the map is there (bookkeeper PR 4607).
        await file.wait_synced()
        file.pwrite([pack_header(offset, len(ledgers), records)], 0)
        await file.wait_synced()
        written = LedgersMap(offset)
        for record in batches:
            written.add(MapBatch(*unpack_map_batch(record), record))
            await trio.lowlevel.checkpoint()
        log.map = written

    async def _pack_batches(self, ledgers: dict[int, int]) -> list[bytes]:
        slices = Slices(MAP_ITEMS_PER_TURN)
        batches: list[bytes] = []
        parts: list[bytes] = []
        ledger_ids = await sort_in_slices(ledgers)
        while some := list(islice(ledger_ids, MAP_ITEMS_PER_TURN)):
            if slices.due(len(some)):
                await slices.turn()
            parts.append(pack_map_items((i, ledgers[i]) for i in some))
            if len(parts) * MAP_ITEMS_PER_TURN == MAP_BATCH_COUNT:
                batches.append(pack_map_batch(parts))
                parts = []
        if parts:
            batches.append(pack_map_batch(parts))
        return batches

    async def publish(self, log: EntryLog) -> None:
        """Gives a log of compaction the name of an entry log, durably. OSError."""
        path = log.path.removesuffix(COMPACTING_SUFFIX)
        self._disk.rename(log.path, path)
        log.path = path
        await self._disk.run(self._disk.sync_directory, path.rpartition("/")[0])

    # Reading.

    def get(self, log_id: int) -> EntryLog | None:
        return self._logs.get(log_id)

    def missing_path(self, log_id: int) -> str:
        """How to call a log that is in none of the directories."""
        return f"{self._directory}/{log_name(log_id)}"

    def file(self, log: EntryLog) -> File:
        """The log's open file; files that were not used for long are closed for it."""
        if log.file is None:
            log.file = self._disk.open(log.path)
            self._opened(log)
        else:
            self._open.move_to_end(log.log_id)
        return log.file

    def _opened(self, log: EntryLog) -> None:
        self._open[log.log_id] = log
        excess = len(self._open) - self._config.entry_log_open_files_max
        if excess > 0:
            idle = [each for each in self._open.values() if self._may_close(each, log)]
            for each in idle[:excess]:
                self._close_file(each)

    def _may_close(self, log: EntryLog, wanted: EntryLog) -> bool:
        return log.readers == 0 and not log.is_written and log is not wanted

    def _close_file(self, log: EntryLog) -> None:
        if log.file is not None:
            log.file.close()
            log.file = None
        self._open.pop(log.log_id, None)

    # Deleting.

    async def drop_ledgers(self, ledger_ids: Iterable[int], *, at_once: bool = False) -> int:
        """Forgets deleted ledgers, removes the logs that have no other; returns how many. If maps
        of many logs are to be read for it, that is left to `remove_dead`, unless `at_once`.

        In slices: thousands of logs have thousands of them each. A dict must not change meanwhile:
        it is not copied, which for 300,000 would hold the loop for 10 ms."""
        dropped: Mapping[int, object] = (
            ledger_ids if isinstance(ledger_ids, dict) else dict.fromkeys(ledger_ids)
        )
        await self.walk.drop(dropped)
        slices = Slices(DROPPED_PER_TURN)
        for log in list(self._logs.values()):
            if slices.due():
                await slices.turn()
            if log.ledgers:
                await self._forget(log, dropped, slices)
        await self.walk.after_drop(at_once=at_once)
        return await self._remove_dead()

    async def remove_dead(
        self, is_known: Callable[[int], bool], with_entries: Callable[[Sequence[int]], list[int]]
    ) -> int:
        """What `drop_ledgers` left to be done, and what logs have that is neither known nor has an
        entry in the index: a map on disk still has what was deleted later. How many logs went."""
        await self.walk.work_off()
        await self.walk.forget_unknown(is_known, with_entries)
        return await self._remove_dead()

    async def _remove_dead(self) -> int:
        removed = 0
        slices = Slices(DROPPED_PER_TURN)
        for log in list(self._logs.values()):
            if slices.due(REMOVAL_UNITS if log.is_dead else LOG_UNITS):
                await slices.turn()
            if log.is_dead and self._logs.get(log.log_id) is log:
                if self.removed.count >= self._removed_max:
                    self._has_dead = True
                    break
                self.deleted_bytes += log.size_bytes
                self.remove(log)
                removed += 1
        return removed

    async def _forget(self, log: EntryLog, dropped: Mapping[int, object], slices: Slices) -> None:
        ledgers = log.ledgers or {}
        shorter = list(ledgers if len(ledgers) < len(dropped) else dropped)
        for start in range(0, len(shorter), DROPPED_PER_TURN):
            some = shorter[start : start + DROPPED_PER_TURN]
            if slices.due(len(some)):
                await slices.turn()
            if log.ledgers is None:
                return
            log.forget(i for i in some if i in dropped)

    def remove(self, log: EntryLog) -> None:
        """Unlinks a log; views into it stay valid. Should a crash undo it, the next start finds
        it again as it was."""
        assert not log.is_written
        # First, as it may fail; and removing the name is quick while the file is open.
        file = log.file if log.file is not None else self._disk.open(log.path)
        logger.info("entry log removed path=%s size_bytes=%d", log.path, log.size_bytes)
        del self._logs[log.log_id]
        self._open.pop(log.log_id, None)
        self._disk.remove(log.path)
        self.removed.removed_in(log.path.rpartition("/")[0])
        log.file = file
        if log.readers == 0:
            log.file = None
            self.removed.add(file)

    def release(self, log: EntryLog) -> None:
        """Ends one of `log.readers`."""
        log.readers -= 1
        if log.readers == 0 and log.log_id not in self._open and log.file is not None:
            self.removed.add(log.file)
            self.removed.free_later()
            log.file = None

    async def close_removed(self) -> None:
        """Makes removals durable, so that no crash of a later life brings a torn log back; then
        frees their space at once, on a worker thread. For those who wait for the space. OSError."""
        await self.removed.free()
        while self._has_dead:
            self._has_dead = False
            await self._remove_dead()
            await self.removed.free()

    async def close_removed_later(self) -> None:
        """As `close_removed` for those who do not wait for the space: `run` frees it, little by
        little, so that syncs of the journal are not held up. OSError."""
        await self.removed.sync_names()
        self.removed.free_later()

    async def run(self) -> None:
        """Works off what `close_removed_later` leaves, until cancelled. OSError."""
        while True:
            await self.removed.run_once()
            if self._has_dead:
                self._has_dead = False
                await self._remove_dead()
                self.removed.free_later()

    def close(self) -> None:
        self.removed.close()
        for log in list(self._open.values()):
            self._close_file(log)

    @property
    def count(self) -> int:
        return len(self._logs)

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self._logs.values())
