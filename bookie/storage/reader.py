"""Reads: from the write cache, else from the entry logs (feature 34).

The read cache is the page cache. A flush sorts a generation by ledger, so what follows an entry in
its log is mostly the next entry of the ledger: the index is asked for the first entry of a run
only, and not even for that if the last read ended right before it. Entries are views into one copy
of a piece of the log (runtime/cached_reads.py says why not into a mapping). What is not in memory
is read on a worker thread, with read-ahead, so that a reader that goes on finds the next range in
memory.

A record that is not what the index says is never «no such entry»: DamagedRecordError, which the
bookie answers EIO (invariant B4). Where all ledgers have CRC32C digests, each part of a log is
checked when it is read first, and again when a read had to wait for the disk. Not every time: that
would double what a read of small entries costs. The reader behind it does check, and the scrub.

Owner: the event loop's thread.
"""

from __future__ import annotations

import struct
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from bookie.errors import DamagedRecordError
from bookie.storage.cold_reads import ColdReads
from bookie.storage.entry_log_format import (
    LENGTH_SIZE,
    MAP_ENTRY_ID,
    MAP_LEDGER_ID,
    RECORD_START_SIZE,
)
from bookie.storage.verified_ranges import VerifiedRanges
from runtime.cached_reads import LARGEST_POOLED_BYTES
from runtime.histogram import LatencyHistogram
from wire.bookkeeper.entry import crc32c_matches
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from bookie.config import BookieConfig
    from bookie.health.damage import DamageReports
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.entry_logs import EntryLogs
    from bookie.storage.index import EntryIndex
    from bookie.storage.write_cache import WriteCache
    from runtime.disk import Disk, File

_unpack_record = struct.Struct(">iqq").unpack_from
ENTRY_SIZE_MIN = 32
#: Positions of what was read last and right behind it, by the entry that is expected there.
HINTS_MAX = 8192
#: A run is looked at in windows: the first, and those behind it, each so many times as large up to
#: a size, and twice from there on; and if it is one entry.
WINDOW_SIZE_MIN_BYTES = 16 * 1024
WINDOW_GROWTH = 8
WINDOW_SIZE_GROWN_BYTES = 128 * 1024
WINDOW_SIZE_MAX_BYTES = LARGEST_POOLED_BYTES
#: Behind one large record: a filler of a journal (adopted.py), and how the next record begins.
BEHIND_BYTES = 4096 + 2 * RECORD_START_SIZE
SINGLE_SIZE_MIN_BYTES = 2048
SINGLE_SIZE_MAX_BYTES = 256 * 1024
#: Entries that are less than this part of what was looked at are copied out of it: who keeps them
#: for long (a slow client) does not keep all of it.
PINNED_SHARE_MIN = 8
_LOCATION_OFFSET_MASK = 0xFFFFFFFF


@dataclass(slots=True)
class ReadStatistics:
    cache_entries: int = 0
    log_entries: int = 0
    entry_bytes: int = 0
    #: Reads that had to wait for the disk.
    misses: int = 0
    #: Per request that had to wait.
    miss_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    #: Entries whose digest was checked.
    verified_entries: int = 0


class _Hint(NamedTuple):
    """Where an entry's record is, and how many bytes there are to be looked at: for all that is
    wanted at most, and for this record."""

    log_id: int
    position: int
    window: int
    least: int


class _Run:
    """Consecutive entries found in one log, from `position` (of a record's length)."""

    __slots__ = (
        "end", "entries", "intact_count", "is_followed", "last_position", "missing", "next_size",
        "next_window", "position", "size",
    )  # fmt: skip

    def __init__(self, position: int) -> None:
        self.entries: list[memoryview] = []
        #: So many at the start have the right digest; -1: nobody looked.
        self.intact_count = -1
        self.size = 0
        self.position = position
        #: Of the last entry's record, and where that ends.
        self.last_position = self.end = position
        #: The window ended inside the next record: how large it has to be to hold that too.
        self.missing = 0
        #: At `position` is the next entry of the ledger, of this size, and this much is looked at
        #: from there, if it is wanted.
        self.is_followed = False
        self.next_size = self.next_window = 0


def _count_intact(entries: list[memoryview]) -> int:
    """How many of them come before the first whose CRC32C is wrong."""
    for count, entry in enumerate(entries):
        if not crc32c_matches(entry, 0, len(entry)):
            return count
    return len(entries)


class Reader:
    __slots__ = (
        "_cache",
        "_cold_reads",
        "_config",
        "_damages",
        "_disk",
        "_drop_count",
        "_hints",
        "_index",
        "_logs",
        "_single_size",
        "_verified",
        "_verify_digest",
        "statistics",
    )

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        cache: WriteCache,
        logs: EntryLogs,
        index: EntryIndex,
        damages: DamageReports,
    ) -> None:
        self._config = config
        self._damages = damages
        self._verify_digest = config.verify_digest_on_write
        self._verified = VerifiedRanges()
        self._disk = disk
        self._cache = cache
        self._logs = logs
        self._index = index
        self._cold_reads = ColdReads()
        self._single_size = SINGLE_SIZE_MIN_BYTES
        self._hints: dict[tuple[int, int], _Hint] = {}
        #: Of the write cache, when the hints were right.
        self._drop_count = cache.drop_count
        self.statistics = ReadStatistics()

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id of the ledger, -1 if it has none."""
        return max(self._cache.last_entry_id(ledger_id), self._index.last_entry_id(ledger_id))

    def read_nowait(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> list[memoryview] | None:
        """Consecutive entries from `first_entry_id`, as many as are there: the first always, if it
        exists, then while their number and bytes stay within the limits. None if the first is not
        in memory; an empty list if it does not exist. DamagedRecordError, OSError."""
        entries: list[memoryview] = []
        size = 0
        statistics = self.statistics
        while True:
            count = len(entries)
            # The first entry of all goes whatever its size; the cache lets its first go too.
            if count and (count >= count_max or size >= size_max):
                break
            found = self._cache.read(
                ledger_id,
                first_entry_id + count,
                count_max - count,
                size_max - size,
                entries,
            )
            if len(entries) > count:
                if count and size + found > size_max:
                    del entries[count:]
                    break
                statistics.cache_entries += len(entries) - count
                size += found
                continue
            try:
                run = self._read_log_nowait(
                    ledger_id,
                    first_entry_id + count,
                    count_max - count,
                    size_max - size,
                    count == 0,
                )
            except (DamagedRecordError, OSError):
                if not entries:
                    raise
                break  # what is before it is fine; who asks for it by itself is told
            if run is None:
                if not entries:
                    return None
                break
            if not run.entries:
                break
            entries += run.entries
            size += run.size
            statistics.log_entries += len(run.entries)
            if size + run.next_size > size_max:
                break
        statistics.entry_bytes += size
        return entries

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        count_max: int,
        size_max: int,
        *,
        is_urgent: bool = False,
    ) -> list[memoryview]:
        """As `read_nowait`, waiting for the disk where that is needed, and for others that do:
        not behind those that are not urgent, if it is."""
        entries = self.read_nowait(ledger_id, first_entry_id, count_max, size_max)
        if entries is not None:
            return entries
        self.statistics.misses += 1
        async with self._cold_reads.turn(is_urgent=is_urgent):
            return await self._read_log(ledger_id, first_entry_id, count_max, size_max)

    async def _read_log(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> list[memoryview]:
        self._hints.pop((ledger_id, first_entry_id), None)  # it has been tried, or came meanwhile
        located = self._locate(ledger_id, first_entry_id)
        if located is None:
            return []
        log, position = located
        drop_count = self._cache.drop_count
        file = self._logs.file(log)
        log.readers += 1
        try:
            ahead = min(self._config.read_ahead_size_bytes, log.size_bytes - position)
            run = _Run(position)
            window = max(size_max + RECORD_START_SIZE, WINDOW_SIZE_MIN_BYTES)
            while not run.entries:
                size = min(max(window, run.missing), log.size_bytes - position)
                run = await self._disk.run(
                    self._read_run,
                    file,
                    log,
                    position,
                    size,
                    ahead,
                    ledger_id,
                    first_entry_id,
                    count_max,
                    size_max,
                )
                ahead = 0  # they were asked for
            self._verified.forget(log.log_id)
            self._cut_at_damage(log, run, position, ledger_id, first_entry_id)
        finally:
            self._logs.release(log)
        if drop_count == self._cache.drop_count:
            self._remember(ledger_id, first_entry_id, log, run, count_max)
        self.statistics.log_entries += len(run.entries)
        self.statistics.entry_bytes += run.size
        return run.entries

    def _read_run(
        self,
        file: File,
        log: EntryLog,
        position: int,
        size: int,
        ahead: int,
        ledger_id: int,
        first_entry_id: int,
        count_max: int,
        size_max: int,
    ) -> _Run:
        """On a worker thread: touches nothing but the file and the run. Even to ask for pages takes
        milliseconds, as the kernel looks for the memory first."""
        if ahead:
            file.prefetch(ahead, position)
        run = _Run(position)
        window = memoryview(file.pread(size, position))
        self._follow(window, log, run, ledger_id, first_entry_id, count_max, size_max, True)
        if self._verify_digest:
            run.intact_count = _count_intact(run.entries)
        return run

    def _cut_at_damage(
        self, log: EntryLog, run: _Run, origin: int, ledger_id: int, first_entry_id: int
    ) -> None:
        """Shortens a run to what is in front of the first damaged entry; DamagedRecordError if
        nothing is."""
        count = run.intact_count
        position = last_position = origin
        self.statistics.verified_entries += max(count, 0)
        if count < 0:
            count = len(run.entries)
        known = self._damages.first_cut(log.log_id, origin, run.position)
        for index, entry in enumerate(run.entries):
            if index == count or position == known:
                break
            last_position = position
            position += LENGTH_SIZE + len(entry)
        else:
            if run.intact_count >= 0:
                self._verified.add(log.log_id, origin, run.position)
            return
        self._damages.cut_reads_at(log.log_id, position)
        if index == 0:
            raise DamagedRecordError(
                log.path,
                position,
                f"the digest of ledger {ledger_id} entry {first_entry_id} does not match",
            )
        run.size -= sum(map(len, run.entries[index:]))
        del run.entries[index:]
        run.last_position = last_position
        run.position = run.end = position
        run.is_followed = False
        run.next_size = run.next_window = 0

    def _read_log_nowait(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int, always: bool
    ) -> _Run | None:
        """None if it would have to wait, or if a hint was wrong: the next one asks the index.
        `always`: the first goes even if it is too large."""
        self._drop_hints_of_deleted()
        hint = self._hints.get((ledger_id, first_entry_id))
        try:
            return self._look(hint, ledger_id, first_entry_id, count_max, size_max, always)
        except (DamagedRecordError, OSError):
            if hint is None:
                raise
            # What was seen behind other entries is not always what the index refers to: of a
            # journal that was adopted the end is cut off, and an entry may be written again.
            return None

    def _look(
        self,
        hint: _Hint | None,
        ledger_id: int,
        first_entry_id: int,
        count_max: int,
        size_max: int,
        always: bool,
    ) -> _Run | None:
        located = self._locate(ledger_id, first_entry_id)
        if located is None:
            return _Run(0)
        log, position = located
        file = self._logs.file(log)
        rest = log.size_bytes - position
        size = min(self._window(count_max, size_max, hint), rest)
        while True:
            window = file.read_cached(size, position)
            if len(window) < size:
                self._verified.forget(log.log_id)  # the kernel may be reading now
            if len(window) < RECORD_START_SIZE:
                return None
            run = _Run(position)
            run.next_window = 0 if hint is None else hint.window
            self._follow(window, log, run, ledger_id, first_entry_id, count_max, size_max, always)
            if run.entries or not run.missing:
                if run.size < len(window) // PINNED_SHARE_MIN:
                    run.entries = [memoryview(bytes(entry)) for entry in run.entries]
                if self._verify_digest and not self._verified.covers(log.log_id, position, run.end):
                    run.intact_count = _count_intact(run.entries)
                if run.intact_count >= 0 or self._damages.has_cuts:
                    self._cut_at_damage(log, run, position, ledger_id, first_entry_id)
                self._remember(ledger_id, first_entry_id, log, run, count_max)
                return run
            if len(window) < size:
                return None  # the rest of the record is not in memory
            size = run.missing
            if count_max == 1:
                self._single_size = min(size + size // 8, SINGLE_SIZE_MAX_BYTES)
            else:
                size = min(size + BEHIND_BYTES, rest)

    def _window(self, count_max: int, size_max: int, hint: _Hint | None) -> int:
        """How much to look at first. What is looked at is copied, so a reader that is not known
        to go on in this log gets little; the next window of its run is larger."""
        if count_max == 1:
            # As much as the last records took; a little less each time, should they be smaller.
            size = self._single_size
            self._single_size = max(size - size // 256, SINGLE_SIZE_MIN_BYTES)
            return size
        wanted = max(size_max + RECORD_START_SIZE, SINGLE_SIZE_MIN_BYTES)
        if hint is None:
            return min(wanted, WINDOW_SIZE_MIN_BYTES)
        return max(min(wanted, hint.window, WINDOW_SIZE_MAX_BYTES), hint.least)

    def _drop_hints_of_deleted(self) -> None:
        """A ledger with the same id may be made anew, while the log of the old one is there."""
        if self._drop_count != self._cache.drop_count:
            self._drop_count = self._cache.drop_count
            self._hints.clear()

    def _locate(self, ledger_id: int, entry_id: int) -> tuple[EntryLog, int] | None:
        """The log and the position of the record, its length included; None if there is none."""
        hint = self._hints.pop((ledger_id, entry_id), None)
        if (
            hint is not None
            and (log := self._logs.get(hint.log_id)) is not None
            and hint.position <= log.size_bytes - RECORD_START_SIZE  # it may have been cut
            # What is damaged there may have been written again, elsewhere.
            and self._damages.first_cut(log.log_id, hint.position, hint.position + 1) < 0
        ):
            return log, hint.position
        location = self._index.get(ledger_id, entry_id)
        if location == 0:
            return None
        log = self._logs.get(location >> 32)
        position = (location & _LOCATION_OFFSET_MASK) - LENGTH_SIZE
        if log is None:
            raise DamagedRecordError(
                self._logs.missing_path(location >> 32),
                position,
                f"the index says that ledger {ledger_id} entry {entry_id} is there, and this entry "
                "log is missing",
            )
        if position > log.size_bytes - RECORD_START_SIZE:
            raise DamagedRecordError(
                log.path,
                position,
                f"the index says that ledger {ledger_id} entry {entry_id} is there, and the log "
                f"ends at {log.size_bytes}",
            )
        return log, position

    def _remember(
        self, ledger_id: int, first_entry_id: int, log: EntryLog, run: _Run, count_max: int
    ) -> None:
        """Where a reader may go on: behind the run, and, of a broker, at its last entry, of which
        it may not have taken all."""
        count = len(run.entries)
        behind = run.next_window if run.is_followed else 0
        if count and count_max > 1:
            least = run.end - run.last_position + BEHIND_BYTES
            hint = _Hint(log.log_id, run.last_position, least + behind, least)
            self._hint(ledger_id, first_entry_id + count - 1, hint)
        if run.is_followed:
            hint = _Hint(log.log_id, run.position, behind, run.next_size + BEHIND_BYTES)
            self._hint(ledger_id, first_entry_id + count, hint)

    def _hint(self, ledger_id: int, entry_id: int, hint: _Hint) -> None:
        hints = self._hints
        if len(hints) >= HINTS_MAX:
            del hints[next(iter(hints))]
        hints[ledger_id, entry_id] = hint

    def _follow(
        self,
        window: memoryview,
        log: EntryLog,
        run: _Run,
        ledger_id: int,
        entry_id: int,
        count_max: int,
        size_max: int,
        always: bool,
    ) -> None:
        """Takes records from the window while they are the next entries of the ledger.

        The first is where the index says it is, so anything else there is damage; `run.missing`
        says how large a window has to be that holds it."""
        entries = run.entries
        origin = run.position
        at = total = 0
        end = len(window)
        window = window.toreadonly()
        is_passed = False
        while at + RECORD_START_SIZE <= end:
            size, found_ledger_id, found_entry_id = _unpack_record(window, at)
            start = at + LENGTH_SIZE
            record_end = start + size
            if origin + record_end > (log.followed_end if entries else log.size_bytes):
                break
            if found_ledger_id == MAP_LEDGER_ID and found_entry_id == MAP_ENTRY_ID and entries:
                # Between the groups of a journal. What is behind it is another run.
                if size < RECORD_START_SIZE - LENGTH_SIZE:
                    break
                is_passed = True
                at = record_end
                continue
            if found_ledger_id != ledger_id or found_entry_id != entry_id or size < ENTRY_SIZE_MIN:
                break
            # From here on the record is the next entry, whether it is taken or not.
            is_too_large = total + size > size_max and (entries or not always)
            if is_too_large or is_passed or record_end > end or len(entries) >= count_max:
                run.is_followed = True
                run.next_size = size
                run.missing = 0 if is_too_large or entries else record_end
                is_first = not run.next_window and at > WINDOW_SIZE_MIN_BYTES
                is_short = is_passed or (is_first and len(entries) == 1)
                window_before = run.next_window if is_too_large and not is_passed else 0
                next_window = _next_window(at, record_end - at, is_short=is_short)
                run.next_window = max(window_before, next_window)
                break
            entries.append(window[start:record_end])
            run.last_position = origin + at
            at = record_end
            run.end = origin + at
            total += size
            entry_id += 1
        if not entries and not run.is_followed:
            raise DamagedRecordError(
                log.path,
                origin,
                f"not the record of ledger {ledger_id} entry {entry_id} that the index says is "
                "there",
            )
        run.size = total
        run.position = origin + at


def _next_window(consumed: int, record_size: int, *, is_short: bool) -> int:
    """What to look at behind a run of so many bytes, for a record of that size and those behind it.
    `is_short`: it ended at the end of a journal's group, or is the first and one large entry, which
    is no sign that many follow. (That a reader wants no more is no sign of a shorter run.)"""
    needed = record_size + BEHIND_BYTES
    if is_short:
        return max(consumed, needed)
    grown = max(2 * consumed, min(WINDOW_GROWTH * consumed, WINDOW_SIZE_GROWN_BYTES))
    # Of entries of one size as many fit, and how the next one begins.
    return max(grown + RECORD_START_SIZE, needed, WINDOW_SIZE_MIN_BYTES)
