"""Bookie: a storage node (design.md §3).

Composition of the parts in this folder, their start, end and failure. Everything here runs on the
event loop's thread.

Adds go their way in bookie/adds.py; what is done to whole ledgers is in
bookie/ledger_operations.py. In the background one task flushes the write cache and moves the mark.

Errors: any OSError of a write or a sync ends the bookie: nothing is acknowledged after it and `run`
raises it. Adds that were waiting are answered EIO, which is no outcome.
"""

from __future__ import annotations

import errno
import logging
import sys
from typing import TYPE_CHECKING

import trio

from bookie.adds import AddPath
from bookie.checkpointer import Checkpointer
from bookie.entry_log import EntryLogs
from bookie.entry_log_writer import EntryLogWriter
from bookie.errors import DamagedRecordError
from bookie.journal import Journal
from bookie.journal_files import JournalFiles
from bookie.journal_replay import JournalReplay
from bookie.ledger_operations import LedgerOperations
from bookie.ledger_table import LedgerTable
from bookie.reader import Reader
from bookie.start import (
    ReplayTarget,
    check_identity,
    check_logs,
    journal_directory,
    ledger_directory,
    load_checkpoint,
    lock_directories,
    settle_logs,
)
from bookie.statistics import BookieStatistics, gather
from bookie.write_cache import WriteCache
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.index import EntryIndex
    from bookie.journal_format import Position
    from runtime.env import Env

    Done = Callable[[Status], None]

logger = logging.getLogger(__name__)

_EMPTY = memoryview(b"")


class Bookie:
    def __init__(self, config: BookieConfig, env: Env, *, index: EntryIndex | None = None) -> None:
        """Starts nothing. `index`: a `MemoryIndex` in simulations; RocksDB if None."""
        self._config = config
        self._env = env
        if index is None:
            from bookie.rocks_index import RocksIndex

            index = RocksIndex(ledger_directory(config), config.index_block_cache_size_bytes)
        self._index: EntryIndex = index
        self._table = LedgerTable()
        self._ledger = self._table.get
        self._cache = WriteCache(config)
        self._files = JournalFiles(config, env.disk, journal_directory(config))
        self._journal = Journal(config, env.turn, self._files, self._fail, self._progressed)
        self._logs = EntryLogs(config, env.disk, ledger_directory(config))
        self._writer = EntryLogWriter(config, env.disk, self._logs)
        self._reader = Reader(config, env.disk, self._cache, self._logs, self._index)
        self._checkpointer = Checkpointer(
            config,
            env,
            self._cache,
            self._journal,
            self._files,
            self._logs,
            self._writer,
            self._table,
            self._index,
            self._fail,
            self._progressed,
        )
        self._adds = AddPath(
            config, self._cache, self._journal, self._table, self._checkpointer.swap
        )
        self._operations = LedgerOperations(
            self._adds, self._cache, self._journal, self._table, self._checkpointer.deletions
        )
        # The parts' own methods are the bookie's: no call in between on the way of an add.
        self.add_entry = self._adds.add_entry
        self.force_ledger = self._operations.force_ledger
        self.set_explicit_lac = self._operations.set_explicit_lac
        self.get_explicit_lac = self._operations.get_explicit_lac
        self.delete_ledger = self._operations.delete_ledger
        self._failure: OSError | None = None
        self._ended = trio.Event()
        self._damaged_records = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Locks, checks, opens, replays; then serves until cancelled, which is a clean stop.

        BookieStartError (and CorruptionError) if it refuses to start; OSError from the disk."""
        releases = lock_directories(self._config, self._env.disk)
        try:
            await self._open()
            await self._serve(task_status)
        finally:
            self._end(Status.EIO if self._failure is not None else Status.EREADONLY)
            self._close()
            for release in releases:
                release()

    async def _open(self) -> None:
        config, disk = self._config, self._env.disk
        if check_identity(config, disk):
            logger.info("new bookie id=%s", config.bookie_id)
        at_start = load_checkpoint(config, disk)
        await self._cache.allocate()
        await disk.run(self._index.open)
        self._table.load(self._index.ledgers())
        self._logs.load(at_start.log_id)
        check_logs(self._logs, self._table, at_start)
        await self._writer.start_log()
        self._files.load(at_start.mark.journal_id)
        sequence = await self._replay(at_start.mark)
        # While the mark still is where it was: a crash in here starts all over.
        await settle_logs(self._logs, self._index, self._table, at_start)
        await self._files.prepare()
        self._journal.open(max(sequence, 0))
        await self._checkpointer.once()
        if self._failure is not None:
            raise self._failure

    async def _replay(self, mark: Position) -> int:
        """Brings all of the journal into entry logs and index; the last group's number."""
        replay = JournalReplay(self._env.disk, journal_directory(self._config), mark)
        target = ReplayTarget(self._cache, self._table)
        for number, (ledger_id, entry_id, record) in enumerate(replay.records()):
            if not target.apply(ledger_id, entry_id, record):
                await self._checkpointer.flush_replayed()
                applied = target.apply(ledger_id, entry_id, record)
                assert applied, "an empty write cache takes any entry"
            if number % 1000 == 999:
                await trio.lowlevel.checkpoint()
        target.check()
        await self._checkpointer.flush_replayed()
        await self._checkpointer.store_ledgers(target.deleted)
        logger.info(
            "replayed groups=%d records=%d from journal=%x offset=%d",
            replay.group_count,
            replay.record_count,
            mark.journal_id,
            mark.offset,
        )
        return replay.sequence

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        preparing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._prepare_journals, preparing)
            nursery.start_soon(self._checkpointer.run)
            self._adds.accept()
            try:
                task_status.started()
                await self._ended.wait()
            finally:
                # Whoever stops needs a journal to write to, so its preparation ends last.
                with trio.CancelScope(shield=True):
                    await self._stop()
                preparing.cancel()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _prepare_journals(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self._files.run(self._journal.pump)
            except OSError as error:
                self._fail(error)

    async def _stop(self) -> None:
        """What was taken is journaled, flushed and checkpointed: the next start replays nothing.
        Nothing of that if the bookie failed."""
        self._adds.refuse(Status.EREADONLY if self._failure is None else Status.EIO)
        while self._failure is None:
            more = self._cache.flushing is not None
            await self._checkpointer.once()
            if not more:
                break
        if self._failure is None:
            try:
                await self._writer.complete_current()
            except OSError as error:
                self._fail(error)

    def _end(self, status: Status) -> None:
        self._ended.set()
        self._adds.refuse(status)
        if self._failure is not None:
            self._journal.refuse_pending(status)

    def _close(self) -> None:
        self._journal.close()
        self._files.close()
        self._logs.close()
        self._index.close()

    def _fail(self, error: OSError) -> None:
        """The end: of a write or sync that failed the outcome is unknown."""
        if self._failure is None:
            logger.critical("bookie id=%s ends: %s", self._config.bookie_id, error)
            self._failure = error
            self._journal.stop(error)
            self._adds.refuse_later(Status.EIO)
            self._ended.set()
            self._checkpointer.stop()

    def crash(self) -> None:
        """For simulations: ends without a clean stop, as a killed process; `run` raises OSError."""
        self._fail(OSError(errno.EIO, "crashed"))

    # Reading.

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, flags: int = 0, master_key: bytes | None = None
    ) -> tuple[Status, memoryview]:
        """One entry; LAST_ADD_CONFIRMED_ENTRY is the one with the highest id. FLAG_DO_FENCING
        fences first, and answers when that is durable (ledgers.md 2.5.1-2)."""
        if flags & FLAG_DO_FENCING:
            status = await self._operations.fence(ledger_id, master_key)
            if status is not Status.EOK:
                return status, _EMPTY
        if entry_id == LAST_ADD_CONFIRMED_ENTRY and self._ledger(ledger_id) is not None:
            try:
                entry_id = self._reader.last_entry_id(ledger_id)
            except OSError as error:
                return self._unreadable(ledger_id, entry_id, error), _EMPTY
            if entry_id < 0:
                return Status.ENOENTRY, _EMPTY
        status, entries = await self.read_entries(ledger_id, entry_id, 1, 0)
        return status, entries[0] if entries else _EMPTY

    def read_entries_nowait(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> tuple[Status, list[memoryview]] | None:
        """Consecutive entries; at least one if the first exists, even if it is larger than
        `size_max` bytes. `count_max` <= 0: no limit. None if it would wait for the disk."""
        if self._ledger(ledger_id) is None or self._ended.is_set():
            return (Status.EIO if self._ended.is_set() else Status.ENOLEDGER), []
        try:
            entries = self._reader.read_nowait(
                ledger_id, first_entry_id, count_max if count_max > 0 else sys.maxsize, size_max
            )
        except (DamagedRecordError, OSError) as error:
            return self._unreadable(ledger_id, first_entry_id, error), []
        if entries is None:
            return None
        return (Status.EOK if entries else Status.ENOENTRY), entries

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> tuple[Status, list[memoryview]]:
        """As `read_entries_nowait`, waiting for the disk where that is needed."""
        answer = self.read_entries_nowait(ledger_id, first_entry_id, count_max, size_max)
        if answer is not None:
            return answer
        try:
            entries = await self._reader.read(
                ledger_id, first_entry_id, count_max if count_max > 0 else sys.maxsize, size_max
            )
        except (DamagedRecordError, OSError) as error:
            return self._unreadable(ledger_id, first_entry_id, error), []
        return (Status.EOK if entries else Status.ENOENTRY), entries

    def _unreadable(self, ledger_id: int, entry_id: int, error: Exception) -> Status:
        self._damaged_records += 1
        logger.error("unreadable ledger=%d entry=%d: %s", ledger_id, entry_id, error)
        return Status.EIO

    def list_ledgers(self) -> list[int]:
        return self._table.ids()

    async def flush(self) -> None:
        """Makes a checkpoint of all that was added before; returns when it is durable, or when
        the bookie has ended."""
        await self._checkpointer.flush()

    def _progressed(self) -> None:
        self._adds.progressed()

    def statistics(self) -> BookieStatistics:
        return gather(
            self._journal,
            self._cache,
            self._adds.held,
            self._checkpointer,
            self._reader,
            self._logs,
            damaged_records=self._damaged_records,
            ledgers=len(self._table.ids()),
        )
