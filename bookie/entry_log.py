"""Entry logs: the entries of all ledgers, in the order of the flushes (features.md #7).

The bytes are BookKeeper's (DefaultEntryLogger.java; docs/formats.md, «Entry log»): a header of
1024 bytes, records `[length i32][entry]`, and at the end, once the log is full, a ledgers map: how
many bytes each ledger has in it. A location, as the index keeps it, is
`log id << 32 | offset of the entry, after its length`.

One log is written, by the flush. All others are complete: they are only read, until every ledger in
them is deleted; then the file is removed.

Owner: the event loop's thread; slow calls go through `Disk.run`.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bookie.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bookie.config import BookieConfig
    from runtime.disk import Disk, File
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)

HEADER_SIZE = 1024
MAGIC = b"BKLO"
VERSION = 1
_HEADER = struct.Struct(">4siqi")  # magic, version, offset of the ledgers map, ledgers in it
_MAP_START = struct.Struct(">iqqi")  # record length, -1, -2, ledgers in this batch
_MAP_ITEM = struct.Struct(">qq")
_RECORD_START = struct.Struct(">iqq")
RECORD_START_SIZE = _RECORD_START.size
#: Ids of the records of the ledgers map: not a ledger's, not an entry's.
MAP_LEDGER_ID = -1
MAP_ENTRY_ID = -2
MAP_BATCH_COUNT = 10_000
LENGTH_SIZE = 4


def log_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def log_id_of(name: str) -> int | None:
    """None if it is not the name of an entry log."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "log":
        return None
    try:
        log_id = int(stem, 16)
    except ValueError:
        return None
    return log_id if log_name(log_id) == name else None


def pack_header(map_offset: int, ledger_count: int) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, map_offset, ledger_count).ljust(HEADER_SIZE, b"\0")


def pack_ledgers_map(ledgers: dict[int, int]) -> bytes:
    """The records of the map, in batches, as they stand in the log."""
    parts: list[bytes] = []
    items = sorted(ledgers.items())
    for start in range(0, len(items), MAP_BATCH_COUNT):
        batch = items[start : start + MAP_BATCH_COUNT]
        size = _MAP_START.size - LENGTH_SIZE + _MAP_ITEM.size * len(batch)
        parts.append(_MAP_START.pack(size, MAP_LEDGER_ID, MAP_ENTRY_ID, len(batch)))
        parts.extend(_MAP_ITEM.pack(ledger_id, size) for ledger_id, size in batch)
    return b"".join(parts)


def read_ledgers_map(file: File) -> dict[int, int] | None:
    """Bytes by ledger id; None if the log has no map (it was not completed). CorruptionError if it
    should have one and it cannot be read: then nobody may conclude that a ledger is not in it."""
    header = file.pread(HEADER_SIZE, 0)
    if len(header) < HEADER_SIZE or header[:4] != MAGIC:
        raise CorruptionError(file.path, 0, "not an entry log: no header")
    _, version, offset, count = _HEADER.unpack_from(header)
    if version != VERSION:
        raise CorruptionError(file.path, 4, f"entry log version {version}, known is {VERSION}")
    if offset == 0:
        return None
    size = file.size()
    ledgers: dict[int, int] = {}
    while len(ledgers) < count and HEADER_SIZE <= offset <= size - _MAP_START.size:
        start = file.pread(_MAP_START.size, offset)
        length, ledger_id, entry_id, batch_count = _MAP_START.unpack(start)
        items_size = batch_count * _MAP_ITEM.size
        if (ledger_id, entry_id) != (MAP_LEDGER_ID, MAP_ENTRY_ID) or batch_count <= 0:
            break
        items = file.pread(items_size, offset + _MAP_START.size)
        if len(items) != items_size or length != _MAP_START.size - LENGTH_SIZE + items_size:
            break
        ledgers.update(_MAP_ITEM.iter_unpack(items))
        offset += LENGTH_SIZE + length
    # A map is never empty: no ledgers next to an offset is a header that a crash tore, and
    # believing it would delete what is in the log (bookkeeper PR 4607).
    if len(ledgers) != count or count <= 0:
        raise CorruptionError(
            file.path, offset, f"the ledgers map has {len(ledgers)} readable ledgers of {count}"
        )
    return ledgers


@dataclass(slots=True)
class EntryLog:
    log_id: int
    path: str
    #: What is written, the header included; reads go no further.
    size_bytes: int
    #: Bytes by ledger, lengths included. None: not known, so the log is kept.
    ledgers: dict[int, int] | None
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
        "current",
    )

    def __init__(self, config: BookieConfig, disk: Disk, directory: str) -> None:
        self._config = config
        self._disk = disk
        self._directory = directory
        self._logs: dict[int, EntryLog] = {}
        #: Logs with an open file, the one used last at the end.
        self._open: OrderedDict[int, EntryLog] = OrderedDict()
        self._last_log_id = -1
        self.current: EntryLog | None = None

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
            if log.ledgers is None and log is not self.current
        ]

    def scan(self, log: EntryLog, start: int) -> Iterator[tuple[int, int, int, int]]:
        """(ledger id, entry id, offset of the entry, its size) of the records from `start` on,
        up to the end or to the first that cannot be one."""
        file = self.file(log)
        at = start
        while at + RECORD_START_SIZE <= log.size_bytes:
            length, ledger_id, entry_id = _RECORD_START.unpack(file.pread(RECORD_START_SIZE, at))
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
        await self._write_map(log)

    # Writing: the flush.

    async def start_log(self) -> None:
        """Completes the current log and starts the next one."""
        if (log := self.current) is not None:
            await self._write_map(log)
        log_id = self._last_log_id = self._last_log_id + 1
        path = f"{self._directory}/{log_name(log_id)}"
        file = self._disk.open(path, create=True, exclusive=True)
        file.pwrite([pack_header(0, 0)], 0)
        await file.wait_synced()
        await self._disk.run(self._disk.sync_directory, self._directory)
        log = EntryLog(log_id, path, HEADER_SIZE, {}, file=file)
        self._logs[log_id] = self.current = log
        self._opened(log)

    async def complete_current(self) -> None:
        """The end of this life's writing. A log with nothing in it is removed."""
        log, self.current = self.current, None
        assert log is not None
        if log.ledgers:
            await self._write_map(log)
        else:
            self.remove(log)

    async def _write_map(self, log: EntryLog) -> None:
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

    def has_room(self, size: int) -> bool:
        return (
            self.current is not None
            and self.current.size_bytes + size <= self._config.entry_log_size_limit_bytes
        )

    async def write(self, buffers: Buffers, size: int) -> None:
        """Appends records to the current log; not durable before `sync`."""
        log = self.current
        assert log is not None
        file = self.file(log)
        await self._disk.run(file.pwrite, buffers, log.size_bytes)
        log.size_bytes += size

    async def sync(self) -> None:
        assert self.current is not None
        await self.file(self.current).wait_synced()

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
        return log.readers == 0 and log is not self.current and log is not wanted

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
            if not log.ledgers and log is not self.current:
                self.remove(log)
                removed += 1
        return removed

    def ledger_ids(self) -> set[int]:
        """All ledgers that complete logs have bytes of."""
        return {ledger_id for log in self._logs.values() for ledger_id in log.ledgers or ()}

    def remove(self, log: EntryLog) -> None:
        """Unlinks a log; views into it stay valid. Should a crash undo it, the next start finds
        it again as it was."""
        assert log is not self.current
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
