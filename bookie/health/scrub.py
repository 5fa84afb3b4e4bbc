"""The scrub: looks at all entry logs in turn, slowly, to find damage before somebody needs the data
(BookKeeper: localScrubInterval).

A pass goes over every log from front to back; of the one that is being written, over what was
durable when the pass began. Each record has to be one; if the index points at it, its digest has to
match; and the index has to know every entry of a ledger that is not deleted. Entries of which the
index cannot be read are damaged, too, and the pass goes on behind them. A log that cannot be
followed to its end is looked at from the index's side, digests included (consistency.py): behind
one rotten length there may be another rotten entry, and nobody else looks for it. What is found is
reported (damage.py) and from then on answered EIO, never repaired here: other replicas have it.

It must not be felt: reads are in chunks on a worker thread, so that a hot chunk's pages stay and
what the scrub alone brought into memory is dropped again; the checks run on the loop's thread, a
few hundred records at a time; and all of it is throttled by bytes and, if wanted, by entries.

Where a pass stands, and which logs have damage, is kept in the file `scrub` of the ledger
directory: a pass goes on after a restart, and in front of it the scrub looks at these logs
(scrub_state.py).

Owner: the event loop's thread. One pass at a time.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import trio

from bookie.errors import BookieStartError, CorruptionError
from bookie.health.consistency import ConsistencyCheck, ConsistencyReport
from bookie.health.damage import DAMAGES_MAX, UNKNOWN_ID
from bookie.health.digest_guess import DigestGuess
from bookie.health.index_lookup import has_entries, location_of, look_up
from bookie.health.record_check import RecordCheck
from bookie.health.scrub_state import FILE_NAME, ScrubState
from bookie.start import ledger_directory
from bookie.storage.entry_log_format import HEADER_SIZE, LENGTH_SIZE, read_ledgers_map
from bookie.storage.log_scan import LogScanner
from runtime.throttle import Throttle
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bookie.health.consistency import Places
    from bookie.health.damage import Damage
    from bookie.known_ledgers import KnownLedgers
    from bookie.parts import BookieParts
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.log_scan import RecordSlice
    from runtime.disk import File

    #: A log, and how much of it: bytes from its start.
    Part = tuple[EntryLog, int]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ScrubStatus:
    """Of the pass under way, or of the last one."""

    is_running: bool = False
    #: Wall clock, milliseconds; 0: there was none.
    started_ms: int = 0
    finished_ms: int = 0
    #: The log that is being looked at; those before it are done. -1: none yet.
    log_id: int = -1
    logs: int = 0
    bytes: int = 0
    total_bytes: int = 0
    #: Live records that were looked at, and those of them of which nobody knows the digest.
    verified_entries: int = 0
    unverifiable_entries: int = 0
    damaged_entries: int = 0
    #: Passes that came to their end since the start of the process.
    passes: int = 0


class _DroppingFile:
    """The log's file for the scanner: what was not in memory before does not stay there."""

    __slots__ = ("_file", "path")

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path

    def size(self) -> int:
        return self._file.size()

    def pread(self, size: int, offset: int) -> bytes:
        was_cached = self._file.is_cached(size, offset)
        data = self._file.pread(size, offset)
        if not was_cached:
            self._file.drop_cached(size, offset)
        return data


def _ids_in_map(file: File) -> frozenset[int] | None:
    """The ledgers that had records in a log when it was completed; None if nobody can tell."""
    try:
        ledgers = read_ledgers_map(file)
    except CorruptionError:
        return None
    return frozenset(ledgers) if ledgers is not None else None


class Scrubber:
    def __init__(self, parts: BookieParts, known: KnownLedgers | None) -> None:
        config, env, damages = parts.config, parts.env, parts.damages
        self._config = config
        self._env = env
        self._logs = parts.logs
        self._index = parts.index
        self._table = parts.table
        self._cache = parts.cache
        self._writer = parts.writer
        self._check = RecordCheck(known, is_crc32c=config.verify_digest_on_write)
        self._guess = DigestGuess(is_crc32c=config.verify_digest_on_write)
        self._damages = damages
        self._status = ScrubStatus()
        #: (log id, offset of the record) of live records that this pass found damaged.
        self._found_live_at: set[tuple[int, int]] = set()
        self._directory = ledger_directory(config)
        path = f"{self._directory}/{FILE_NAME}"
        self._state = ScrubState(env.disk, env.clock, path, damages)
        self._one_at_a_time = trio.Lock()

    def status(self) -> ScrubStatus:
        return replace(self._status)

    def damages(self) -> list[Damage]:
        """All damage that was found since the start, by reads too."""
        return self._damages.listed()

    async def run(self) -> None:
        """Looks at the logs that had damage before the start, and then makes a pass every
        `scrub_interval_ms`, until cancelled; never returns."""
        self._state.load()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._state.run)
            await self._look_again()
            await self._make_passes()

    async def _look_again(self) -> None:
        if not self._state.suspects:
            return
        async with self._one_at_a_time:
            chosen = set(self._state.suspects)
            parts = [part for part in self._parts(0) if part[0].log_id in chosen]
            self._status = ScrubStatus(True, self._env.clock.time_ms(), passes=self._status.passes)
            await self._scrub_parts(parts, self._throttles())
            self._state.suspects = []
            await self._state.store()
            self._ended("scrub of the logs that had damage")

    async def _make_passes(self) -> None:
        interval_ms = self._config.scrub_interval_ms
        if interval_ms <= 0:
            await trio.sleep_forever()
        state = self._state
        started_ms, next_log_id = state.started_ms, state.next_log_id
        while True:
            if next_log_id < 0:
                wait_ms = started_ms + interval_ms - self._env.clock.time_ms()
                await trio.sleep(min(max(wait_ms, 0), interval_ms) / 1000)
                started_ms, next_log_id = self._env.clock.time_ms(), 0
            await self._pass(started_ms, next_log_id, is_throttled=True)
            next_log_id = -1

    async def scrub(self, on_progress: Callable[[int], None] | None = None) -> ScrubStatus:
        """A whole pass now, as fast as the disk goes; `on_progress` is given the bytes that were
        looked at since it was last called, of `total_bytes()`."""
        return await self._pass(
            self._env.clock.time_ms(), 0, is_throttled=False, on_progress=on_progress
        )

    def total_bytes(self) -> int:
        """What a pass that starts now looks at."""
        return sum(end for _, end in self._parts(0))

    async def check_index(
        self, on_progress: Callable[[int], None] | None = None
    ) -> ConsistencyReport:
        """The local consistency check; `on_progress` is given numbers of entries.
        BookieStartError where the index cannot be read."""
        check = ConsistencyCheck(
            self._env.disk, self._logs, self._index, self._damages, Throttle(0)
        )
        return await check.run(on_progress=on_progress)

    async def check_at_start(self) -> None:
        """localConsistencyCheckOnStartup; BookieStartError if anything is not as it should be."""
        if not self._config.local_consistency_check_on_startup:
            return
        report = await self.check_index()
        if report.damaged:
            raise BookieStartError(
                f"the local consistency check found {report.damaged} of {report.entries} entries "
                f"damaged; the first: {report.first}"
            )

    def _parts(self, first_log_id: int) -> list[Part]:
        """What there is to look at from this log on: whole logs, of the one that the flush writes
        to what is durable, and of journals that are to be logs what is referred to. (A log that
        compaction writes to is not in use yet.)"""
        parts = [(log, log.size_bytes) for log in self._logs.all() if not log.is_written]
        log = self._writer.current
        if log is not None and self._writer.durable_bytes > HEADER_SIZE:
            parts.append((log, self._writer.durable_bytes))
        parts += [(log, log.records_end) for log in self._logs.adopted.values() if log.ledgers]
        chosen = [part for part in parts if part[0].log_id >= first_log_id]
        return sorted(chosen, key=lambda part: part[0].log_id)

    def _throttles(self, *, is_throttled: bool = True) -> tuple[Throttle, Throttle]:
        """Of entries, and of bytes."""
        config = self._config
        return (
            Throttle(config.scrub_rate_entries if is_throttled else 0),
            Throttle(config.scrub_rate_bytes if is_throttled else 0),
        )

    async def _pass(
        self,
        started_ms: int,
        first_log_id: int,
        *,
        is_throttled: bool,
        on_progress: Callable[[int], None] | None = None,
    ) -> ScrubStatus:
        async with self._one_at_a_time:
            self._state.started_ms = started_ms
            self._status = ScrubStatus(True, started_ms, passes=self._status.passes)
            throttles = self._throttles(is_throttled=is_throttled)
            await self._scrub_parts(
                self._parts(first_log_id), throttles, on_progress, is_kept=is_throttled
            )
            self._state.next_log_id = -1
            await self._state.store()
            self._status.passes += 1
            self._ended("scrub")
            return replace(self._status)

    async def _scrub_parts(
        self,
        parts: list[Part],
        throttles: tuple[Throttle, Throttle],
        on_progress: Callable[[int], None] | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        """`is_kept`: after a restart it goes on with the log that it is at."""
        status = self._status
        status.total_bytes = sum(end for _, end in parts)
        self._found_live_at.clear()
        broken: set[int] = set()
        for log, end in parts:
            if self._logs.get(log.log_id) is not log:
                continue  # it was compacted or removed meanwhile
            status.log_id = log.log_id
            if is_kept:
                self._state.next_log_id = log.log_id
                await self._state.store()
                if self._logs.get(log.log_id) is not log:
                    continue  # or while that was stored
            if not await self._scrub_log(log, end, throttles, on_progress):
                broken.add(log.log_id)
            status.logs += 1
        if broken:
            await self._check_broken(broken, throttles)

    def _ended(self, what: str) -> None:
        status = self._status
        status.is_running = False
        status.finished_ms = self._env.clock.time_ms()
        logger.info(
            "%s logs=%d bytes=%d verified=%d unverifiable=%d damaged=%d",
            what,
            status.logs,
            status.bytes,
            status.verified_entries,
            status.unverifiable_entries,
            status.damaged_entries,
        )

    async def _scrub_log(
        self,
        log: EntryLog,
        size_bytes: int,
        throttles: tuple[Throttle, Throttle],
        on_progress: Callable[[int], None] | None,
    ) -> bool:
        """Whether all of its first `size_bytes` could be followed."""
        status = self._status
        # The collector cuts a torn map off, before the log is in use again.
        size_bytes = min(size_bytes, log.size_bytes)
        end = min(log.records_end or size_bytes, size_bytes)
        log.readers += 1
        try:
            file = cast("File", _DroppingFile(self._logs.file(log)))
            ids = await self._env.disk.run(_ids_in_map, file)
            scanner = LogScanner(self._env.disk, file, end)
            position = 0
            is_followed = True
            while (records := await scanner.next()) is not None:
                if not await self._scrub_slice(log, records, ids):
                    is_followed = False
                reached = records.offsets[-1] + records.sizes[-1]
                status.bytes += reached - position
                if on_progress is not None:
                    on_progress(reached - position)
                await throttles[0].take(len(records.keys))
                await throttles[1].take(reached - position)
                position = reached
        finally:
            self._logs.release(log)
        if scanner.damage is None:
            status.bytes += size_bytes - position
            return is_followed
        if self._logs.get(log.log_id) is log:
            offset, reason = scanner.damage
            self._found(log, offset, UNKNOWN_ID, UNKNOWN_ID, reason)
        return False

    async def _scrub_slice(
        self, log: EntryLog, records: RecordSlice, ids: frozenset[int] | None
    ) -> bool:
        """`ids`: of the ledgers in the log's map. False if one of the records that the index does
        not point at is not what it says: then it may be one that the index does point at."""
        status = self._status
        locations, unreadable = await look_up(self._index, records.keys)
        for i, reason in unreadable.items():
            self._found_unreadable(*records.keys[i], reason)
        base = log.log_id << 32
        live = [i for i, offset in enumerate(records.offsets) if locations[i] == base | offset]
        for i, problem in await self._problems(records, live):
            self._found_live(log, records, i, locations[i], problem)
        status.verified_entries += len(live)
        for i, location in enumerate(locations):
            if location == 0 and self._is_lost(*records.keys[i]):
                position = records.offsets[i] - LENGTH_SIZE
                self._found(log, position, *records.keys[i], "the index does not know it")
        others = set(range(len(records.keys))).difference(live)
        await self._cut_at_superseded(log, records, [i for i in others if locations[i] > 0])
        return not any(
            (ids is not None and records.keys[i][0] not in ids)
            or self._matches(records, i) is False
            for i in others
        )

    async def _cut_at_superseded(
        self, log: EntryLog, records: RecordSlice, chosen: Sequence[int]
    ) -> None:
        """Records whose entries were written again elsewhere: a reader that comes from the entry in
        front takes them all the same, so it must not if they are damaged."""
        await self._check.prepare(records, chosen)
        for i in chosen:
            if self._check.problem(records, i) is not None or self._matches(records, i) is False:
                self._damages.cut_reads_at(log.log_id, records.offsets[i] - LENGTH_SIZE)

    async def _problems(self, records: RecordSlice, chosen: Sequence[int]) -> list[tuple[int, str]]:
        """Those of the chosen records that are not what was stored, and why."""
        await self._check.prepare(records, chosen)
        found: list[tuple[int, str]] = []
        untold: list[int] = []
        for i in chosen:
            problem = self._check.problem(records, i)
            if problem is None and not self._check.can_tell(records.keys[i][0]):
                intact = self._matches(records, i)
                if intact is None:
                    untold.append(i)
                problem = "digest mismatch" if intact is False else None
            if problem is not None:
                found.append((i, problem))
        for i in untold:
            # What came behind may have told how the ledger's entries are sealed.
            intact = self._matches(records, i)
            self._status.unverifiable_entries += intact is None
            if intact is False:
                found.append((i, "digest mismatch"))
        return found

    def _found_live(
        self, log: EntryLog, records: RecordSlice, i: int, location: int, problem: str
    ) -> None:
        """Unless it was compacted or deleted while the metadata was asked."""
        if location_of(self._index, *records.keys[i]) == location:
            position = records.offsets[i] - LENGTH_SIZE
            self._damages.cut_reads_at(log.log_id, position)
            if len(self._found_live_at) < DAMAGES_MAX:
                self._found_live_at.add((log.log_id, position))
            self._found(log, position, *records.keys[i], problem)

    def _matches(self, records: RecordSlice, i: int) -> bool | None:
        start, size = records.offsets[i] - records.origin, records.sizes[i]
        return self._guess.matches(records.keys[i][0], records.data, start, size)

    def _is_lost(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the index ought to know this entry, and does not. Of a ledger whose entries were
        given up (bookie/space/over_replicated.py) it knows none; if it lost them all, the auditor
        finds that, as the bookie does not list them."""
        return (
            self._is_indexed(ledger_id, entry_id)
            and location_of(self._index, ledger_id, entry_id) == 0
            and has_entries(self._index, ledger_id)
        )

    def _is_indexed(self, ledger_id: int, entry_id: int) -> bool:
        """Whether only the index can say where this entry is: its ledger is not deleted, and it is
        not in memory."""
        return self._table.get(ledger_id) is not None and not any(
            entry_id in run for run in self._cache.runs(ledger_id)
        )

    def _found_unreadable(self, ledger_id: int, entry_id: int, reason: str) -> None:
        """The index cannot be read there, so no read finds the entry: another bookie's copy has to
        take its place, whatever this record is."""
        if self._is_indexed(ledger_id, entry_id):
            self._status.damaged_entries += 1
            self._damages.report(self._directory, UNKNOWN_ID, ledger_id, entry_id, reason)

    def _found(
        self, log: EntryLog, position: int, ledger_id: int, entry_id: int, reason: str
    ) -> None:
        self._status.damaged_entries += 1
        self._damages.report(log.path, position, ledger_id, entry_id, reason)

    async def _check_broken(self, log_ids: set[int], throttles: tuple[Throttle, Throttle]) -> None:
        """Logs that could not be followed to their end: what the index says is in them."""

        async def digests(
            log_id: int, records: RecordSlice, places: Places
        ) -> list[tuple[int, str]]:
            await throttles[1].take(len(records.data))
            problems = await self._problems(records, range(len(places)))
            found = self._found_live_at
            return [(i, why) for i, why in problems if (log_id, places[i][2]) not in found]

        check = ConsistencyCheck(
            self._env.disk, self._logs, self._index, self._damages, throttles[0], digests
        )
        try:
            report = await check.run(log_ids)
        except BookieStartError as error:
            logger.error("scrub: %s", error)
            return
        self._status.damaged_entries += report.damaged
