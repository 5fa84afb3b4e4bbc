"""EntryLogWriter: appends to one entry log after another (features.md #7).

The flush has one and compaction has another, so a log holds either what was written lately or what
survived a compaction. A log that is full gets its ledgers map and is complete.

Owner: the event loop's thread; one caller at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.config import BookieConfig
    from bookie.storage.entry_log import EntryLog, EntryLogs
    from runtime.disk import Disk
    from wire.buffers import Buffers


class EntryLogWriter:
    __slots__ = ("_config", "_disk", "_logs", "current")

    def __init__(self, config: BookieConfig, disk: Disk, logs: EntryLogs) -> None:
        self._config = config
        self._disk = disk
        self._logs = logs
        self.current: EntryLog | None = None

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
        log.is_written = False
        if not log.ledgers:
            self._logs.remove(log)
            await self._logs.close_removed()

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
        assert self.current is not None
        await self._logs.file(self.current).wait_synced()
