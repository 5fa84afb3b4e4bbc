"""EntryLogWriter: appends to one entry log after another (feature 7).

The flush has one and compaction has another, so a log holds either what was written lately or what
survived a compaction. A log that is full gets its ledgers map and is complete.

The page cache keeps what was written last, up to a limit, for readers that are not far behind. A
page that was let go of is used for the next write; without that each write would need a page that
was free for long, which on a virtual machine costs seven times as much CPU (docs/benchmarks.md).

Owner: the event loop's thread; one caller at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.config import BookieConfig
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.entry_logs import EntryLogs
    from runtime.disk import Disk
    from wire.buffers import Buffers


class EntryLogWriter:
    __slots__ = ("_cached", "_cached_bytes", "_config", "_disk", "_logs", "_synced", "current")

    def __init__(self, config: BookieConfig, disk: Disk, logs: EntryLogs) -> None:
        self._config = config
        self._disk = disk
        self._logs = logs
        self.current: EntryLog | None = None
        #: (log id, offset, size) of what is in the page cache, oldest first.
        self._cached: deque[tuple[int, int, int]] = deque()
        self._cached_bytes = 0
        #: (log id, offset) up to which it was synced.
        self._synced = (-1, 0)

    @property
    def durable_bytes(self) -> int:
        """Of the current log, from its start: what was synced, which is not cut any more; 0 if
        nothing was since it was started."""
        log_id, end = self._synced
        return end if self.current is not None and self.current.log_id == log_id else 0

    async def start_log(self) -> None:
        """Completes the current log and starts the next one. OSError; if there was no space,
        nothing has changed: the current log has no map, for it may still grow."""
        started = await self._logs.create()
        try:
            await self._complete()
        except OSError:
            started.is_written = False
            self._logs.remove(started)
            raise
        self.current = started

    async def complete_current(self) -> None:
        """The end of writing for now. A log with nothing in it is removed. OSError; if there was
        no space, the log is still the current one, without a map."""
        await self._complete()
        self.current = None

    async def _complete(self) -> None:
        log = self.current
        if log is None:
            return
        if log.ledgers:
            await self._logs.write_map(log)
            await self._logs.walk.settle(log)
        log.is_written = False
        if log.is_dead:
            self._logs.remove(log)
            await self._logs.close_removed_later()

    def has_room(self, size: int) -> bool:
        return (
            self.current is not None
            and self.current.size_bytes + size <= self._config.entry_log_size_limit_bytes
        )

    async def write(self, buffers: Buffers, size: int) -> None:
        """Appends records to the current log; not durable before `sync`. OSError."""
        log = self.current
        assert log is not None
        await self._disk.run(self._logs.file(log).pwrite, buffers, log.size_bytes)
        log.size_bytes += size

    def take_back(self, size_bytes: int) -> None:
        """Cuts what was written behind `size_bytes`, to which no location points yet: a disk that
        is full gets that space back."""
        log = self.current
        assert log is not None
        assert size_bytes <= log.size_bytes
        log.size_bytes = size_bytes
        self._logs.file(log).truncate(size_bytes)

    async def sync(self) -> None:
        """Makes what was written durable, and lets go of the oldest pages. OSError."""
        log = self.current
        assert log is not None
        end = log.size_bytes
        await self._logs.file(log).wait_synced()
        log_id, start = self._synced
        if log_id != log.log_id or start > end:
            start = 0
        self._synced = (log.log_id, end)
        self.are_cached(log.log_id, start, end - start)

    def are_cached(self, log_id: int, start: int, size: int) -> None:
        """These bytes of a log are durable, and in the page cache; lets go of the oldest."""
        self._cached.append((log_id, start, size))
        self._cached_bytes += size
        while self._cached_bytes > self._config.entry_log_cached_size_bytes:
            log_id, start, size = self._cached.popleft()
            self._cached_bytes -= size
            old = self._logs.get(log_id)
            if old is not None and old.file is not None:
                old.file.drop_cached(size, start)
