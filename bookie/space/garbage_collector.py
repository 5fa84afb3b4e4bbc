"""GarbageCollector: space comes back (features 14-15).

Every gcWaitTime one round: ledgers that the metadata does not know any more are deleted; entry logs
of which nobody knows what is in them are read; logs with nothing alive are removed; then the major
compaction if it is due, else the minor one.

What is deleted:
- a ledger, only on `KnownLedgers`: metadata, which had caught up, was asked directly, twice, at
  least a minute apart. The second look at what the first one missed does not wait for the next
  round, and is not at all ledgers. On any doubt a ledger is kept, and if metadata is not to be
  trusted at all, every ledger (`CollectionRefusedError`);
- the entries of a ledger of which other bookies have all copies (bookie/space/over_replicated.py);
- a log, only if no live ledger has bytes in it. That is known from its map, or from a scan of all
  its records with the index asked for each; a log that cannot be read to its end is kept, counted,
  and looked at again at the next major compaction only, so one bad file does not stop the others.

A deleted ledger that a writer brings back (its session was gone and it had not heard, bookkeeper
#4462) is refused while the deletion is remembered (TOMBSTONE_SECONDS), and after a restart, when it
is not, it is a ledger that the metadata does not know: the next round deletes it again.

A log is complete when the flush is done with it. So that a bookie that writes little gets its space
too, the one that is being written is completed once most of it is dead.

Owner: the event loop's thread. All rounds run in `run`, one at a time.
"""

from __future__ import annotations

import logging
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING

import trio

from bookie.errors import IndexReadError
from bookie.health.record_check import RecordCheck
from bookie.known_ledgers import CollectionRefusedError
from bookie.space.compactor import EntryLogCompactor
from bookie.space.gc_report import GcReport, GcStatistics, GcStatus, Phase
from bookie.space.log_examiner import LogExaminer
from bookie.space.over_replicated import OverReplicatedLedgers
from runtime.disk import is_full
from runtime.throttle import Throttle
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bookie.known_ledgers import KnownLedgers
    from bookie.ledger_operations import LedgerOperations
    from bookie.parts import BookieParts
    from bookie.space.compactor import CompactionReport
    from bookie.storage.checkpointer import Checkpointer
    from bookie.storage.entry_log import EntryLog

logger = logging.getLogger(__name__)

#: Ledgers that are deleted together.
DELETE_BATCH_COUNT = 500
#: Deleted ledgers are remembered for this long, and up to twice of it.
TOMBSTONE_SECONDS = 7 * 86_400.0
BUCKETS = 10
#: The log that is being written is completed for compaction if it has so much of the size limit.
ROLL_SIZE_SHARE = 1 / 64


@dataclass(slots=True)
class _Request:
    minor: bool
    major: bool
    locations: bool = False
    #: Only the second look at ledgers that were missing.
    confirms: bool = False
    report: GcReport = field(default_factory=GcReport)
    done: trio.Event = field(default_factory=trio.Event)


class GarbageCollector:
    def __init__(
        self,
        parts: BookieParts,
        operations: LedgerOperations,
        checkpointer: Checkpointer,
        known: KnownLedgers | None,
        owed_bytes: Callable[[], int],
    ) -> None:
        """Without `known` no ledger is deleted, and rounds are made when asked for only.
        `owed_bytes()`: what is taken and not in entry logs yet."""
        config, logs, index, table = parts.config, parts.logs, parts.index, parts.table
        self._config = gc = config.gc
        self._log_size_limit = config.entry_log_size_limit_bytes
        self._env = parts.env
        self._logs = logs
        self._index = index
        self._table = table
        self._operations = operations
        self._checkpointer = checkpointer
        self._known = known
        self._fail = parts.fail
        self._damages = parts.damages
        check = RecordCheck(known, is_crc32c=config.verify_digest_on_write)
        throttles = (
            Throttle(0 if gc.throttle_by_bytes else gc.rate_entries),
            Throttle(gc.rate_bytes if gc.throttle_by_bytes else 0),
        )
        self._compactor = EntryLogCompactor(parts, check, throttles, owed_bytes)
        self._over_replicated = OverReplicatedLedgers(
            gc.over_replicated_wait_ms, logs, index, table, operations, checkpointer, known
        )
        self._examiner = LogExaminer(parts.env.disk, logs, index, check, parts.damages)
        #: Ids of logs that cannot be compacted or examined; tried again at a major compaction.
        self._unreadable: set[int] = set()
        #: Those that the checkpoint names with which the bookie started.
        self.start_log_ids: set[int] = set()
        self.statistics = GcStatistics()
        self.phase = Phase.IDLE
        self._requests: list[_Request] = []
        self._wanted = trio.Event()
        self._minor_suspended: set[str] = set()
        self._major_suspended: set[str] = set()
        self._is_stopped = False
        #: No ledger could be looked at last time, which was told.
        self._is_refused = False
        # Of the event loop's clock, and of the wall clock for people.
        self._last_minor = self._last_major = self._last_location = self._last_aged = 0.0
        self._last_ms: dict[Phase, int] = {}

    # What others ask for.

    async def collect(self, *, force_minor: bool = False, force_major: bool = False) -> GcReport:
        """One round now, after the one that is under way, and the report of it. A forced
        compaction runs if it is enabled (or forceAllowCompaction) and not suspended."""
        return await self._ask(_Request(force_minor, force_major))

    async def compact_entry_locations(self) -> None:
        """Rewrites the index without what was deleted; returns when it is done."""
        await self._ask(_Request(minor=False, major=False, locations=True))

    async def _ask(self, request: _Request) -> GcReport:
        if not self._is_stopped:
            self._requests.append(request)
            self._wanted.set()
            await request.done.wait()
        return request.report

    def suspend_minor(self, reason: str = "admin") -> None:
        """No minor compaction until each reason is resumed. One that runs ends soon."""
        self._minor_suspended.add(reason)

    def resume_minor(self, reason: str = "admin") -> None:
        self._minor_suspended.discard(reason)

    def suspend_major(self, reason: str = "admin") -> None:
        self._major_suspended.add(reason)

    def resume_major(self, reason: str = "admin") -> None:
        self._major_suspended.discard(reason)

    def stop(self) -> None:
        """The bookie has ended: nothing is touched any more, and nobody waits."""
        self._is_stopped = True
        self._compactor.stop()
        self._wanted.set()
        for request in self._requests:
            request.done.set()

    def status(self) -> GcStatus:
        config = self._config
        buckets = [0] * BUCKETS
        for log in self._logs.all():
            if log.is_known and not log.is_written:
                buckets[min(int(self.usage(log) * BUCKETS), BUCKETS - 1)] += 1
        minor = config.minor_interval_ms if config.minor_enabled else 0
        major = config.major_interval_ms if config.major_enabled else 0
        return GcStatus(
            phase=self.phase,
            is_minor_suspended=bool(self._minor_suspended),
            is_major_suspended=bool(self._major_suspended),
            last_minor_ms=self._last_ms.get(Phase.MINOR),
            last_major_ms=self._last_ms.get(Phase.MAJOR),
            last_location_ms=self._last_ms.get(Phase.LOCATIONS),
            next_minor_ms=self._due_ms(self._last_minor, minor),
            next_major_ms=self._due_ms(self._last_major, major),
            next_location_ms=self._due_ms(self._last_location, config.location_interval_ms),
            statistics=self.statistics,
            total_log_bytes=self._logs.size_bytes,
            active_log_bytes=sum(log.live_bytes for log in self._logs.all()),
            reclaimed_by_deletion_bytes=self._logs.deleted_bytes,
            usage_buckets=buckets,
            unreadable_logs=sum(log.is_doubtful for log in self._logs.unknown()),
        )

    def _due_ms(self, last: float, interval_ms: int) -> int | None:
        if interval_ms <= 0 or self._known is None:
            return None
        passed_ms = int((trio.current_time() - last) * 1000)
        return self._env.clock.time_ms() + max(interval_ms - passed_ms, 0)

    def usage(self, log: EntryLog) -> float:
        """The live share of a log, 0..1."""
        total = log.record_bytes
        if self._config.use_target_log_size:
            total = max(total, self._log_size_limit)
        return min(log.live_bytes / total, 1.0) if total > 0 else 0.0

    # Rounds.

    async def run(self) -> None:
        """Rounds every gcWaitTime, and when asked for, until cancelled."""
        now = trio.current_time()
        self._last_minor = self._last_major = self._last_location = self._last_aged = now
        self._over_replicated.start()
        try:
            # What a crash left is settled before anything else.
            await self._round(_Request(minor=False, major=False), only_examine=True)
            next_round = self._next_round()
            while not self._is_stopped:
                confirms = False
                if not self._requests:
                    seconds = max(next_round - trio.current_time(), 0.0)
                    soon = self.seconds_to_confirm
                    confirms = soon < seconds
                    with trio.move_on_after(min(soon, seconds)):
                        await self._wanted.wait()
                self._wanted = trio.Event()
                requests, self._requests = self._requests, []
                own = _Request(minor=False, major=False, confirms=confirms)
                try:
                    for request in requests or [own]:
                        await self._round(request, is_forced=bool(requests))
                        request.done.set()
                    if not confirms:
                        next_round = self._next_round()
                finally:
                    for request in requests:
                        request.done.set()
        finally:
            for request in self._requests:
                request.done.set()

    def _next_round(self) -> float:
        wait_seconds = self._config.wait_ms / 1000 if self._known else inf
        return trio.current_time() + wait_seconds

    @property
    def seconds_to_confirm(self) -> float:
        """Until ledgers that were found missing are looked at again; infinite if there are none, or
        if metadata is not to be trusted now."""
        if self._known is None or self._is_refused:
            return inf
        return self._known.seconds_to_confirm

    async def _round(
        self, request: _Request, *, is_forced: bool = False, only_examine: bool = False
    ) -> None:
        report = request.report
        start = self._env.clock.monotonic()
        deleted_before = self._logs.deleted_bytes
        try:
            if only_examine:
                await self._examine(report)
            elif request.locations:
                await self._compact_locations()
            else:
                await self._collect(request, report, is_forced=is_forced)
            report.is_complete = True
        except OSError as error:
            if self._is_stopped:
                logger.info("gc left: the bookie has ended")
            elif is_full(error):
                self.statistics.compaction_errors += 1
                logger.warning("gc stopped, the disk is full: %s", error)
            elif isinstance(error, IndexReadError):
                # Others are served. What is under way is left as after a crash.
                self.statistics.compaction_errors += 1
                logger.error("gc gave a round up: %s", error)
            else:
                self._fail(error)
        finally:
            self.phase = Phase.IDLE
            report.seconds = self._env.clock.monotonic() - start
            report.reclaimed_bytes += self._logs.deleted_bytes - deleted_before
            self.statistics.seconds += report.seconds
            self.statistics.rounds += 1
        gone = report.deleted_ledgers or report.emptied_ledgers
        if gone or report.compacted_logs or report.removed_logs:
            logger.info("gc round %s", report)

    async def _collect(self, request: _Request, report: GcReport, *, is_forced: bool) -> None:
        await self._delete_ledgers(report, only_confirm=request.confirms)
        if not self._is_refused and not request.confirms:
            report.emptied_ledgers = await self._over_replicated.look()
            self.statistics.emptied_ledgers += report.emptied_ledgers
        if is_forced and self._checkpointer.deletions:
            # The logs forget deleted ledgers with the checkpoint; who asks does not wait for that.
            # They may have been deleted in a round before.
            await self._checkpointer.flush()
        await self._examine(report)
        report.removed_logs += await self._drop_dead()
        if is_forced:
            await self._logs.close_removed()  # who asks may wait for the space
        else:
            await self._logs.close_removed_later()
        self._damages.forget_logs_but(lambda log_id: self._logs.get(log_id) is not None)
        now = trio.current_time()
        config = self._config
        if now - self._last_aged >= TOMBSTONE_SECONDS:
            self._last_aged = now
            self._table.age_tombstones()
        if self._is_wanted(Phase.MAJOR, request.major, now):
            await self._compact(Phase.MAJOR, report)
        elif self._is_wanted(Phase.MINOR, request.minor, now):
            await self._compact(Phase.MINOR, report)
        interval = config.location_interval_ms / 1000
        if interval > 0 and now - self._last_location >= interval:
            await self._compact_locations()

    def _is_wanted(self, phase: Phase, is_forced: bool, now: float) -> bool:
        config = self._config
        if phase is Phase.MAJOR:
            is_enabled, threshold = config.major_enabled, config.major_threshold
            due = self._last_major + config.major_interval_ms / 1000
            suspended = self._major_suspended
        else:
            is_enabled, threshold = config.minor_enabled, config.minor_threshold
            due = self._last_minor + config.minor_interval_ms / 1000
            suspended = self._minor_suspended
        if suspended:
            return False
        if is_forced:
            return is_enabled or (config.force_allow and 0 < threshold <= 1)
        return is_enabled and now >= due

    # Ledgers.

    async def _delete_ledgers(self, report: GcReport, *, only_confirm: bool = False) -> None:
        known = self._known
        if known is None:
            return
        self.phase = Phase.DELETING
        try:
            gone = await (known.confirmed() if only_confirm else known.gone(self._table.ids()))
        except CollectionRefusedError as error:
            report.refusal = str(error)
            self.statistics.refused_rounds += 1
            if not self._is_refused:
                logger.warning("gc keeps all ledgers, until metadata can be trusted: %s", error)
            self._is_refused = True
            return
        if self._is_refused:
            logger.info("gc looks at ledgers again")
            self._is_refused = False
        for start in range(0, len(gone), DELETE_BATCH_COUNT):
            some = gone[start : start + DELETE_BATCH_COUNT]
            batch = [ledger_id for ledger_id in some if self._table.get(ledger_id) is not None]
            if not batch:
                await trio.lowlevel.checkpoint()
                continue
            deleted, failed = await self._operations.delete_ledgers(batch)
            report.deleted_ledgers += deleted
            report.failed_deletes += failed
            self.statistics.deleted_ledgers += deleted
            self.statistics.failed_deletes += failed
            for ledger_id in batch:
                if self._table.get(ledger_id) is None:
                    self._damages.forget_ledger(ledger_id)

    def _is_known(self, ledger_id: int) -> bool:
        """Not deleted, or its deletion will still be told to the logs."""
        return self._table.get(ledger_id) is not None or ledger_id in self._checkpointer.deletions

    async def _drop_dead(self) -> int:
        return await self._logs.remove_dead(self._is_known, self._index.with_entries)

    # Logs.

    async def _examine(self, report: GcReport) -> None:
        """Finds out what is in the logs of which that is not known."""
        if not self._checkpointer.is_settled:
            return
        self.phase = Phase.EXAMINING
        for log in self._logs.unknown():
            if log.log_id in self._unreadable or self._logs.get(log.log_id) is not log:
                continue
            report.examined_logs += 1
            if not await self._examiner.examine(log):
                report.unreadable_logs += 1
                self._unreadable.add(log.log_id)

    async def _compact(self, phase: Phase, report: GcReport) -> None:
        self.phase = phase
        is_major = phase is Phase.MAJOR
        config = self._config
        if is_major and self._unreadable:
            # It may have been the disk, and the disk may have been changed.
            self._unreadable.clear()
            await self._examine(report)
            self.phase = phase
        threshold = config.major_threshold if is_major else config.minor_threshold
        time_max_ms = config.major_time_max_ms if is_major else config.minor_time_max_ms
        suspended = self._major_suspended if is_major else self._minor_suspended
        await self._complete_dead_log(threshold)
        start = trio.current_time()
        end = start + time_max_ms / 1000 if time_max_ms > 0 else float("inf")
        looked = start

        async def may_go_on() -> bool:
            """Between two logs. Deletions do not wait for the end of a long compaction: what died
            meanwhile need not be copied."""
            nonlocal looked
            if trio.current_time() - looked >= config.wait_ms / 1000:
                await self._delete_ledgers(report)
                report.removed_logs += await self._drop_dead()
                await self._logs.close_removed_later()
                looked, self.phase = trio.current_time(), phase
            return not suspended and trio.current_time() < end

        done = await self._compactor.compact(self._chosen(threshold), may_go_on)
        self._unreadable.update(done.damaged)
        self._count_compaction(done, report, trio.current_time() - start, is_major=is_major)
        if is_major:
            self._last_major = trio.current_time()
        # The major one has done what the minor one would.
        self._last_minor = trio.current_time()
        self._last_ms[phase] = self._env.clock.time_ms()

    def _count_compaction(
        self, done: CompactionReport, report: GcReport, seconds: float, *, is_major: bool
    ) -> None:
        statistics = self.statistics
        report.was_minor, report.was_major = not is_major, is_major
        report.compacted_logs += done.compacted_logs
        report.copied_entries += done.copied_entries
        report.copied_bytes += done.copied_bytes
        report.reclaimed_bytes += done.reclaimed_bytes
        report.damaged_logs += len(done.damaged)
        report.no_space_logs += done.no_space_logs
        report.lacked_bytes = done.lacked_bytes
        statistics.compacted_logs += done.compacted_logs
        statistics.compacted_entries += done.copied_entries
        statistics.compacted_bytes += done.copied_bytes
        statistics.reclaimed_by_compaction_bytes += done.reclaimed_bytes
        statistics.compaction_errors += len(done.damaged) + bool(done.no_space_logs)
        if is_major:
            statistics.major_compactions += 1
            statistics.major_seconds += seconds
        else:
            statistics.minor_compactions += 1
            statistics.minor_seconds += seconds

    def _chosen(self, threshold: float) -> Iterator[EntryLog]:
        """Logs below the threshold: the emptiest tenth first, in it the least to copy first. What
        is taken later is what it is then."""
        # The start compares what the checkpoint says with the logs that it names.
        protected = self._checkpointer.checkpoint_log_ids
        if -1 in protected:
            protected = protected | self.start_log_ids
        candidates = [
            log
            for log in self._logs.all()
            if log.is_known
            and not log.is_written
            and log.log_id not in self._unreadable
            and log.log_id not in protected
            and self.usage(log) < threshold
        ]
        candidates.sort(key=lambda log: (int(self.usage(log) * BUCKETS), log.live_bytes))
        yield from candidates

    async def _complete_dead_log(self, threshold: float) -> None:
        """The flush's log is given up if it would be compacted and is not tiny."""
        log = self._checkpointer.current_log
        if (
            log is not None
            and log.record_bytes >= self._log_size_limit * ROLL_SIZE_SHARE
            and self.usage(log) < threshold
        ):
            await self._checkpointer.roll_log()
            await self._drop_dead()

    async def _compact_locations(self) -> None:
        self.phase = Phase.LOCATIONS
        await self._env.disk.run(self._index.compact)
        self.statistics.location_compactions += 1
        self._last_location = trio.current_time()
        self._last_ms[Phase.LOCATIONS] = self._env.clock.time_ms()
