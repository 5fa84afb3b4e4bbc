"""The background task that moves the mark: flush, index, checkpoint, old journals (invariants S).

The mark is where the journal stood when a generation of the write cache was closed, and it becomes
durable only when all of that generation is: entry log synced, index synced, the ledgers' states
synced. An error anywhere ends the bookie, and no mark moves after it.

A disk that is full is no such error. The generation stays where it is, in memory and in the
journal, and answers reads; the bookie is read-only (Reason.FLUSH) and the checkpoint is tried again
until there is space. Meanwhile deletions give up entry logs, for that is where space comes from.

Owner: the event loop's thread. One checkpoint at a time.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections import ChainMap
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import trio

from bookie.space.disk_usage import INDEX_ENTRY_BYTES, DiskState, Reason
from bookie.start import journal_directory, ledger_directory
from bookie.storage.adopted import AdoptedJournals
from bookie.storage.checkpoint import NO_CHECKPOINT, Checkpoint, write_checkpoint
from bookie.storage.entry_log_format import HEADER_SIZE
from bookie.storage.flush import Flusher, FlushStatistics
from bookie.storage.sorting import sort_in_slices
from runtime.disk import is_full
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from bookie.journal.group import Group
    from bookie.journal.journal_format import Position
    from bookie.ledger_table import LedgerState
    from bookie.parts import BookieParts
    from bookie.space.disk_reserve import DiskReserve
    from bookie.space.disk_usage import DiskMonitor
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.write_cache import Generation

logger = logging.getLogger(__name__)

#: While the disk is full a checkpoint is tried this often.
FULL_RETRY_SECONDS = 1.0
#: While the bookie stops, how often it is asked whether the next journal is prepared.
NEXT_JOURNAL_SECONDS = 0.01
#: Before the loop gets its turn: deletions that are looked at, ledgers that go to the index.
DELETIONS_PER_TURN = 5000
#: Deletions that go to index and logs together: a table of more takes milliseconds when it grows.
DELETIONS_TOGETHER_MAX = 50_000
LEDGERS_PER_TURN = 500


@contextmanager
def suppress_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise


class Checkpointer:
    def __init__(
        self,
        parts: BookieParts,
        disks: DiskMonitor,
        reserve: DiskReserve,
        progressed: Callable[[], None],
    ) -> None:
        """`progressed` is called when the cache has room again."""
        config, env = parts.config, parts.env
        self._config = config
        self._env = env
        self._cache = parts.cache
        self._journal = parts.journal
        self._files = parts.files
        self._logs = parts.logs
        self._writer = parts.writer
        self._table = parts.table
        self._index = parts.index
        self._fail = parts.fail
        self._progressed = progressed
        self._disks = disks
        self._reserve = reserve
        #: The last checkpoint found no space.
        self.is_full = False
        # After a start that found none: the generation that has the last of what was replayed, and
        # what is to be done once it is flushed.
        self._replayed: Generation | None = None
        self._settle: Callable[[], Awaitable[None]] | None = None
        self._adopted = AdoptedJournals(parts, journal_directory(config))
        self._flusher = Flusher(config, env.disk, parts.writer, parts.index, self._adopted)
        #: The last one that was made durable in this life.
        self._checkpoint = NO_CHECKPOINT
        #: Logs that one names of which nobody knows whether it was written.
        self._unsure: set[int] = set()
        #: The journal's group that ends the generation being flushed.
        self._barrier: Group | None = None
        #: Deleted ledgers, with the journal's group that says so: to be done in the index once that
        #: is durable, and before the mark moves past it.
        self.deletions: dict[int, Group] = {}
        #: Those of them that logs were given up for already, while the disk is full.
        self._given: ChainMap[int, Group] = ChainMap()
        self._one_at_a_time = trio.Lock()
        self._wanted = trio.Event()
        self._started_count = 0
        self._done_count = 0
        self._done = trio.Event()
        self._is_stopped = False
        self._scope = trio.CancelScope()

    @property
    def is_settled(self) -> bool:
        """Nothing of the last start is left to do: what a crash left of the flush's logs."""
        return self._settle is None

    @property
    def checkpoint_log_ids(self) -> set[int]:
        """The entry logs that the last checkpoint of this life names, or may name."""
        return self._checkpoint.log_ids | self._unsure

    @property
    def current_log(self) -> EntryLog | None:
        """The flush's."""
        return self._writer.current

    async def roll_log(self) -> None:
        """Completes the flush's log, so that it can be compacted, and makes the checkpoint name
        the next one. Nothing happens if there is no space. Raises no OSError, as `once`."""
        async with self._one_at_a_time:
            if self._is_stopped or self._checkpoint is NO_CHECKPOINT:
                return
            with trio.CancelScope(shield=True) as self._scope:
                try:
                    with suppress_full():
                        await self._writer.start_log()
                        await self._move_mark(self._checkpoint.mark)
                except OSError as error:
                    self._fail(error)

    async def leave_adopted(self) -> None:
        """At a clean stop, when all is in a checkpoint: no journal is left that is to be an entry
        log, so that others than us may serve what is here. Nothing happens if there was no space
        for that checkpoint, or there is none for the next journal. Raises no OSError, as `once`."""
        if not self._logs.adopted or not self.is_settled:
            return
        while not self._is_stopped and not self.is_full and not self._disks.lacks_journal:
            if self._journal.leave():
                self._adopted.is_last = True
                # A whole one: a fence may have come since the last.
                await self.once()
                return
            await trio.sleep(NEXT_JOURNAL_SECONDS)  # the next journal is being prepared

    def watch_quiet(self, ledger_ids: Iterable[int]) -> None:
        """From now on `is_quiet` tells of these ledgers, and of no others."""
        self._flusher.quiet = set(ledger_ids)

    def is_quiet(self, ledger_id: int) -> bool:
        """Whether the ledger, which is watched, got no entry since it is."""
        return ledger_id in self._flusher.quiet and not self._cache.runs(ledger_id)

    async def empty_ledgers(self, ledger_ids: Sequence[int]) -> int:
        """Forgets the entries of those that are quiet, not the ledgers; how many. It is durable
        then; what a crash undoes before is there as it was. Entries that are added meanwhile are
        kept, for they are flushed afterwards. A few hundred ledgers. Nothing happens if there is
        no space. Raises no OSError, as `once`."""

        async def empty() -> int:
            # No flush is under way: what is neither quiet nor in the cache has been told.
            quiet = [ledger_id for ledger_id in ledger_ids if self.is_quiet(ledger_id)]
            if quiet:
                await self._reserve.with_room(partial(self._delete_entries, quiet))
                await self._forget_in_logs(quiet)
            return len(quiet)

        return await self._between_checkpoints(empty)

    async def forget_empty(self, ledger_ids: Sequence[int]) -> int:
        """Those of which the index has no entry: what the maps of entry logs still say of them,
        after a restart, is forgotten. A few hundred, ascending. As `empty_ledgers`."""

        async def forget() -> int:
            alive = frozenset(self._index.with_entries(ledger_ids))
            empty = [ledger_id for ledger_id in ledger_ids if ledger_id not in alive]
            if empty:
                # Nothing is concluded from a deletion that power may take back.
                await self._reserve.with_room(self._sync_index)
                await self._forget_in_logs(empty)
            return len(empty)

        return await self._between_checkpoints(forget)

    async def _between_checkpoints(self, work: Callable[[], Awaitable[int]]) -> int:
        async with self._one_at_a_time:
            if self._is_stopped or self._checkpoint is NO_CHECKPOINT or not self.is_settled:
                return 0
            with trio.CancelScope(shield=True) as self._scope:
                try:
                    with suppress_full():
                        return await work()
                except OSError as error:
                    self._fail(error)
        return 0

    async def _delete_entries(self, ledger_ids: Sequence[int]) -> None:
        self._index.mend()
        self._index.delete_entries(ledger_ids)
        await self._env.disk.run(self._index.sync)

    async def _sync_index(self) -> None:
        self._index.mend()
        await self._env.disk.run(self._index.sync)

    async def _forget_in_logs(self, ledger_ids: Sequence[int]) -> None:
        """Removes the logs that have no others. These ledgers stay known, so a start that misses
        the checkpoint's log would take them for lost: the checkpoint names another one before."""
        log = self._writer.current
        assert log is not None
        named = [log, *(each for each in self._logs.adopted.values() if each.ledgers is not None)]
        taken = [each.taken(ledger_ids) for each in named]
        try:
            await self._move_mark(self._checkpoint.mark)
        except OSError:
            # Without space for that, the last one names them there: the logs are not dead.
            for each, ledgers in zip(named, taken, strict=True):
                each.give_back(ledgers)
            raise
        await self._logs.drop_ledgers(ledger_ids)
        await self._logs.close_removed_later()

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

    async def flush(self) -> bool:
        """True when all that was added before is checkpointed; false if there was no space for
        that, or the bookie has ended."""
        number = self._started_count + (1 if self._cache.flushing is None else 2)
        while self._done_count < number and not self._is_stopped:
            self._wanted.set()
            await self._done.wait()
            if self.is_full:
                return False
        return not self._is_stopped

    async def run(self) -> None:
        """A checkpoint every `flush_interval_ms`, and whenever one is wanted."""
        while not self._is_stopped:
            seconds = self._config.flush_interval_ms / 1000
            with trio.move_on_after(min(seconds, FULL_RETRY_SECONDS) if self.is_full else seconds):
                await self._wanted.wait()
            with trio.CancelScope(shield=True):
                # Not left in the middle: a clean stop goes on from its end.
                await self.once()

    async def once(self) -> None:
        """One checkpoint. Raises no OSError: that ends the bookie, unless `is_full`."""
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
                    if not is_full(error):
                        self._fail(error)
                    else:
                        self._found_full(error)
                        return
            if self._scope.cancel_called:
                return
            self.is_full = False
            self._given = ChainMap()
            self._disks.clear_reason(Reason.FLUSH)
            if self._disks.is_read_only:
                self._disks.check()
            seconds = self._env.clock.monotonic() - start
            self._flusher.statistics.seconds += seconds
            self._flusher.statistics.latency.record(seconds)
            self._done_count = self._started_count
            self._done.set()
            self._done = trio.Event()

    def _found_full(self, error: OSError) -> None:
        if not self.is_full:
            logger.warning("checkpoint put off, the disk is full: %s", error)
        self.is_full = True
        self._started_count -= 1  # it is the same one that will be tried again
        done, self._done = self._done, trio.Event()
        done.set()
        self._disks.set_reason(Reason.FLUSH, f"no space for a checkpoint: {error}")

    async def _steps(self) -> None:
        self._index.mend()
        if self._settle is not None:
            await self._finish_replay(self._settle)
        if self._cache.flushing is None:
            self._swap()
        generation, barrier = self._cache.flushing, self._barrier
        assert generation is not None
        assert barrier is not None
        # Not left to the end of the turn: while stopping, nobody may be there to run it.
        self._journal.pump()
        mark = await self._wait_durable(barrier)
        if generation.entry_count:
            await self._flush(generation)
        self._cache.flushed()
        self._barrier = None
        self._progressed()
        await generation.empty()
        deletions = await self._durable_deletions()
        is_changed = await self.store_ledgers(deletions)
        await self._forget_deletions(deletions)
        if deletions and self._disks.state is not DiskState.OK:
            await self._give_up_log()
        if is_changed or generation.entry_count or mark != self._checkpoint.mark:
            await self._move_mark(mark)

    async def _wait_durable(self, barrier: Group) -> Position:
        """As the journal's. ENOSPC if that has no space for its next file, which may be what the
        group waits for: whoever makes space must not wait for this checkpoint."""
        while True:
            with trio.move_on_after(FULL_RETRY_SECONDS):
                return await self._journal.wait_durable(barrier)
            if self._disks.lacks_journal:
                await self._give_space()
                raise OSError(errno.ENOSPC, "the next journal finds no space")

    async def _give_space(self) -> None:
        """What is certainly dead goes before the checkpoint that finds no space: logs at once, and
        if there is room for that it is dead in the index, too, for the compaction."""
        deletions = await self._durable_deletions()
        is_removed = await self._logs.drop_ledgers(await self._not_given(deletions), at_once=True)
        await self._logs.close_removed()  # and what others removed
        if is_removed:
            logger.info("entry logs removed before the checkpoint that needs their space")
        with suppress_full():
            await self.store_ledgers(deletions)
            await self._forget_deletions(deletions)
        await self._give_up_log()

    async def _not_given(self, deletions: Sequence[dict[int, Group]]) -> list[int]:
        """Those that the tries before this one have not had: a walk over all maps takes seconds,
        and a full disk is tried each second. What comes of a log meanwhile, as by a compaction, is
        dropped with the checkpoint that finds space."""
        new: list[int] = []
        slices = Slices(DELETIONS_PER_TURN)
        for ledger_id, group in chain.from_iterable(portion.items() for portion in deletions):
            if slices.due():
                await slices.turn()
            if self._given.get(ledger_id) is not group:
                new.append(ledger_id)
        self._given = ChainMap(*deletions)
        return new

    async def _durable_deletions(self) -> list[dict[int, Group]]:
        """In portions of DELETIONS_TOGETHER_MAX, with the journal's groups that say so."""
        portions: list[dict[int, Group]] = []
        slices = Slices(DELETIONS_PER_TURN)
        # As they are now, in two lists: a pair for each of 300,000 would take 0.1 s of the loop.
        ledger_ids, groups = list(self.deletions), list(self.deletions.values())
        for start in range(0, len(ledger_ids), DELETIONS_TOGETHER_MAX):
            durable: dict[int, Group] = {}
            for at in range(start, min(start + DELETIONS_TOGETHER_MAX, len(ledger_ids))):
                if slices.due():
                    await slices.turn()
                if self._journal.is_durable(groups[at]):
                    durable[ledger_ids[at]] = groups[at]
            if durable:
                portions.append(durable)
        return portions

    async def _forget_deletions(self, done: Iterable[dict[int, Group]]) -> None:
        slices = Slices(DELETIONS_PER_TURN)
        for ledger_id, group in chain.from_iterable(portion.items() for portion in done):
            if slices.due():
                await slices.turn()
            # It may have been made again meanwhile, and deleted again.
            if self.deletions.get(ledger_id) is group:
                del self.deletions[ledger_id]
        self._logs.walk.deletions_are_done()

    async def _flush(self, generation: Generation) -> None:
        try:
            await self._require_room(generation)
            await self._flusher.flush(generation)
        except OSError as error:
            if is_full(error):
                await self._give_space()
            raise

    async def _require_room(self, generation: Generation) -> None:
        """ENOSPC if the generation certainly does not fit: half of it would only take the space
        that others can use."""
        needed = generation.record_size_bytes + generation.entry_count * INDEX_ENTRY_BYTES
        if self._free_bytes() < needed and len(self._config.ledger_directories) > 1:
            await self._writer.start_log()  # in a directory that has more
        if (free := self._free_bytes()) < needed:
            raise OSError(errno.ENOSPC, f"{needed} bytes are to be flushed, {free} are free")

    def _free_bytes(self) -> int:
        assert self._writer.current is not None
        return self._env.disk.usage(posixpath.dirname(self._writer.current.path))[1]

    async def _give_up_log(self) -> None:
        """A log is removed or compacted only when it is complete: on a disk that is (nearly) full
        the current one is completed as soon as half of it is dead."""
        log = self._writer.current
        assert log is not None
        assert log.ledgers is not None
        if sum(log.ledgers.values()) < (log.size_bytes - HEADER_SIZE) / 2:
            with suppress_full():
                await self._reserve.with_room(self._writer.start_log)

    async def make_room_replayed(self) -> None:
        """While starting: the active generation was full; the mark does not move. OSError."""
        if self._cache.flushing is not None:
            await self._flush_replayed()
        self._cache.swap()

    async def _flush_replayed(self) -> None:
        assert self._cache.flushing is not None
        self._index.mend()
        await self._flusher.flush(self._cache.flushing)
        self._cache.flushed()

    async def flush_replayed(self) -> bool:
        """After the replay: all of it; false if there is no space: then call `retain_replayed`.
        OSError, if it is another one."""
        try:
            if self._cache.flushing is not None:
                await self._flush_replayed()
            self._cache.swap()
            await self._flush_replayed()
        except OSError as error:
            if not is_full(error):
                raise
            self._found_full(error)
            return False
        return True

    def retain_replayed(self, deleted: set[int], settle: Callable[[], Awaitable[None]]) -> None:
        """What was replayed is in memory and in old journals only: the mark moves when all of it
        was flushed and `settle` is done. Call it when the journal is open."""
        group = self._journal.cut()
        self.deletions.update(dict.fromkeys(deleted, group))
        # In an active generation that is empty there is nothing of the replay's.
        flushing, active = self._cache.flushing, self._cache.active
        self._replayed = active if flushing is None or active.entry_count else flushing
        self._settle = settle

    async def _finish_replay(self, settle: Callable[[], Awaitable[None]]) -> None:
        self._journal.pump()
        await self._wait_durable(self._journal.cut())
        while self._replayed is not None:
            if self._cache.flushing is None:
                self._cache.swap()
            flushed = self._cache.flushing
            assert flushed is not None
            await self._flush(flushed)
            self._cache.flushed()
            self._barrier = None
            if flushed is self._replayed:
                self._replayed = None  # not again, should there be no space to settle
        await settle()
        self._settle = None

    async def store_ledgers(self, deletions: Sequence[Collection[int]]) -> bool:
        """The table's changes and the deletions, in portions, durable in the index; whether there
        were any. OSError; if it is for want of space, it may be called again."""
        states = self._table.take_dirty(*deletions)
        if not states and not deletions:
            return False

        async def store() -> None:
            self._index.mend()
            await self._put_ledgers(deletions, states)
            await self._env.disk.run(self._index.sync)

        try:
            await self._reserve.with_room(store)
        except OSError:
            self._table.give_back(states)
            raise
        for portion in deletions:
            await self._logs.drop_ledgers(portion)
        if deletions:
            await self._logs.close_removed_later()
        return True

    async def _put_ledgers(
        self, deletions: Sequence[Collection[int]], states: list[LedgerState]
    ) -> None:
        """In slices: it runs on the loop's thread. A crash in between leaves some of them, which
        the journal still has all."""
        for portion in deletions:
            deleted = await sort_in_slices(portion)
            while some := list(islice(deleted, LEDGERS_PER_TURN)):
                self._index.delete_ledgers(some)
                await trio.lowlevel.checkpoint()
        for start in range(0, len(states), LEDGERS_PER_TURN):
            part = states[start : start + LEDGERS_PER_TURN]
            self._index.put_ledgers((state.ledger_id, state.encode()) for state in part)
            await trio.lowlevel.checkpoint()

    async def _move_mark(self, mark: Position) -> None:
        assert mark[:2] >= self._checkpoint.mark[:2], "the mark never goes back"
        log = self._writer.current
        assert log is not None
        assert log.ledgers is not None
        checkpoint = Checkpoint(
            mark,
            log.log_id,
            log.size_bytes,
            dict(log.ledgers),
            self._index.stamps,
            tuple(self._adopted.names()),
        )
        disk = self._env.disk
        # It is two files, of which the second may find no space.
        self._unsure |= checkpoint.log_ids
        await self._reserve.with_room(
            partial(disk.run, write_checkpoint, disk, ledger_directory(self._config), checkpoint)
        )
        self._checkpoint = checkpoint
        self._unsure.clear()
        await self._files.recycle(mark.journal_id)
        if any(journal_id < mark.journal_id for journal_id in self._logs.adopted):
            await self._reserve.with_room(partial(self._adopted.complete, mark.journal_id))
            # What it names is not compacted, as a start compares it.
            await self._move_mark(checkpoint.mark)
