"""The local consistency check: does the index point at what it says (`localconsistencycheck`)?

Of every entry in the index the start of its record is read and compared: the entry log is there, it
is long enough, and the ids are right. That costs a small read per entry.

Of a log that the scrub cannot follow, whole records are read and handed to who knows the digests:
behind the place where a log is broken only the index tells where a record starts.

Owner: the event loop's thread. What is Python runs there in slices, reads on worker threads.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING

from bookie.health.index_lookup import UNREADABLE, location_of
from bookie.storage.entry_log_format import LENGTH_SIZE, RECORD_START_SIZE
from bookie.storage.log_scan import RecordSlice
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bookie.health.damage import DamageReports
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.entry_logs import EntryLogs
    from bookie.storage.index import EntryIndex
    from runtime.disk import Disk, File
    from runtime.throttle import Throttle

_unpack_record = struct.Struct(">iqq").unpack
_LOCATION_OFFSET_MASK = 0xFFFFFFFF
SLICE_COUNT = 256

#: Of whole records that are read together; more if a single one is larger.
READ_SIZE_BYTES = 1 << 20

#: ledger id, entry id, offset of the record
Place = tuple[int, int, int]
Places = list[Place]


@dataclass(slots=True)
class ConsistencyReport:
    entries: int = 0
    #: Entries whose record is not where the index says.
    damaged: int = 0
    #: In words, the first of them; "" if there is none.
    first: str = ""


class ConsistencyCheck:
    def __init__(
        self,
        disk: Disk,
        logs: EntryLogs,
        index: EntryIndex,
        damages: DamageReports,
        throttle: Throttle,
        digests: Callable[[int, RecordSlice, Places], Awaitable[list[tuple[int, str]]]]
        | None = None,
    ) -> None:
        """`throttle`: of entries. `digests`: whole records are read, and it is given a log's id,
        records from anywhere in it, as if one followed the other, and where each is in truth; it
        gives the numbers of those that are not what was stored, and why."""
        self._disk = disk
        self._logs = logs
        self._index = index
        self._damages = damages
        self._throttle = throttle
        self._digests = digests

    async def run(
        self,
        log_ids: set[int] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> ConsistencyReport:
        """Checks every entry, or those that are in these logs; `on_progress` is given how many were
        looked at. BookieStartError where the index cannot be read, OSError."""
        report = ConsistencyReport()
        entries = self._index.locations()
        while some := list(islice(entries, SLICE_COUNT)):
            await self._throttle.take(len(some))
            by_log: dict[int, Places] = {}
            for ledger_id, entry_id, location in some:
                log_id = location >> 32
                if log_ids is None or log_id in log_ids:
                    offset = (location & _LOCATION_OFFSET_MASK) - LENGTH_SIZE
                    by_log.setdefault(log_id, []).append((ledger_id, entry_id, offset))
            for log_id, places in by_log.items():
                await self._check_log(log_id, places, report)
            if on_progress is not None:
                on_progress(len(some))
        return report

    async def _check_log(self, log_id: int, places: Places, report: ConsistencyReport) -> None:
        report.entries += len(places)
        log = self._logs.get(log_id)
        if log is None:
            path = self._logs.missing_path(log_id)
            for place in places:
                self._report(path, place, "the entry log is missing", report)
            return
        log.readers += 1
        try:
            file = self._logs.file(log)
            problems = await self._problems(file, log, places)
        finally:
            self._logs.release(log)
        for place, reason in problems:
            location = location_of(self._index, place[0], place[1])
            if location in (log_id << 32 | (place[2] + LENGTH_SIZE), UNREADABLE):
                self._damages.cut_reads_at(log_id, place[2])
                self._report(log.path, place, reason, report)

    async def _problems(self, file: File, log: EntryLog, places: Places) -> list[tuple[Place, str]]:
        if self._digests is None:
            return await self._disk.run(_wrong_records, file, log, places)
        wrong: list[tuple[Place, str]] = []
        while places:
            records, read, unread, places = await self._disk.run(_read_records, file, log, places)
            wrong += unread
            wrong += [(read[i], why) for i, why in await self._digests(log.log_id, records, read)]
        return wrong

    def _report(self, path: str, place: Place, reason: str, report: ConsistencyReport) -> None:
        ledger_id, entry_id, offset = place
        if not report.damaged:
            report.first = f"{path}: offset {offset}: ledger {ledger_id} entry {entry_id}: {reason}"
        report.damaged += 1
        self._damages.report(path, offset, ledger_id, entry_id, reason)


def _wrong_records(file: File, log: EntryLog, places: Places) -> list[tuple[Place, str]]:
    """On a worker thread: reads the starts of these records."""
    wrong: list[tuple[Place, str]] = []
    for place in places:
        size = _record_size(file, log, place)
        if isinstance(size, str):
            wrong.append((place, size))
    return wrong


def _record_size(file: File, log: EntryLog, place: Place) -> int | str:
    """Of the record there, its length not included; or what is wrong with its start."""
    ledger_id, entry_id, offset = place
    try:
        start = file.pread(RECORD_START_SIZE, offset)
    except OSError as error:
        return f"cannot be read: {error}"
    if len(start) < RECORD_START_SIZE:
        return f"the log ends at {log.size_bytes}"
    size: int
    size, found_ledger_id, found_entry_id = _unpack_record(start)
    if (found_ledger_id, found_entry_id) != (ledger_id, entry_id):
        return "the record there is another one"
    if offset + LENGTH_SIZE + size > log.size_bytes or size < RECORD_START_SIZE:
        return f"a record of {size} bytes"
    return size


def _read_records(
    file: File, log: EntryLog, places: Places
) -> tuple[RecordSlice, Places, list[tuple[Place, str]], Places]:
    """On a worker thread: the first of these records, READ_SIZE_BYTES of them, and their places;
    those among them that are none; and the places that are left."""
    data = bytearray()
    offsets: list[int] = []
    sizes: list[int] = []
    read: Places = []
    wrong: list[tuple[Place, str]] = []
    done = 0
    for place in places:
        done += 1
        size = _record_size(file, log, place)
        if isinstance(size, str):
            wrong.append((place, size))
            continue
        try:
            entry = file.pread(size, place[2] + LENGTH_SIZE)
        except OSError as error:
            wrong.append((place, f"cannot be read: {error}"))
            continue
        if len(entry) < size:
            wrong.append((place, "the file ends in it"))
            continue
        read.append(place)
        offsets.append(len(data))
        sizes.append(size)
        data += entry
        if len(data) >= READ_SIZE_BYTES:
            break
    records = RecordSlice(memoryview(data), 0)
    records.keys = [(ledger_id, entry_id) for ledger_id, entry_id, _ in read]
    records.offsets, records.sizes = offsets, sizes
    return records, read, wrong, places[done:]
