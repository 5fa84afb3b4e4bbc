"""ReplicationWorker: takes marked ledgers, one after the other, and has them repaired
(features 38, 39; ReplicationWorker.java).

A ledger's lock is an ephemeral node: who has it repairs. When the ledger is whole its mark is taken
away, with the version that was read under the lock: one that was marked again stays marked. A
ledger that cannot be repaired keeps its mark, and for a while its lock, so that other workers do
not run into the same: until the writer of an open one had its time, or for a pause that doubles
with every failure. It is tried at once when a bookie comes that may change things.

All that is kept in memory is one small record for each ledger that could not be repaired. With the
session locks are lost, and so is the work under way: copies that are made twice do no harm.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import field
from typing import TYPE_CHECKING

import trio

from ledger.autorecovery.report import Problem, Reason
from ledger.autorecovery.session import RecordError, as_record_error, within_session
from metadata.store import MetadataError
from runtime.logs import kv
from wire.bookkeeper.ledger_metadata import MetadataFormatError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ledger.autorecovery.config import AutoRecoveryConfig
    from ledger.autorecovery.repair import LedgerRepair
    from ledger.autorecovery.statistics import WorkerStatistics
    from ledger.bookie_client import BookieId
    from ledger.bookie_watcher import BookieWatcher
    from ledger.underreplication import UnderReplication
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
#: Locks of failed ledgers that are kept; others are tried by every worker at its own pace.
LOCKS_KEPT_MAX = 1000
#: So often the marks are looked for while there are none; the look is a single question.
IDLE_SECONDS = 1.0
PAUSE_SECONDS_MIN = 0.1


@dataclass(slots=True)
class Held:
    """A ledger that could not be repaired."""

    problems: list[Problem]
    until: float
    is_locked: bool
    failures: int = 0
    #: When an open end may be fenced; None if it is not open.
    fence_at: float | None = None
    #: Of fragments, by first entry, an entry that nobody gave.
    unreadable: dict[int, int] = field(default_factory=dict)
    #: Who could take copies when it was tried last.
    writable: frozenset[BookieId] = frozenset()


class ReplicationWorker:
    def __init__(
        self,
        store: MetadataStore,
        records: UnderReplication,
        repair: LedgerRepair,
        watcher: BookieWatcher,
        config: AutoRecoveryConfig,
        holder: str,
        statistics: WorkerStatistics,
    ) -> None:
        """`holder`: what the locks say, a bookie's id."""
        self._store = store
        self._records = records
        self._repair = repair
        self._watcher = watcher
        self._config = config
        self._holder = holder
        self._statistics = statistics
        self._held: dict[int, Held] = {}
        self._busy: set[int] = set()
        self._wake = trio.Event()
        self._places = trio.Semaphore(config.ledgers_at_a_time)
        #: Marks that the last look found.
        self.marked_count = 0

    @property
    def busy(self) -> frozenset[int]:
        """Ledgers that are being repaired here."""
        return frozenset(self._busy)

    @property
    def held(self) -> Mapping[int, Held]:
        """Ledgers that could not be repaired, and why."""
        return self._held

    def wake(self) -> None:
        """There may be something new to do."""
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. What fails for want of the metadata is tried again."""
        self._watcher.subscribe(self.wake)
        task_status.started()
        while True:
            try:
                with as_record_error():
                    async with within_session(self._store):
                        await self._work()
                logger.warning("worker_session_lost", kv(repairs_given_up=len(self._busy)))
            except RecordError as error:
                logger.warning("worker_failed", kv(error=error))
            self._busy.clear()
            for held in self._held.values():
                held.is_locked = False
            await trio.sleep(RETRY_SECONDS)

    async def _work(self) -> None:
        await self._records.ensure_layout()
        watch = self._records.watch_tasks()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, watch.changed)
                while True:
                    await self._records.wait_enabled()
                    self._wake = trio.Event()
                    await self._take_all(nursery)
                    with trio.move_on_after(self._pause_seconds()):
                        await self._wake.wait()
        finally:
            watch.close()

    async def _follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        while True:
            await changed()
            self.wake()

    def _pause_seconds(self) -> float:
        pause = self._config.failed_ledger_pause_ms / 1000 if self.marked_count else IDLE_SECONDS
        now = trio.current_time()
        waiting = [held.until for each, held in self._held.items() if each not in self._busy]
        due = min(waiting, default=now + pause)
        return max(PAUSE_SECONDS_MIN, min(pause, due - now))

    async def _take_all(self, nursery: trio.Nursery) -> None:
        """Every marked ledger that is due is given to a task, as places get free."""
        seen: set[int] = set()
        async with aclosing(self._records.ledger_ids()) as marked:
            async for ledger_id in marked:
                seen.add(ledger_id)
                if ledger_id in self._busy or not self._is_due(ledger_id):
                    continue
                await self._places.acquire()
                self._busy.add(ledger_id)
                nursery.start_soon(self._take, ledger_id)
        self.marked_count = len(seen)
        for ledger_id in self._held.keys() - seen - self._busy:
            # Somebody else has repaired it, or has taken the mark away.
            await self._forget(ledger_id)

    def _is_due(self, ledger_id: int) -> bool:
        held = self._held.get(ledger_id)
        if held is None or trio.current_time() >= held.until:
            return True
        watcher = self._watcher
        there = watcher.writable | watcher.read_only
        if any(not problem.bookies.isdisjoint(there) for problem in held.problems):
            return True
        waits_for_room = any(each.reason is Reason.TOO_FEW_BOOKIES for each in held.problems)
        return waits_for_room and not watcher.writable <= held.writable

    async def _take(self, ledger_id: int) -> None:
        started_at = trio.current_time()
        try:
            # It may have waited long for its place.
            await self._records.wait_enabled()
            await self._repair_locked(ledger_id)
            self._statistics.rereplicate.record(trio.current_time() - started_at)
        except MetadataFormatError as error:
            self._statistics.rereplicate_failures += 1
            await self._hold(ledger_id, [Problem(Reason.METADATA, str(error))], {})
        except MetadataError as error:
            self._statistics.rereplicate_failures += 1
            logger.warning("repair_given_up", kv(ledger=ledger_id, error=error))
            await trio.sleep(RETRY_SECONDS)
        finally:
            self._busy.discard(ledger_id)
            self._places.release()

    async def _repair_locked(self, ledger_id: int) -> None:
        held = self._held.get(ledger_id)
        if held is None or not held.is_locked:
            if not await self._records.lock(ledger_id, self._holder):
                self._held.pop(ledger_id, None)
                return
            if held is not None:
                held.is_locked = True
        task = await self._records.task(ledger_id)
        if task is None:
            await self._forget(ledger_id)
            return
        fence_at = None if held is None else held.fence_at
        problems = await self._repair.repair(
            ledger_id,
            task.marked.replicas,
            marked_version=task.version,
            unreadable=held.unreadable if held is not None else {},
            may_fence=fence_at is not None and trio.current_time() >= fence_at,
        )
        if problems:
            await self._hold(ledger_id, problems, held.unreadable if held is not None else {})
            return
        if not await self._records.finish(ledger_id, task.version):
            self.wake()  # it was marked again
        self._statistics.ledgers_repaired += 1
        logger.info("ledger_repaired", kv(ledger=ledger_id))
        await self._forget(ledger_id)

    async def _forget(self, ledger_id: int) -> None:
        self._held.pop(ledger_id, None)
        await self._records.unlock(ledger_id)

    async def _hold(
        self, ledger_id: int, problems: list[Problem], unreadable: dict[int, int]
    ) -> None:
        """Keeps the ledger's lock, and remembers when to try again."""
        now = trio.current_time()
        old = self._held.get(ledger_id)
        is_open = any(problem.reason is Reason.OPEN for problem in problems)
        is_failed = any(problem.reason is not Reason.OPEN for problem in problems)
        fence_at = None
        if is_open:
            fence_at = now + self._config.open_ledger_grace_ms / 1000
            if old is not None and old.fence_at is not None:
                fence_at = old.fence_at
        failures = (old.failures if old is not None else 0) + is_failed
        pauses = [] if fence_at is None else [fence_at]
        if is_failed:
            pauses.append(now + self._config.pause_ms(failures) / 1000)
        for problem in problems:
            first, entry_id = problem.fragment_first_entry_id, problem.entry_id
            if first is not None and entry_id is not None:
                unreadable[first] = entry_id
                self._statistics.entries_unreadable += 1
            name = problem.reason.name
            self._statistics.failures[name] = self._statistics.failures.get(name, 0) + 1
        if old is None or old.problems != problems:
            self._tell(ledger_id, problems)
        locks = sum(each.is_locked for each in self._held.values())
        is_locked = (old is not None and old.is_locked) or locks < LOCKS_KEPT_MAX
        self._statistics.locks_kept_of_failed += is_locked
        self._held[ledger_id] = Held(
            problems,
            min(pauses),
            is_locked,
            failures,
            fence_at,
            unreadable,
            self._watcher.writable,
        )
        if not is_locked:
            await self._records.unlock(ledger_id)

    @staticmethod
    def _tell(ledger_id: int, problems: list[Problem]) -> None:
        for problem in problems:
            is_expected = problem.reason in (Reason.OPEN, Reason.UNFINISHED)
            logger.log(
                logging.INFO if is_expected else logging.WARNING,
                "ledger_not_repaired",
                kv(ledger=ledger_id, reason=problem.reason.name, detail=problem.detail),
            )
