"""Entry logs: the entries of all ledgers, in the order of the flushes (features.md #7).

A location, as the index keeps it, is `log id << 32 | offset of the entry, after its length`.

Logs that are being written have a writer each (bookie/entry_log_writer.py). All others are
complete: they are only read, until every ledger in them is deleted; then the file is removed.

Owner: the event loop's thread; slow calls go through `Disk.run`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bookie.entry_log_format import (
    HEADER_SIZE,
    LENGTH_SIZE,
    RECORD_START,
    RECORD_START_SIZE,
    log_id_of,
    log_name,
    pack_header,
    pack_ledgers_map,
    read_ledgers_map,
)
from bookie.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bookie.config import BookieConfig
    from runtime.disk import Disk, File

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EntryLog:
    log_id: int
    path: str
    #: What is written, the header included; reads go no further.
    size_bytes: int
    #: Bytes by ledger, lengths included. None: not known, so the log is kept.
    ledgers: dict[int, int] | None
    #: It has a writer, so it grows, and is neither closed nor removed.
    is_written: bool = False
    #: Reads on worker threads that are under way: the file is not closed under them.
    readers: int = 0
    file: File | None = field(default=None, repr=False)


class EntryLogs:
    __slots__ = (
        "_config",
        "_directory",
        "_disk",
        "_last_log_id",
        "_logs",
        "_open",
    )

    def __init__(self, config: BookieConfig, disk: Disk, directory: str) -> None:
        self._config = config
        self._disk = disk
        self._directory = directory
        self._logs: dict[int, EntryLog] = {}
        #: Logs with an open file, the one used last at the end.
        self._open: OrderedDict[int, EntryLog] = OrderedDict()
        self._last_log_id = -1

    # Start.

    def load(self, last_log_id: int) -> None:
        """Finds the logs of earlier lives and reads their ledgers maps. New logs get ids above
        theirs and above `last_log_id`, which the checkpoint knows: no id is used twice."""
        self._last_log_id = last_log_id
        for name in self._disk.list(self._directory):
            log_id = log_id_of(name)
            if log_id is None:
                continue
            path = f"{self._directory}/{name}"
            file = self._disk.open(path)
            log = EntryLog(log_id, path, file.size(), None, file=file)
            try:
                log.ledgers = read_ledgers_map(file)
            except CorruptionError as error:
                # A crash while the log was made leaves this too; so it is judged by what the
                # index says, not here.
                logger.warning("entry log without a readable map: %s", error)
            self._logs[log_id] = log
            self._last_log_id = max(self._last_log_id, log_id)
            self._opened(log)

    def incomplete(self) -> list[EntryLog]:
        """Logs of earlier lives without a ledgers map, in the order of writing."""
        return [
            log
            for log_id, log in sorted(self._logs.items())
            if log.ledgers is None and not log.is_written
        ]

    def scan(self, log: EntryLog, start: int) -> Iterator[tuple[int, int, int, int]]:
        """(ledger id, entry id, offset of the entry, its size) of the records from `start` on,
        up to the end or to the first that cannot be one."""
        file = self.file(log)
        at = start
        while at + RECORD_START_SIZE <= log.size_bytes:
            length, ledger_id, entry_id = RECORD_START.unpack(file.pread(RECORD_START_SIZE, at))
            end = at + LENGTH_SIZE + length
            if length < RECORD_START_SIZE - LENGTH_SIZE or end > log.size_bytes or ledger_id < 0:
                return
            yield ledger_id, entry_id, at + LENGTH_SIZE, length
            at = end

    async def complete(self, log: EntryLog, end: int, ledgers: dict[int, int]) -> None:
        """Gives a log that a crash left without one its ledgers map; `end` is where its records
        end, what is beyond is cut off."""
        file = self.file(log)
        file.truncate(end)
        log.size_bytes = end
        log.ledgers = ledgers
        await self.write_map(log)

    # Making logs: for their writers.

    async def create(self) -> EntryLog:
        """A new log with its header, durable, its name too; `is_written` is set. OSError."""
        log_id = self._last_log_id = self._last_log_id + 1
        path = f"{self._directory}/{log_name(log_id)}"
        file = self._disk.open(path, create=True, exclusive=True)
        file.pwrite([pack_header(0, 0)], 0)
        await file.wait_synced()
        await self._disk.run(self._disk.sync_directory, self._directory)
        log = EntryLog(log_id, path, HEADER_SIZE, {}, is_written=True, file=file)
        self._logs[log_id] = log
        self._opened(log)
        return log

    async def write_map(self, log: EntryLog) -> None:
        """Ends a log: its ledgers map, then the header that points at it; durable. OSError."""
        assert log.ledgers is not None
        file = self.file(log)
        offset = log.size_bytes
        records = pack_ledgers_map(log.ledgers)
        if not records:
            return
        await self._disk.run(file.pwrite, [records], offset)
        log.size_bytes += len(records)
        # The header points at the map only once the map is there (bookkeeper PR 4607).
        await file.wait_synced()
        file.pwrite([pack_header(offset, len(log.ledgers))], 0)
        await file.wait_synced()

    # Reading.

    def get(self, log_id: int) -> EntryLog | None:
        return self._logs.get(log_id)

    def file(self, log: EntryLog) -> File:
        """The log's open file; files that were not used for long are closed for it."""
        if log.file is None:
            log.file = self._disk.open(log.path)
            self._opened(log)
        else:
            self._open.move_to_end(log.log_id)
        return log.file

    def _opened(self, log: EntryLog) -> None:
        self._open[log.log_id] = log
        excess = len(self._open) - self._config.entry_log_open_files_max
        if excess > 0:
            idle = [each for each in self._open.values() if self._may_close(each, log)]
            for each in idle[:excess]:
                self._close_file(each)

    def _may_close(self, log: EntryLog, wanted: EntryLog) -> bool:
        return log.readers == 0 and not log.is_written and log is not wanted

    def _close_file(self, log: EntryLog) -> None:
        if log.file is not None:
            log.file.close()
            log.file = None
        self._open.pop(log.log_id, None)

    # Deleting.

    def drop_ledgers(self, ledger_ids: Iterable[int]) -> int:
        """Forgets deleted ledgers, removes the logs that have no other; returns how many."""
        dropped = list(ledger_ids)
        removed = 0
        for log in list(self._logs.values()):
            if log.ledgers is None:
                continue
            for ledger_id in dropped:
                log.ledgers.pop(ledger_id, None)
            if not log.ledgers and not log.is_written:
                self.remove(log)
                removed += 1
        return removed

    def ledger_ids(self) -> set[int]:
        """All ledgers that complete logs have bytes of."""
        return {ledger_id for log in self._logs.values() for ledger_id in log.ledgers or ()}

    def remove(self, log: EntryLog) -> None:
        """Unlinks a log; views into it stay valid. Should a crash undo it, the next start finds
        it again as it was."""
        assert not log.is_written
        logger.info("entry log removed path=%s size_bytes=%d", log.path, log.size_bytes)
        del self._logs[log.log_id]
        if log.readers == 0:
            self._close_file(log)
        else:
            self._open.pop(log.log_id, None)
        self._disk.remove(log.path)

    def release(self, log: EntryLog) -> None:
        """Ends one of `log.readers`."""
        log.readers -= 1
        if log.readers == 0 and log.log_id not in self._open and log.file is not None:
            log.file.close()
            log.file = None

    def close(self) -> None:
        for log in list(self._open.values()):
            self._close_file(log)

    @property
    def count(self) -> int:
        return len(self._logs)

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self._logs.values())
