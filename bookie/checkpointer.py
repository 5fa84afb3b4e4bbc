"""The background task that moves the mark: flush, index, checkpoint, old journals (ledgers.md 2.6).

The mark is where the journal stood when a generation of the write cache was closed, and it becomes
durable only when all of that generation is: entry log synced, index synced, the ledgers' states
synced. An error anywhere ends the bookie, and no mark moves after it.

Owner: the event loop's thread. One checkpoint at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from bookie.checkpoint import NO_CHECKPOINT, Checkpoint, write_checkpoint
from bookie.flush import Flusher, FlushStatistics
from bookie.start import ledger_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.entry_log import EntryLogs
    from bookie.entry_log_writer import EntryLogWriter
    from bookie.index import EntryIndex
    from bookie.journal import Group, Journal
    from bookie.journal_files import JournalFiles
    from bookie.journal_format import Position
    from bookie.ledger_table import LedgerTable
    from bookie.write_cache import WriteCache
    from runtime.env import Env


class Checkpointer:
    def __init__(
        self,
        config: BookieConfig,
        env: Env,
        cache: WriteCache,
        journal: Journal,
        files: JournalFiles,
        logs: EntryLogs,
        writer: EntryLogWriter,
        table: LedgerTable,
        index: EntryIndex,
        fail: Callable[[OSError], None],
        progressed: Callable[[], None],
    ) -> None:
        """`fail` ends the bookie; `progressed` is called when the cache has room again."""
        self._config = config
        self._env = env
        self._cache = cache
        self._journal = journal
        self._files = files
        self._logs = logs
        self._writer = writer
        self._table = table
        self._index = index
        self._fail = fail
        self._progressed = progressed
        self._flusher = Flusher(config, env.disk, writer, index)
        #: The last one that was made durable in this life.
        self._checkpoint = NO_CHECKPOINT
        #: The journal's group that ends the generation being flushed.
        self._barrier: Group | None = None
        #: Deleted ledgers, with the journal's group that says so: to be done in the index once that
        #: is durable, and before the mark moves past it.
        self.deletions: dict[int, Group] = {}
        self._one_at_a_time = trio.Lock()
        self._wanted = trio.Event()
        self._started_count = 0
        self._done_count = 0
        self._done = trio.Event()
        self._is_stopped = False
        self._scope = trio.CancelScope()

    @property
    def flush_statistics(self) -> FlushStatistics:
        return self._flusher.statistics

    def swap(self) -> bool:
        """The other generation takes the adds; false if that one is still being flushed."""
        if self._cache.flushing is not None:
            return False
        self._swap()
        self._wanted.set()
        return True

    def _swap(self) -> None:
        self._cache.swap()
        # All that is in the generation is in the journal up to here, and nothing newer.
        self._barrier = self._journal.cut()

    def stop(self) -> None:
        """The bookie has ended: a checkpoint under way is left, and nobody waits for one."""
        self._is_stopped = True
        self._scope.cancel()
        self._done.set()
        self._wanted.set()

    async def flush(self) -> None:
        """Returns when all that was added before is checkpointed, or the bookie has ended."""
        number = self._started_count + (1 if self._cache.flushing is None else 2)
        while self._done_count < number and not self._is_stopped:
            self._wanted.set()
            await self._done.wait()

    async def run(self) -> None:
        """A checkpoint every `flush_interval_ms`, and whenever one is wanted."""
        while not self._is_stopped:
            with trio.move_on_after(self._config.flush_interval_ms / 1000):
                await self._wanted.wait()
            with trio.CancelScope(shield=True):
                # Not left in the middle: a clean stop goes on from its end.
                await self.once()

    async def once(self) -> None:
        """One checkpoint. Raises no OSError: that ends the bookie."""
        async with self._one_at_a_time:
            if self._is_stopped:
                return
            self._wanted = trio.Event()
            self._started_count += 1
            start = self._env.clock.monotonic()
            with trio.CancelScope() as self._scope:
                try:
                    await self._steps()
                except OSError as error:
                    self._fail(error)
            if self._scope.cancel_called:
                return
            self._flusher.statistics.seconds += self._env.clock.monotonic() - start
            self._done_count = self._started_count
            self._done.set()
            self._done = trio.Event()

    async def _steps(self) -> None:
        if self._cache.flushing is None:
            self._swap()
        generation, barrier = self._cache.flushing, self._barrier
        assert generation is not None
        assert barrier is not None
        # Not left to the end of the turn: while stopping, nobody may be there to run it.
        self._journal.pump()
        mark = await self._journal.wait_durable(barrier)
        if generation.entry_count:
            await self._flusher.flush(generation)
        self._cache.flushed()
        self._barrier = None
        self._progressed()
        is_changed = await self.store_ledgers(self._take_durable_deletions())
        if is_changed or generation.entry_count or mark != self._checkpoint.mark:
            await self._move_mark(mark)

    def _take_durable_deletions(self) -> set[int]:
        durable = {i for i, group in self.deletions.items() if self._journal.is_durable(group)}
        for ledger_id in durable:
            del self.deletions[ledger_id]
        return durable

    async def flush_replayed(self) -> None:
        """While starting: flushes without moving the mark. OSError."""
        await self._flusher.flush(self._cache.swap())
        self._cache.flushed()

    async def store_ledgers(self, deletions: set[int]) -> bool:
        """The table's changes and the deletions, durable in the index; whether there were any.
        OSError."""
        states = self._table.take_dirty()
        if not states and not deletions:
            return False
        self._index.delete_ledgers(deletions)
        self._index.put_ledgers((state.ledger_id, state.encode()) for state in states)
        await self._env.disk.run(self._index.sync)
        if deletions:
            self._logs.drop_ledgers(deletions)
        return True

    async def _move_mark(self, mark: Position) -> None:
        assert mark[:2] >= self._checkpoint.mark[:2], "the mark never goes back"
        log = self._writer.current
        assert log is not None
        assert log.ledgers is not None
        checkpoint = Checkpoint(mark, log.log_id, log.size_bytes, dict(log.ledgers))
        disk = self._env.disk
        await disk.run(write_checkpoint, disk, ledger_directory(self._config), checkpoint)
        self._checkpoint = checkpoint
        await self._files.recycle(mark.journal_id)
