"""Bookie: a storage node (docs/architecture.md).

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
from functools import partial
from typing import TYPE_CHECKING

import trio

from bookie.adds import AddPath
from bookie.errors import BookieStartError
from bookie.health.damage import DamageReports
from bookie.health.scrub import Scrubber
from bookie.journal.journal import Journal
from bookie.journal.journal_files import FIRST_SLICE_SIZE_BYTES, JournalFiles
from bookie.journal.journal_replay import JournalReplay
from bookie.lac import LedgerLacs
from bookie.ledger_operations import LedgerOperations
from bookie.ledger_table import LedgerTable
from bookie.parts import BookieParts
from bookie.reads import ReadPath
from bookie.space.disk_usage import Reason
from bookie.space.garbage_collector import GarbageCollector
from bookie.space.space_keeper import SpaceKeeper
from bookie.start import (
    ReplayTarget,
    check_identity,
    check_logs,
    check_missing_log,
    journal_directory,
    ledger_directories,
    ledger_directory,
    load_checkpoint,
    load_table,
    lock_directories,
    open_index,
    settle_logs,
)
from bookie.statistics import BookieStatistics, gather
from bookie.storage.checkpointer import Checkpointer
from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.entry_logs import EntryLogs
from bookie.storage.ledger_directories import LedgerDirectories
from bookie.storage.reader import Reader
from bookie.storage.write_cache import WriteCache
from runtime.disk import is_full
from wire.bookkeeper.status import (
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bookie.config import BookieConfig
    from bookie.known_ledgers import KnownLedgers
    from bookie.storage.index import EntryIndex
    from runtime.env import Env

    Done = Callable[[Status], None]

logger = logging.getLogger(__name__)


class Bookie:
    def __init__(
        self,
        config: BookieConfig,
        env: Env,
        *,
        index: EntryIndex | None = None,
        known_ledgers: KnownLedgers | None = None,
    ) -> None:
        """Starts nothing. `index`: a `MemoryIndex` in simulations; RocksDB if None.
        `known_ledgers`: without it no ledger is deleted but by who calls `delete_ledger`."""
        self._config = config
        self._env = env
        if index is None:
            from bookie.storage.rocks_index import RocksIndex

            index = RocksIndex(ledger_directory(config), config.index_block_cache_size_bytes)
        self._index: EntryIndex = index
        self._table = LedgerTable()
        self._ledger = self._table.get
        self._cache = WriteCache(config)
        self._files = JournalFiles(config, env.disk, journal_directory(config))
        self._journal = Journal(
            config, env.turn, self._files, self._fail, self._progressed, env.clock
        )
        directories = LedgerDirectories(config, env.disk, env.rng, ledger_directories(config))
        self._logs = EntryLogs(config, env.disk, ledger_directory(config), directories)
        self._space = SpaceKeeper(config, env.disk, self._cache, self._journal, self._fail)
        #: How full the disks are, and why the bookie is read-only if it is.
        self.disks = self._space.disks
        self._files.on_room(self._space.on_journal_room)
        self._writer = EntryLogWriter(config, env.disk, self._logs)
        self._damages = DamageReports(env.clock)
        self.on_damage = self._damages.on_damage
        self._parts = BookieParts(
            config=config,
            env=env,
            table=self._table,
            cache=self._cache,
            journal=self._journal,
            files=self._files,
            logs=self._logs,
            writer=self._writer,
            index=self._index,
            damages=self._damages,
            fail=self._fail,
        )
        self._checkpointer = Checkpointer(
            self._parts, self.disks, self._space.reserve, self._progressed
        )
        self._table.undone = self._checkpointer.deletions
        self._adds = AddPath(
            config, self._cache, self._journal, self._table, self._checkpointer.swap
        )
        self._operations = LedgerOperations(
            self._adds, self._cache, self._journal, self._table, self._checkpointer.deletions
        )
        #: See its own methods: suspend, resume, status, statistics.
        self.gc = GarbageCollector(
            self._parts,
            self._operations,
            self._checkpointer,
            known_ledgers,
            self._space.owed_bytes,
        )
        self._compose_requests(known_ledgers)
        self._failure: OSError | None = None
        #: Of a clean stop: not left in the middle, unless the bookie fails.
        self._stopping = trio.CancelScope(shield=True)
        self._has_started = False

    def _compose_requests(self, known_ledgers: KnownLedgers | None) -> None:
        config, env = self._config, self._env
        self._space.connect(self._adds, self.gc, self._logs.removed)
        self.collect_garbage = self.gc.collect
        self.compact_entry_locations = self.gc.compact_entry_locations
        # The parts' own methods are the bookie's: no call in between on the way of an add.
        self.add_entry = self._adds.add_entry
        self.held_adds = self._adds.held
        self.is_fenced = self._operations.is_fenced
        self.force_ledger = self._operations.force_ledger
        self.set_explicit_lac = self._operations.set_explicit_lac
        self.get_explicit_lac = self._operations.get_explicit_lac
        self.delete_ledger = self._operations.delete_ledger
        self._ended = trio.Event()
        self._reader = Reader(config, env.disk, self._cache, self._logs, self._index, self._damages)
        #: Looks for damage, in the background and when told to.
        self.scrubber = Scrubber(self._parts, known_ledgers)
        self._reads = ReadPath(self._parts, self._reader, self._operations, self._ended)
        self.read_entry = self._reads.read_entry
        self.read_entry_nowait = self._reads.read_entry_nowait
        self.read_entries = self._reads.read_entries
        self.read_entries_nowait = self._reads.read_entries_nowait
        self.entries = self._reads.entries
        self.sound_entries = self._reads.sound_entries
        self.encoded_entries = self._reads.encoded_entries
        self.lacs = LedgerLacs(env.clock, self._table, self._reads.read_one)

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
        self._space.reserve.release_if_short()
        at_start = load_checkpoint(config, disk)
        await self._cache.allocate()
        await disk.run(open_index, disk, self._index, ledger_directory(config), at_start)
        await load_table(disk, self._index, self._table, ledger_directory(config))
        await self._logs.load(at_start.log_id, self._table.known_ids)
        self.gc.start_log_ids = at_start.log_ids
        check_logs(self._logs, at_start)
        await self._space.reserve.with_room(self._writer.start_log)
        self._files.load(at_start.mark.journal_id)
        replay = JournalReplay(disk, journal_directory(config), at_start.mark)
        await replay.make_durable()
        deleted = await self._replay(replay)
        check_missing_log(self._logs, self._table, at_start)
        # While the mark still is where it was: a crash in here starts all over.
        settle = partial(settle_logs, self._logs, self._index, self._table, at_start)
        is_flushed = await self._flush_replayed(deleted, settle)
        offset = await self._prepare_first_journal(replay)
        self._journal.open(max(replay.sequence, 0), offset)
        if not is_flushed:
            self._checkpointer.retain_replayed(deleted, settle)
        await self._checkpointer.once()
        if self._failure is not None:
            raise self._failure
        await self.scrubber.check_at_start()

    async def _flush_replayed(
        self, deleted: set[int], settle: Callable[[], Awaitable[None]]
    ) -> bool:
        """False if there is no space; then what was replayed is still in memory."""
        if not await self._checkpointer.flush_replayed():
            return False
        try:
            await self._checkpointer.store_ledgers([deleted] if deleted else [])
            await self._space.reserve.with_room(settle)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    async def _prepare_first_journal(self, replay: JournalReplay) -> int | None:
        """If there is no space for one, the last one goes on: at the offset that is returned.
        BookieStartError if that cannot be."""
        prepare = partial(self._files.prepare, FIRST_SLICE_SIZE_BYTES)
        try:
            await self._space.reserve.with_room(prepare)
            return None
        except OSError as error:
            if not is_full(error):
                raise
            if replay.end is None:
                raise BookieStartError(f"there is no space for a journal: {error}") from error
            try:
                await self._files.go_on_in(*replay.end)
            except ValueError as reason:
                raise BookieStartError(
                    f"there is no space for a journal: {error}; and {reason}"
                ) from error
            return replay.end[1]

    async def _replay(self, replay: JournalReplay) -> set[int]:
        """Brings the journal into the write cache, and what finds no room there into entry logs
        and index; the ledgers that were deleted."""
        mark = replay.mark
        target = ReplayTarget(self._cache, self._table)
        async for ledger_id, entry_id, record in replay.read():
            if not target.apply(ledger_id, entry_id, record):
                try:
                    await self._checkpointer.make_room_replayed()
                except OSError as error:
                    if not is_full(error):
                        raise
                    raise BookieStartError(
                        "the disk is full, and the journal has more than the write cache holds "
                        f"({self._config.write_cache_size_bytes} bytes): {error}"
                    ) from error
                applied = target.apply(ledger_id, entry_id, record)
                assert applied, "an empty write cache takes any entry"
        target.check()
        logger.info(
            "replayed groups=%d records=%d from journal=%x offset=%d",
            replay.group_count,
            replay.record_count,
            mark.journal_id,
            mark.offset,
        )
        return target.deleted

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            await self._serve_until_the_end(task_status)
        finally:
            # Also if it was cancelled at the same time: nobody may take it for a clean stop.
            if self._failure is not None:
                raise self._failure

    async def _serve_until_the_end(self, task_status: trio.TaskStatus[None]) -> None:
        preparing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._prepare_journals, preparing)
            nursery.start_soon(self._checkpointer.run)
            nursery.start_soon(self._free_removed)
            nursery.start_soon(self.gc.run)
            nursery.start_soon(self._space.watch)
            nursery.start_soon(self._space.collect)
            nursery.start_soon(self._journal.attest_when_idle)
            nursery.start_soon(self.scrubber.run)
            self._adds.accept()
            self._has_started = True
            self._space.serve()
            try:
                task_status.started()
                await self._ended.wait()
            finally:
                # Whoever stops needs a journal to write to, so its preparation ends last; also
                # when the stop breaks, or the bookie would never end.
                try:
                    with self._stopping:
                        await self._stop()
                finally:
                    preparing.cancel()
                    nursery.cancel_scope.cancel()

    async def _free_removed(self) -> None:
        try:
            await self._logs.run()
        except OSError as error:
            self._fail(error)

    async def _prepare_journals(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self._files.run(self._journal.pump, self._journal.filled_bytes)
            except OSError as error:
                self._fail(error)

    async def _stop(self) -> None:
        """What was taken is journaled, flushed and checkpointed: the next start replays nothing.
        Nothing of that if the bookie failed."""
        self._adds.refuse(Status.EREADONLY if self._failure is None else Status.EIO)
        while self._failure is None:
            more = self._cache.flushing is not None
            await self._checkpointer.once()
            if not more or self._checkpointer.is_full:
                break  # a full disk: the next start replays
        if self._failure is None:
            await self._checkpointer.leave_adopted()
        if self._failure is None:
            try:
                await self._writer.complete_current()
            except OSError as error:
                if not is_full(error):
                    self._fail(error)

    def _end(self, status: Status) -> None:
        self._ended.set()
        self.gc.stop()
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
            self._stopping.cancel()
            self.gc.stop()

    @property
    def bookie_id(self) -> str:
        return self._config.bookie_id

    @property
    def is_running(self) -> bool:
        """It has started and not ended."""
        return self._has_started and not self._ended.is_set()

    def crash(self) -> None:
        """For simulations: ends without a clean stop, as a killed process; `run` raises OSError."""
        self._fail(OSError(errno.EIO, "crashed"))

    def list_ledgers(self) -> list[int]:
        return self._table.ids()

    async def flush(self) -> bool:
        """Makes a checkpoint of all that was added before; returns when it is durable, or when
        the bookie has ended."""
        return await self._checkpointer.flush()

    def _progressed(self) -> None:
        self._space.progressed()
        self._adds.progressed()

    # Disks (bookie/space/space_keeper.py).

    @property
    def is_read_only(self) -> bool:
        return self.disks.is_read_only

    def set_read_only(self, reason: str) -> None:
        """By hand; the disks have reasons of their own."""
        self.disks.set_reason(Reason.ADMIN, reason)

    def set_writable(self) -> None:
        """Takes `set_read_only` back. The bookie is writable if the disks allow it."""
        self.disks.clear_reason(Reason.ADMIN)

    def statistics(self) -> BookieStatistics:
        return gather(
            self._parts,
            self._adds.held,
            self._checkpointer.flush_statistics,
            self._reader.statistics,
            refused_read_only=self._adds.refused_read_only_count,
            damaged_records=self._reads.damaged_records,
        )
