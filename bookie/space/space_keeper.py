"""SpaceKeeper: what the bookie does about how full its disks are.

It looks at them, tells the parts what the state is, keeps the reserve, and drives the collector
while there is no space. What the state means is in bookie/space/disk_usage.py.

Owner: the event loop's thread.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio

from bookie.space.disk_reserve import DiskReserve
from bookie.space.disk_usage import INDEX_ENTRY_BYTES, DiskMonitor, DiskState, Reason
from bookie.start import ledger_directories, ledger_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.adds import AddPath
    from bookie.config import BookieConfig
    from bookie.journal.journal import Journal
    from bookie.space.garbage_collector import GarbageCollector
    from bookie.storage.removed_files import RemovedFiles
    from bookie.storage.write_cache import WriteCache
    from runtime.disk import Disk

#: Between the rounds of the collector while the disks are full.
FORCED_GC_SECONDS = 5.0


class SpaceKeeper:
    __slots__ = (
        "_adds",
        "_cache",
        "_config",
        "_fail",
        "_gc",
        "_is_serving",
        "_removed",
        "_short_of_space",
        "_written",
        "disks",
        "reserve",
    )

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        cache: WriteCache,
        journal: Journal,
        fail: Callable[[OSError], None],
    ) -> None:
        """`fail` ends the bookie."""
        self._config = config
        self._cache = cache
        self._written = journal.statistics()
        self._fail = fail
        self._short_of_space = trio.Event()
        self._is_serving = False
        self._adds: AddPath | None = None
        self._gc: GarbageCollector | None = None
        self._removed: RemovedFiles | None = None
        self.disks = DiskMonitor(
            config,
            disk,
            ledger_directories(config),
            self.owed_bytes,
            lambda: self._written.written_bytes,
        )
        self.disks.on_change(self._changed)
        self.reserve = DiskReserve(disk, ledger_directory(config), config.disk_reserve_size_bytes)

    def connect(self, adds: AddPath, gc: GarbageCollector, removed: RemovedFiles) -> None:
        """To those who are told of changes; once, before anything runs."""
        self._adds = adds
        self._gc = gc
        self._removed = removed
        adds.takes_high_priority = self.disks.takes_high_priority

    def owed_bytes(self) -> int:
        """What was taken and is not in entry logs yet, and will be."""
        cached = self._cache.statistics()
        return cached.size_bytes + cached.entry_count * INDEX_ENTRY_BYTES

    def serve(self) -> None:
        """The bookie serves from now on."""
        self._is_serving = True
        self.check()
        if self._config.force_read_only:
            self.disks.set_reason(Reason.ADMIN, "forceReadOnlyBookie")

    def progressed(self) -> None:
        """After groups of the journal: looks at the disks if enough was written since."""
        if self._written.written_bytes >= self.disks.next_check_bytes:
            self.check()

    def check(self) -> None:
        try:
            self.disks.check()
        except OSError as error:
            self._fail(error)

    def on_journal_room(self, is_there: bool) -> None:
        if is_there:
            self.disks.clear_reason(Reason.JOURNAL)
        else:
            self.disks.set_reason(Reason.JOURNAL, "no space for the next journal")

    def _changed(self, state: DiskState) -> None:
        assert self._adds is not None
        assert self._gc is not None
        assert self._removed is not None
        is_read_only = state is DiskState.READ_ONLY
        self._adds.set_read_only(is_read_only)
        self._removed.is_short_of_space = state is not DiskState.OK
        if state is DiskState.OK or self._config.force_gc_when_no_space:
            self._gc.resume_major("disk")
        else:
            self._gc.suspend_major("disk")
        self._short_of_space.set()
        if self.disks.is_short_of_space and self._is_serving:
            self._refuse_to_go_on()

    def _refuse_to_go_on(self) -> None:
        if not self._config.read_only_mode_enabled:
            words = "; ".join(self.disks.reasons.values())
            self._fail(OSError(errno.ENOSPC, f"readOnlyModeEnabled=false: {words}"))

    async def watch(self) -> None:
        """Looks every diskCheckInterval, until cancelled."""
        while True:
            await trio.sleep(self._config.disk_check_interval_ms / 1000)
            self.check()
            if self.disks.state is DiskState.OK:
                try:
                    await self.reserve.make()
                except OSError as error:
                    self._fail(error)

    async def collect(self) -> None:
        """While the disks are full the collector does not wait for its time. The minor compaction
        goes on, for else a log with one live entry would keep its space (bookkeeper#571). Where
        that gives nothing back, so does the major one: logs that are half dead would else keep the
        bookie read-only for ever. Until cancelled."""
        assert self._gc is not None
        while True:
            await self._short_of_space.wait()
            self._short_of_space = trio.Event()
            while self.disks.is_short_of_space:
                report = await self._gc.collect(
                    force_minor=True, force_major=self._config.force_gc_when_no_space
                )
                self.check()
                if self.disks.is_short_of_space and not report.reclaimed_bytes:
                    await self._collect_all(self._gc)
                await trio.sleep(FORCED_GC_SECONDS)

    async def _collect_all(self, gc: GarbageCollector) -> None:
        gc.resume_major("disk")
        try:
            report = await gc.collect(force_major=True)
            lacked = 0 if report.reclaimed_bytes else report.lacked_bytes
            # Nothing else would ever give any: what is alive of one log is to fit.
            if lacked and self.reserve.release_for(lacked):
                await gc.collect(force_major=True)
            self.check()
        finally:
            if self.disks.state is not DiskState.OK and not self._config.force_gc_when_no_space:
                gc.suspend_major("disk")
