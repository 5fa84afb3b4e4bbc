"""Bookie: a storage node (design.md §3).

Composition of the parts in this folder, and the path of an add through them. Everything here runs
on the event loop's thread.

One add, in one synchronous section (ledgers.md 2.5.1): fence and key check, the copy into the write
cache, the journal's queue. At the end of the burst the journal writes and syncs all of it at once
and calls every `done`. In the background one task flushes the write cache and moves the mark.

Errors: any OSError of a write or a sync ends the bookie: nothing is acknowledged after it and `run`
raises it. Adds that were waiting are answered EIO, which is no outcome.
"""

from __future__ import annotations

import errno
import logging
import struct
import sys
from typing import TYPE_CHECKING

import trio

from bookie.checkpointer import Checkpointer
from bookie.entry_log import EntryLogs
from bookie.errors import DamagedRecordError
from bookie.held_adds import HeldAdd, HeldAdds
from bookie.journal import Journal
from bookie.journal_files import JournalFiles
from bookie.journal_format import (
    EXPLICIT_LAC,
    LEDGER_DELETED,
    LEDGER_FENCED,
    LEDGER_KEY,
    special_record,
)
from bookie.journal_replay import JournalReplay
from bookie.ledger_table import LedgerState, LedgerTable
from bookie.reader import ENTRY_SIZE_MIN, Reader
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
from wire.bookkeeper.entry import crc32c_matches
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.index import EntryIndex
    from bookie.journal import Group
    from bookie.journal_format import Position
    from runtime.env import Env
    from wire.buffers import Buffers

    Done = Callable[[Status], None]

logger = logging.getLogger(__name__)

_unpack_ids = struct.Struct(">qq").unpack_from
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
        self._reader = Reader(config, env.disk, self._cache, self._logs, self._index)
        self._checkpointer = Checkpointer(
            config,
            env,
            self._cache,
            self._journal,
            self._files,
            self._logs,
            self._table,
            self._index,
            self._fail,
            self._progressed,
        )
        self._queue_size_max = config.journal_queue_size_max_bytes
        self._verify_digest = config.verify_digest_on_write
        # Adds that wait for room: the arguments of `add_entry`, and the size.
        self._held = HeldAdds(config.held_adds_max, config.held_adds_size_max_bytes)
        #: What every add is answered, if it is not taken: before the start and after the end.
        self._refusal: Status | None = Status.EIO
        #: Whether adds have to take the slow way: a refusal, or others are held.
        self._gate = True
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
        await self._logs.start_log()
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
            self._refusal = None
            self._gate = False
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
        self._refuse(Status.EREADONLY if self._failure is None else Status.EIO)
        while self._failure is None:
            more = self._cache.flushing is not None
            await self._checkpointer.once()
            if not more:
                break
        if self._failure is None:
            try:
                await self._logs.complete_current()
            except OSError as error:
                self._fail(error)

    def _refuse(self, status: Status) -> None:
        self._refusal = status
        self._gate = True
        for add in self._held.release_all():
            add.done(status)

    def _end(self, status: Status) -> None:
        self._ended.set()
        self._refuse(status)
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
            self._refusal = Status.EIO
            self._gate = True
            self._ended.set()
            self._checkpointer.stop()

    def crash(self) -> None:
        """For simulations: ends without a clean stop, as a killed process; `run` raises OSError."""
        self._fail(OSError(errno.EIO, "crashed"))

    # Adding.

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: Done,
    ) -> None:
        """Stores one entry (features.md #1's bytes, in pieces); `done(Status.EOK)` once it is
        durable, in the order of the calls. Other answers: EBADREQ (these are no bytes of that
        entry), EUA, EFENCED, ETOOMANYREQUESTS, EREADONLY (stopping), EIO (failed). The pieces
        stay unchanged until `done`."""
        size = sum(map(len, entry))
        if self._gate or not self._add(ledger_id, entry_id, master_key, entry, flags, done, size):
            self._hold(HeldAdd(ledger_id, entry_id, master_key, entry, flags, done, size))

    def _add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: Done,
        size: int,
    ) -> bool:
        """False if there is no room now."""
        if size < ENTRY_SIZE_MIN or size > self._config.entry_size_max_bytes or entry_id < 0:
            done(Status.EBADREQ)
            return True
        state = self._ledger(ledger_id)
        if state is None or state.master_key != master_key or state.fenced:
            status = self._admit(ledger_id, master_key, bool(flags & FLAG_RECOVERY_ADD))
            if status is not Status.EOK:
                done(status)
                return True
        journal = self._journal
        if journal.queued_bytes >= self._queue_size_max:
            return False
        cache = self._cache
        start = cache.put(ledger_id, entry_id, entry, size)
        if start < 0:
            if not self._checkpointer.swap():
                return False
            start = cache.put(ledger_id, entry_id, entry, size)
            assert start >= 0, "an empty generation takes any entry"
        view = cache.view
        if _unpack_ids(view, start + 4) != (ledger_id, entry_id) or (
            self._verify_digest and not crc32c_matches(view, start + 4, size)
        ):
            done(Status.EBADREQ)
            return True
        journal.append(view, start, cache.commit(ledger_id, entry_id, start, size), done)
        return True

    def _admit(self, ledger_id: int, master_key: bytes, is_recovery: bool) -> Status:
        """The cases of an add that are not the ordinary one."""
        state = self._ledger(ledger_id)
        if state is None:
            if self._table.is_deleted(ledger_id):
                return Status.EFENCED
            self._create(ledger_id, master_key)
            return Status.EOK
        if state.master_key != master_key:
            return Status.EUA
        return Status.EFENCED if state.fenced and not is_recovery else Status.EOK

    def _create(self, ledger_id: int, master_key: bytes) -> LedgerState:
        key = bytes(master_key)
        self._journal.append_special(special_record(ledger_id, LEDGER_KEY, key))
        return self._table.create(ledger_id, key)

    def _hold(self, add: HeldAdd) -> None:
        """Not now: a refusal, or no room, and then all that follow wait behind it."""
        if self._refusal is not None:
            add.done(self._refusal)
        elif self._held.hold(add):
            self._gate = True
        else:
            add.done(Status.ETOOMANYREQUESTS)

    def _progressed(self) -> None:
        """There may be room again."""
        held = self._held
        while held and self._refusal is None:
            if not self._add(*held.first()):
                return
            held.release_first()
        if self._refusal is None:
            self._gate = False

    # Fencing, explicit LAC, force.

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, flags: int = 0, master_key: bytes | None = None
    ) -> tuple[Status, memoryview]:
        """One entry; LAST_ADD_CONFIRMED_ENTRY is the one with the highest id. FLAG_DO_FENCING
        fences first, and answers when that is durable (ledgers.md 2.5.1-2)."""
        if flags & FLAG_DO_FENCING:
            status = await self._fence(ledger_id, master_key)
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

    async def _fence(self, ledger_id: int, master_key: bytes | None) -> Status:
        if self._refusal is not None:
            return self._refusal
        if master_key is None:
            return Status.EUA
        state = self._ledger(ledger_id)
        if state is None:
            if self._table.is_deleted(ledger_id):
                return Status.ENOLEDGER
            # Made although there is nothing in it, so that a late add finds it fenced.
            state = self._create(ledger_id, master_key)
        elif state.master_key != master_key:
            return Status.EUA
        if not state.fenced:
            state.fenced = True
            self._table.changed(state)
            state.fence_group = self._journal.append_special(
                special_record(ledger_id, LEDGER_FENCED)
            )
        if (group := state.fence_group) is not None:
            # Also for whoever fences while the first one's sync is under way.
            if not await self._is_made_durable(group):
                return Status.EIO
            state.fence_group = None
        return Status.EOK

    async def _is_made_durable(self, group: Group) -> bool:
        try:
            await self._journal.wait_durable(group)
        except OSError:
            return False
        return True

    async def force_ledger(self, ledger_id: int) -> Status:
        """EOK when everything journaled before is durable."""
        if self._refusal is not None:
            return self._refusal
        if self._ledger(ledger_id) is None:
            return Status.ENOLEDGER
        return Status.EOK if await self._is_made_durable(self._journal.cut()) else Status.EIO

    async def set_explicit_lac(self, ledger_id: int, master_key: bytes, packet: bytes) -> Status:
        """Stores a LAC packet (WRITE_LAC); EOK when it is durable. EUA as for adds. Makes the
        ledger if it is unknown, as BookKeeper does."""
        if self._refusal is not None:
            return self._refusal
        status = self._admit(ledger_id, master_key, True)
        if status is not Status.EOK:
            return status
        state = self._ledger(ledger_id)
        assert state is not None
        state.explicit_lac = bytes(packet)
        self._table.changed(state)
        group = self._journal.append_special(
            special_record(ledger_id, EXPLICIT_LAC, state.explicit_lac)
        )
        return Status.EOK if await self._is_made_durable(group) else Status.EIO

    def get_explicit_lac(self, ledger_id: int) -> tuple[Status, bytes | None]:
        """The last packet; None if there was none. ENOLEDGER."""
        state = self._ledger(ledger_id)
        if state is None:
            return Status.ENOLEDGER, None
        return Status.EOK, state.explicit_lac

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

    async def delete_ledger(self, ledger_id: int) -> Status:
        """Forgets a ledger, for good once this returns EOK; fine if it is unknown. From the call
        on it is refused. The index follows with the next checkpoint, and entry logs in which
        nothing else is left are removed then."""
        if self._refusal is not None:
            return self._refusal
        if self._ledger(ledger_id) is None:
            return Status.EOK
        self._table.delete(ledger_id)
        self._cache.drop_ledger(ledger_id)
        group = self._journal.append_special(special_record(ledger_id, LEDGER_DELETED))
        self._checkpointer.deletions[ledger_id] = group
        return Status.EOK if await self._is_made_durable(group) else Status.EIO

    async def flush(self) -> None:
        """Makes a checkpoint of all that was added before; returns when it is durable, or when
        the bookie has ended."""
        await self._checkpointer.flush()

    def statistics(self) -> BookieStatistics:
        return gather(
            self._journal,
            self._cache,
            self._held,
            self._checkpointer,
            self._reader,
            self._logs,
            damaged_records=self._damaged_records,
            ledgers=len(self._table.ids()),
        )
