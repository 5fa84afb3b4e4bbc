"""Adopted journals: large entries are written once, their journal becomes an entry log.

An entry's record is the same in the journal and in an entry log, so a large entry need not be
copied from one to the other. When a generation of the write cache is flushed that consists of large
entries for the most part, the journals that have them get the name of an entry log beside their own
(a hard link), and the index points into them. When the mark has passed such a journal, its own name
goes, and the file becomes an entry log like any other: cut behind the last entry that is referred
to, with the ledgers map and an entry log's header.

Journals that nobody adopts are used again, as before. After those that were adopted the next one is
a new file. If syncs are large it is only allocated, not written ahead, for that would be writing
everything twice after all (JournalFiles).

What a crash finds, by the file's names and its header:

| names | header | what it is |
|---|---|---|
| journal | journal | a journal: of what is behind the mark the replay makes new copies |
| both, and the checkpoint knows it | journal | as it was: up to `end` it is referred to |
| both, and it does not | journal | a journal: all of it is behind the mark; the other name goes |
| entry log | journal, or torn | to be completed, if the checkpoint knows it; else in doubt |
| any, without a checkpoint | journal | in doubt: it is kept, and the collector looks into it |
| entry log | entry log | complete |

Assumed: a journal's id is never used twice (journal_files.py), and nobody writes behind a journal's
last group but its next life, which an adopted one does not have: `JournalFiles.recycle` makes no
spare of a file with two names.

Owner: the checkpoint's task.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bookie.journal.journal_format import file_name
from bookie.storage.checkpoint import END_UNKNOWN, AdoptedJournal
from bookie.storage.entry_log_format import pack_header
from bookie.storage.kept_runs import KeptRuns
from runtime.disk import FREE_AT_ONCE, is_full

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bookie.parts import BookieParts
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.write_cache import Generation

logger = logging.getLogger(__name__)

#: A generation stays in its journals if half of its bytes are large entries': what is copied, and
#: dead in the journals, is less than what is not written twice. Where the average entry has less
#: than this share of the size from which on one is large, nobody looks: they are many.
AVERAGE_SHARE = 4


class AdoptedJournals:
    __slots__ = (
        "_config",
        "_disk",
        "_is_off",
        "_journal_directory",
        "_logs",
        "_placements",
        "_writer",
        "is_last",
    )

    def __init__(self, parts: BookieParts, journal_directory: str) -> None:
        config = parts.config
        self._config = config
        self._disk = parts.env.disk
        self._logs = parts.logs
        self._writer = parts.writer
        self._journal_directory = journal_directory
        self._placements = parts.journal.placements
        #: Nobody's sync is to be spared any more: the bookie stops.
        self.is_last = False
        # A location has 32 bits for the offset, and an entry log 31.
        self._is_off = (
            not config.journal_kept_entry_min_bytes or config.journal_size_bytes >= 1 << 31
        )

    async def keep(self, generation: Generation) -> dict[int, EntryLog]:
        """The journals, by their ids, in which this generation's large entries stay; none if all of
        it is to be copied. Its groups are durable. OSError."""
        runs = generation.kept
        if runs is None:
            views = [segment.view for segment in generation.segments]
            runs = generation.kept = KeptRuns(views, self._placements)
        size_min = self._config.journal_kept_entry_min_bytes
        wanted = generation.entry_count * size_min // AVERAGE_SHARE
        if self._is_off or generation.record_size_bytes < wanted:
            return {}
        if not await generation.has_bytes_of(size_min, generation.record_size_bytes // 2):
            return {}  # a journal that is adopted for little costs a new one, and all else in it
        kept: dict[int, EntryLog] = {}
        for journal_id in runs.journal_ids():
            log = self._logs.adopted.get(journal_id)
            if log is None:
                log = await self._adopt(journal_id)
            elif self._disk.link_count(log.path) == 1:
                log = None  # somebody copied the directories, and not the links
            if log is not None:
                kept[journal_id] = log
        return kept

    async def _adopt(self, journal_id: int) -> EntryLog | None:
        path = f"{self._journal_directory}/{file_name(journal_id)}"
        try:
            log_id = self._logs.link(path)
        except OSError as error:
            if not is_full(error):
                # Another file system, or one that has no links.
                self._is_off = True
                logger.info("entries are copied from the journal into entry logs: %s", error)
            return None
        try:
            return await self._logs.adopt(log_id, journal_id)
        except OSError as error:
            if is_full(error):
                return None
            raise

    def names(self) -> Iterable[AdoptedJournal]:
        """For the checkpoint: those that have entries, or may have."""
        for journal_id, log in sorted(self._logs.adopted.items()):
            if log.is_doubtful:
                yield AdoptedJournal(journal_id, log.log_id, END_UNKNOWN, {})
            elif log.ledgers:
                yield AdoptedJournal(journal_id, log.log_id, log.records_end, dict(log.ledgers))

    async def complete(self, mark_journal_id: int) -> None:
        """Makes entry logs of those before the mark's, whose own names are gone, durably. OSError;
        if there was no space, it may be called again."""
        removed = False
        for journal_id, log in sorted(self._logs.adopted.items()):
            if journal_id >= mark_journal_id:
                break
            if log.is_doubtful:
                # A log without a map: the collector finds out what is in it.
                self._logs.file(log).pwrite([pack_header(0, 0)], 0)
                await self._logs.file(log).wait_synced()
            elif log.ledgers:
                await self._cut(log)
                log.size_bytes = log.records_end
                await self._logs.write_map(log)
                await self._logs.walk.settle(log)
                self._writer.are_cached(log.log_id, 0, log.size_bytes)
                self._logs.adopted_count += 1
            log.is_written = False
            log.journal_id = -1
            del self._logs.adopted[journal_id]
            if log.is_dead:
                self._logs.remove(log)
                removed = True
        if removed:
            await self._logs.close_removed_later()

    async def _cut(self, log: EntryLog) -> None:
        file = self._logs.file(log)
        if self.is_last:
            await self._disk.run(file.truncate, log.records_end)
            return
        while not await self._disk.run(file.shrink, log.records_end, FREE_AT_ONCE):
            pass

    def count(self, log: EntryLog, ledger_id: int, size: int, end: int) -> None:
        """The index points at records of so many bytes; the last of them ends there."""
        assert log.ledgers is not None
        log.ledgers[ledger_id] = log.ledgers.get(ledger_id, 0) + size
        log.records_end = max(log.records_end, end)
