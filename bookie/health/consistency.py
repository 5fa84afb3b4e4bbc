"""The local consistency check: does the index point at what it says (`localconsistencycheck`)?

Of every entry in the index the start of its record is read and compared: the entry log is there, it
is long enough, and the ids are right. That costs a small read per entry; digests are the scrub's.

Owner: the event loop's thread. What is Python runs there in slices, reads on worker threads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from bookie.storage.entry_log_format import LENGTH_SIZE, RECORD_START_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bookie.health.damage import DamageReports
    from bookie.storage.entry_log import EntryLog, EntryLogs
    from bookie.storage.index import EntryIndex
    from runtime.disk import Disk, File
    from runtime.throttle import Throttle

_unpack_record = struct.Struct(">iqq").unpack
_LOCATION_OFFSET_MASK = 0xFFFFFFFF
SLICE_COUNT = 256

#: ledger id, entry id, offset of the record
Places = list[tuple[int, int, int]]


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
    ) -> None:
        """`throttle`: of entries."""
        self._disk = disk
        self._logs = logs
        self._index = index
        self._damages = damages
        self._throttle = throttle

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
            problems = await self._disk.run(_wrong_records, file, log, places)
        finally:
            self._logs.release(log)
        for place, reason in problems:
            if self._index.get(place[0], place[1]) == log_id << 32 | (place[2] + LENGTH_SIZE):
                self._damages.cut_reads_at(log_id, place[2])
                self._report(log.path, place, reason, report)

    def _report(
        self, path: str, place: tuple[int, int, int], reason: str, report: ConsistencyReport
    ) -> None:
        ledger_id, entry_id, offset = place
        if not report.damaged:
            report.first = f"{path}: offset {offset}: ledger {ledger_id} entry {entry_id}: {reason}"
        report.damaged += 1
        self._damages.report(path, offset, ledger_id, entry_id, reason)


def _wrong_records(
    file: File, log: EntryLog, places: Iterable[tuple[int, int, int]]
) -> list[tuple[tuple[int, int, int], str]]:
    """On a worker thread: reads the starts of these records."""
    wrong: list[tuple[tuple[int, int, int], str]] = []
    for place in places:
        ledger_id, entry_id, offset = place
        try:
            start = file.pread(RECORD_START_SIZE, offset)
        except OSError as error:
            wrong.append((place, f"cannot be read: {error}"))
            continue
        if len(start) < RECORD_START_SIZE:
            wrong.append((place, f"the log ends at {log.size_bytes}"))
            continue
        size, found_ledger_id, found_entry_id = _unpack_record(start)
        if (found_ledger_id, found_entry_id) != (ledger_id, entry_id):
            wrong.append((place, "the record there is another one"))
        elif offset + LENGTH_SIZE + size > log.size_bytes or size < RECORD_START_SIZE:
            wrong.append((place, f"a record of {size} bytes"))
    return wrong
