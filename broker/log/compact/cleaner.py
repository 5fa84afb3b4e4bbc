"""LogCleaner: which partition is compacted next, by so many tasks, and what becomes of failures.

One per broker (Kafka's LogCleaner, LogCleanerManager). It runs `log.cleaner.threads` tasks. Each
looks at all partitions that this broker serves and whose policy has `compact`, takes the one with
the highest dirty ratio among those that are due (who asked by hand comes first; those with only
delete horizons or many small ledgers come last), cleans it in one pass (cleaning.py), and looks
again; if nothing is due it sleeps for log.cleaner.backoff.ms.

What can go wrong with one partition is that partition's affair. If its ledgers cannot be read or
are damaged it is *uncleanable*: metrics and its page say so, nothing of it is changed, others go
on, and it is tried again after RETRY_MS, at the latest once an hour, and anew after each take-over,
whose partition is another object. What cannot be written for want of bookies or metadata is tried
again the same way, and is no fault of the partition's. The same holds for a pass that fails by a
bug: it is logged with its traceback, and no task dies of it (KIP-346).

Owner of the state: the event loop's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from broker.log.compact.cleaning import (
    COMPACT,
    OutputError,
    Pass,
    PassEnded,
    PassLimits,
    PassParts,
    SourceError,
)
from broker.log.compact.plan_core import Due, PlanSettings, planning
from broker.log.compact.progress import CleaningState, Progress
from broker.log.compact.steps import CompactionError
from broker.log.compact.throttle import Throttle
from broker.log.life.chain import COMPACTED_FORMAT
from broker.log.partition import State
from runtime.logs import kv
from runtime.slices import Slices
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.log.compact.plan_core import Plan
    from broker.log.life.keeper import Keeper
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from broker.log.settings import LogSettings
    from ledger.client import LedgerClient
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: Partitions, and ledgers of compacted ones, that one slice of a look passes: about 1 ms.
LOOK_UNITS = 400
#: What failed is tried again after so long, twice as long each time, up to an hour.
RETRY_MS = 60_000
RETRY_MS_MAX = 3_600_000
#: A pass that ended early without a failure is not begun again at once.
ENDED_RETRY_MS = 1_000
#: Looks without a pause would take all of the loop's time that nobody else wants.
BACKOFF_MS_MIN = 10
#: The setting may say anything; of the map's places so many are filled.
LOAD_FACTOR_MIN, LOAD_FACTOR_MAX = 0.1, 0.95
#: A pass is told of in the log if it wrote something, or took so long.
TOLD_SECONDS = 10.0

#: Stronger reasons come first; within one the ratio decides, as in Kafka.
_ORDER = {Due.ASKED: 0, Due.LAG: 1, Due.RATIO: 1, Due.JOIN: 2, Due.HORIZON: 2}


@dataclass(slots=True)
class CleanerSettings:
    """The broker's, in force now: whoever runs the cleaner changes them in place. `map_bytes_max`
    is for tests, where a map of keys is to be full."""

    threads: int = 1
    backoff_ms: int = 15_000
    bytes_per_second: float = 32 << 20
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    map_bytes_max: int = 1 << 62

    def limits(self) -> PassLimits:
        """Of one pass."""
        of_thread = self.dedupe_buffer_bytes // self.threads
        factor = min(max(self.load_factor, LOAD_FACTOR_MIN), LOAD_FACTOR_MAX)
        return PassLimits(min(of_thread, self.map_bytes_max), factor)


@dataclass(slots=True)
class CleanerStatistics:
    """Of all passes since the start. Sizes in bytes of batches."""

    passes: int = 0
    passes_ended: int = 0
    passes_failed: int = 0
    records_dropped: int = 0
    #: Of groups that were written anew.
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0
    #: Of the last pass that came to its end (Kafka's CleanerStats).
    last_seconds: float = 0.0
    last_recopy_percent: float = 0.0
    last_map_percent: float = 0.0
    #: When a look was made last (monotonic seconds), and what it found.
    last_look_at: float = 0.0
    max_dirty_percent: float = 0.0
    max_delay_ms: int = 0
    uncleanable_count: int = 0
    uncleanable_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Candidate:
    log: PartitionLog
    keeper: Keeper
    plan: Plan
    state: CleaningState

    @property
    def rank(self) -> tuple[int, float]:
        """The smallest is the next."""
        assert self.plan.due is not None
        return _ORDER[self.plan.due], -self.plan.ratio


class LogCleaner:
    def __init__(
        self,
        logs: LogManager,
        ledgers: LedgerClient,
        env: Env,
        log_settings: LogSettings,
        settings: CleanerSettings,
        *,
        chain_format: Callable[[], int] = lambda: COMPACTED_FORMAT,
    ) -> None:
        """`chain_format`: the newest format of partitions' documents that every live broker reads;
        nothing is compacted while one could not read what comes of it."""
        self._logs = logs
        self._env = env
        self._settings = settings
        self._chain_format = chain_format
        self.throttle = Throttle(lambda: settings.bytes_per_second, env.clock.monotonic)
        self._parts = PassParts(ledgers, env, log_settings, self.throttle)
        #: By the log's object: a partition that was taken over anew begins anew.
        self._states: dict[PartitionLog, CleaningState] = {}
        self._called = trio.Event()
        self._nursery: trio.Nursery | None = None
        #: Tasks that run, and those that are to.
        self._task_count = 0
        self.statistics = CleanerStatistics(last_look_at=env.clock.monotonic())

    # -- asked from outside --------------------------------------------------------------------

    @property
    def dead_task_count(self) -> int:
        """Tasks that the setting wants and that do not run (Kafka's DeadThreadCount)."""
        return max(self._settings.threads - self._task_count, 0) if self._nursery else 0

    def settings_changed(self) -> None:
        """`CleanerSettings` say something else now."""
        self._start_tasks()
        self._wake()

    def state_of(self, log: PartitionLog) -> CleaningState | None:
        """None if nothing of it was ever to be compacted since it was taken over."""
        return self._states.get(log)

    def ask(self, log: PartitionLog) -> CleaningState:
        """Has it compacted as soon as there is a task for it, whatever its ratio is, and however
        lately it failed. For a log that `is_candidate`."""
        assert self.is_candidate(log)
        state = self._states.setdefault(log, CleaningState())
        state.is_asked = True
        state.retry_ms = -1
        self._wake()
        return state

    @staticmethod
    def is_candidate(log: PartitionLog) -> bool:
        # A broker's default may say compact where the topic itself could not.
        config = log.config
        is_compacted = COMPACT in config.cleanup_policy and not config.quire_archive_required
        return is_compacted and log.state is State.ONLINE

    def _wake(self) -> None:
        self._called.set()
        self._called = trio.Event()

    # -- tasks ---------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until it is cancelled; then passes end at once, and what they made is deleted."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._start_tasks()
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _start_tasks(self) -> None:
        nursery = self._nursery
        while nursery is not None and self._task_count < self._settings.threads:
            self._task_count += 1
            nursery.start_soon(self._work)

    async def _work(self) -> None:
        """One task; it ends when the setting wants fewer."""
        try:
            while self._task_count <= self._settings.threads:
                called = self._called
                candidate = await self._look()
                if candidate is not None and not self._is_free(candidate):
                    continue  # another task was quicker, or it went offline
                if candidate is not None:
                    await self._clean(candidate)
                    continue
                backoff_ms = max(self._settings.backoff_ms, BACKOFF_MS_MIN)
                with trio.move_on_after(backoff_ms / 1000):
                    await called.wait()
        finally:
            self._task_count -= 1

    def _is_free(self, candidate: _Candidate) -> bool:
        return candidate.state.running is None and self.is_candidate(candidate.log)

    async def _look(self) -> _Candidate | None:
        """The partition that is to be cleaned next; also what metrics tell of all."""
        statistics = self.statistics
        statistics.last_look_at = self._env.clock.monotonic()
        best: _Candidate | None = None
        dirty, delay_ms = 0.0, 0
        states: dict[PartitionLog, CleaningState] = {}
        slices = Slices(LOOK_UNITS)
        is_allowed = self._chain_format() >= COMPACTED_FORMAT
        for log, keeper in self._logs.keepers():
            if slices.due():
                await slices.turn()
            if not self.is_candidate(log):
                continue
            state = states[log] = self._states.setdefault(log, CleaningState())
            plan = state.plan = await self._plan(log, slices, is_asked=state.is_asked)
            dirty, delay_ms = max(dirty, plan.ratio), max(delay_ms, plan.delay_ms)
            if not is_allowed or not self._may_clean(log, state):
                continue
            if plan.due is None:
                state.is_asked = False
                continue
            candidate = _Candidate(log, keeper, plan, state)
            if best is None or candidate.rank < best.rank:
                best = candidate
        # Those that are held no more are forgotten, but for whom somebody asked meanwhile.
        for log, state in self._states.items():
            if log.state is State.ONLINE and (state.is_asked or state.running is not None):
                states.setdefault(log, state)
        self._states = states
        statistics.max_dirty_percent, statistics.max_delay_ms = 100 * dirty, delay_ms
        self._count_uncleanable()
        return best

    async def _plan(self, log: PartitionLog, slices: Slices, *, is_asked: bool) -> Plan:
        """By the chain as it is now; a pass asks again whether its sources are there."""
        steps = planning(
            log.chain,
            PlanSettings.of(log.config),
            now_ms=self._env.clock.time_ms(),
            last_stable_offset=log.last_stable_offset,
            is_asked=is_asked,
        )
        while True:
            try:
                units = next(steps)
            except StopIteration as done:
                plan: Plan = done.value
                return plan
            assert isinstance(units, int), "a plan is made of steps alone"
            if slices.due(units):
                await slices.turn()

    def _may_clean(self, log: PartitionLog, state: CleaningState) -> bool:
        if state.running is not None or log.is_suspended or log.is_closing:
            return False
        return state.retry_ms <= self._env.clock.time_ms()

    def _count_uncleanable(self) -> None:
        uncleanable = [log for log, state in self._states.items() if state.is_uncleanable]
        self.statistics.uncleanable_count = len(uncleanable)
        self.statistics.uncleanable_bytes = sum(log.size_bytes for log in uncleanable)

    # -- one pass ------------------------------------------------------------------------------

    async def _clean(self, candidate: _Candidate) -> None:
        """Never raises but for a cancellation."""
        log, plan, state = candidate.log, candidate.plan, candidate.state
        assert state.running is None, "one pass at a time on a partition"
        progress = state.running = Progress()
        state.is_asked = False
        state.last_start_ms = self._env.clock.time_ms()
        started = self._env.clock.monotonic()
        cleaned_to = log.chain.cleaned_to
        one = Pass(log, candidate.keeper, plan, self._parts, self._settings.limits(), progress)
        try:
            await one.run()
        except PassEnded as ended:
            self.statistics.passes_ended += 1
            state.last_error = str(ended)
            state.retry_ms = self._env.clock.time_ms() + ENDED_RETRY_MS
            logger.info("compaction_ended", kv(partition=log.name, reason=ended))
        except OutputError as error:
            self._failed(log, state, error, is_fault=False)
        except (SourceError, CompactionError) as error:
            self._failed(log, state, error, is_fault=True)
        except Exception as error:  # a bug: this partition's affair, and not the other ones'
            logger.exception("compaction_broke", kv(partition=log.name))
            self._failed(log, state, error, is_fault=True)
        else:
            self._done(log, plan, state, progress, self._env.clock.monotonic() - started)
            if log.chain.cleaned_to <= cleaned_to and not progress.groups_written:
                # It got nowhere, and would not the next time: not at once.
                state.retry_ms = self._env.clock.time_ms() + RETRY_MS
        finally:
            state.running = None
            progress.read_bytes += progress.done_bytes
            self._add_up(progress)
            self._count_uncleanable()

    def _failed(
        self, log: PartitionLog, state: CleaningState, error: Exception, *, is_fault: bool
    ) -> None:
        """`is_fault`: of what is stored, so that the partition counts as uncleanable."""
        self.statistics.passes_failed += 1
        state.last_error = f"{type(error).__name__}: {error}"
        state.is_uncleanable |= is_fault
        pause_ms = min(RETRY_MS << min(state.failures, 10), RETRY_MS_MAX)
        state.failures += 1
        state.retry_ms = self._env.clock.time_ms() + pause_ms
        logger.warning(
            "compaction_failed",
            kv(
                partition=log.name,
                error=state.last_error,
                uncleanable=state.is_uncleanable,
                retry_s=pause_ms // 1000,
            ),
        )

    def _done(
        self,
        log: PartitionLog,
        plan: Plan,
        state: CleaningState,
        progress: Progress,
        seconds: float,
    ) -> None:
        state.passes += 1
        state.failures = 0
        state.is_uncleanable = False
        state.last_error, state.retry_ms = "", -1
        state.last, state.last_end_ms = progress, self._env.clock.time_ms()
        statistics = self.statistics
        statistics.passes += 1
        statistics.last_seconds = seconds
        read = progress.read_bytes + progress.done_bytes
        statistics.last_recopy_percent = 100 * progress.bytes_after / read if read else 0.0
        if progress.keys_max:
            statistics.last_map_percent = 100 * progress.keys / progress.keys_max
        assert plan.due is not None
        level = logging.INFO if progress.groups_written or seconds > TOLD_SECONDS else logging.DEBUG
        logger.log(
            level,
            "compacted",
            kv(
                partition=log.name,
                why=plan.due.value,
                cleaned_to=log.chain.cleaned_to,
                keys=progress.keys,
                map_percent=round(100 * progress.keys / progress.keys_max)
                if progress.keys_max
                else 0,
                groups_written=progress.groups_written,
                bytes_before=progress.bytes_before,
                bytes_after=progress.bytes_after,
                records_dropped=progress.records_dropped,
                ms=round(1000 * seconds),
            ),
        )

    def _add_up(self, progress: Progress) -> None:
        statistics = self.statistics
        statistics.bytes_read += progress.read_bytes
        statistics.bytes_before += progress.bytes_before
        statistics.bytes_after += progress.bytes_after
        statistics.records_dropped += progress.records_dropped

    def running(self) -> Iterator[tuple[PartitionLog, CleaningState]]:
        """Partitions with a pass at work."""
        return ((log, state) for log, state in self._states.items() if state.running is not None)
