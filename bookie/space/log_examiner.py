"""LogExaminer: finds out what is in an entry log of which the map is missing or cannot be read, or
that the crash of a compaction left (feature 14).

All records are read and looked up in the index: what the index does not point at is dead. If the
scan comes to the end, what is alive is known; the log gets a map, or is removed if there is
nothing. If it does not, something alive may be behind the damage, so the log stays as it is.

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bookie.errors import IndexReadError
from bookie.storage.entry_log_format import LENGTH_SIZE
from bookie.storage.log_scan import LogScanner
from runtime.disk import is_full

if TYPE_CHECKING:
    from bookie.health.damage import DamageReports
    from bookie.health.record_check import RecordCheck
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.entry_logs import EntryLogs
    from bookie.storage.index import EntryIndex
    from runtime.disk import Disk

logger = logging.getLogger(__name__)


class LogExaminer:
    __slots__ = ("_check", "_damages", "_disk", "_index", "_logs")

    def __init__(
        self,
        disk: Disk,
        logs: EntryLogs,
        index: EntryIndex,
        check: RecordCheck,
        damages: DamageReports,
    ) -> None:
        self._disk = disk
        self._logs = logs
        self._index = index
        self._check = check
        self._damages = damages

    async def examine(self, log: EntryLog) -> bool:
        """Whether it is known now what is in the log, which may be removed by that. OSError of a
        write or a sync."""
        log.readers += 1
        try:
            scanner = LogScanner(self._disk, self._logs.file(log), log.size_bytes)
            ledgers = await self._scan(log, scanner)
            if ledgers is not None:
                # What the index says may be what power that fails would take back.
                await self._disk.run(self._index.sync)
            if ledgers:
                await self._complete(log, scanner.end, ledgers)
        finally:
            self._logs.release(log)
        if ledgers is None:
            return False
        if not ledgers:
            logger.info("entry log has nothing that is alive path=%s", log.path)
            self._logs.remove(log)
            await self._logs.close_removed_later()
        return True

    async def _scan(self, log: EntryLog, scanner: LogScanner) -> dict[int, int] | None:
        """Live bytes by ledger; None if not all of the log can be read."""
        ledgers: dict[int, int] = {}
        base = log.log_id << 32
        while (records := await scanner.next()) is not None:
            try:
                found = self._index.get_many(records.keys)
            except IndexReadError as error:
                logger.error("entry log kept path=%s: %s", log.path, error)
                return None
            alive = [i for i, offset in enumerate(records.offsets) if found[i] == base | offset]
            await self._check.prepare(records, alive)
            for i in set(range(len(records.keys))).difference(alive):
                # If its ids are wrong, nobody knows whether it is alive.
                if (problem := self._check.problem(records, i)) is not None:
                    self._unknown(log, records.offsets[i] - LENGTH_SIZE, problem)
                    return None
            for i in alive:
                ledger_id, entry_id = records.keys[i]
                ledgers[ledger_id] = ledgers.get(ledger_id, 0) + records.sizes[i] + LENGTH_SIZE
                # It is alive all the same: it keeps the log, and its reader is told.
                if (problem := self._check.problem(records, i)) is not None:
                    offset = records.offsets[i] - LENGTH_SIZE
                    self._damages.cut_reads_at(log.log_id, offset)
                    self._damages.report(log.path, offset, ledger_id, entry_id, problem)
        if scanner.damage is None:
            return ledgers
        self._unknown(log, *scanner.damage)
        return None

    def _unknown(self, log: EntryLog, offset: int, reason: str) -> None:
        self._damages.report(log.path, offset, -1, -1, reason)
        logger.error(
            "entry log kept: what is in it cannot be told path=%s offset=%d: %s",
            log.path,
            offset,
            reason,
        )

    async def _complete(self, log: EntryLog, end: int, ledgers: dict[int, int]) -> None:
        """A map of what is alive, behind all that can be read; and its proper name."""
        if end < log.size_bytes:
            # Behind a map that a crash tore, in here, another would make it damage in the middle.
            # Durable first: a shorter one would leave the end of the torn one behind it.
            file = self._logs.file(log)
            file.truncate(end)
            await file.wait_synced()
            log.size_bytes = end
        size = log.size_bytes
        log.ledgers = ledgers
        # Not to be removed meanwhile, should all of its ledgers be deleted.
        log.is_written = True
        try:
            await self._logs.write_map(log)
        except OSError as error:
            if not is_full(error):
                raise
            # It is known, though only in this life.
            self._logs.file(log).truncate(size)
            log.size_bytes = size
        await self._logs.walk.settle(log)
        if log.is_compacting:
            await self._logs.publish(log)
        log.is_written = log.is_doubtful = False
