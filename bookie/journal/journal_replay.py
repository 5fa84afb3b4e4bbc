"""Replay: reads journals back from the mark, after a crash (feature 12).

What may be missing or damaged without being an error is what no one was told of: the groups after
the last durable one, which a crash can lose, tear, or keep in any mixture. Every group says which
groups were durable when it was written, so the end of the journal is told apart from a hole in it:

- a damaged group, and none after it that says it was durable: the torn tail. It is cut.
- a damaged group, and an undamaged one after it that says it was durable: corruption. The start is
  refused, with the file and the offset (invariant B4: never answer as if it had not been).

Groups are numbered over all files without a gap, so a lost journal, or one cut short in the middle
of a chain, is found too.

What a killed process wrote and did not sync is in the page cache, and reads as if it were durable.
The start builds upon it (a deletion removes logs), serves it, and says in its first group that it
is durable. So it is made durable before any of it is read.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.journal_files import list_journals
from bookie.journal.journal_format import (
    FILE_HEADER_SIZE,
    FILE_VERSION,
    GROUP_MAGIC,
    OLD_FILE_VERSION,
    OLD_GROUP_HEADER_SIZE,
    UNKNOWN_SEQUENCE,
    FileHeader,
    GroupHeader,
    Position,
    file_name,
    group_matches,
    parse_file_header,
    parse_group_header,
    records,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from runtime.disk import Disk, File

logger = logging.getLogger(__name__)

SCAN_CHUNK_SIZE_BYTES = 1024 * 1024
#: Handed to the loop at once.
RECORDS_PER_TURN = 500
READ_SIZE_BYTES = 1024 * 1024


class JournalReplay:
    """Iterate over `records()` to the end, then `sequence` is the last good group's."""

    def __init__(self, disk: Disk, directory: str, mark: Position) -> None:
        self._disk = disk
        self._directory = directory
        self.mark = mark
        #: The last journal that is whole, the offset where its good groups end, filled up to the
        #: next block, and where the last of them ends itself.
        self.end: tuple[int, int, int] | None = None
        self._group_end = 0
        self._mark = mark
        #: Of the last good group; `UNKNOWN_SEQUENCE` while none is known.
        self.sequence = mark.sequence
        self.group_count = 0
        self.record_count = 0
        #: Of the journal that is being read.
        self._header = FileHeader(0, 1, 0)

    async def make_durable(self) -> None:
        """Before `records`: what they will give survives a power failure from now on, and so does
        what is written behind it, should there be no space for another journal. OSError."""
        marked = self._mark.journal_id
        journal_ids = list_journals(self._disk, self._directory)
        for journal_id in journal_ids:
            if journal_id >= marked:
                file = self._disk.open(f"{self._directory}/{file_name(journal_id)}")
                try:
                    await file.wait_synced()
                    # Pages whose write-back failed in an earlier life are clean, and not on the
                    # disk: what is replayed is to be what the disk has.
                    file.drop_cached(file.size(), 0)
                finally:
                    file.close()
        if journal_ids:
            # The last one's name: its maker may have been killed before it was durable.
            await self._disk.run(self._disk.sync_directory, self._directory)

    def records(self) -> Iterator[tuple[int, int, memoryview]]:
        """(ledger id, entry id or kind, record without its length), in the order of writing.

        BookieStartError if a journal is missing, CorruptionError if one is damaged."""
        last_path, last_end = "", 0
        for journal_id in self._journal_ids():
            path = f"{self._directory}/{file_name(journal_id)}"
            file = self._disk.open(path)
            try:
                start = self._start_offset(file, journal_id)
                if start is None:
                    logger.info("journal=%s was never taken into use", path)
                    continue
                first = self._read_group(file, journal_id, start)
                if first is not None and not self._follows(first[0]):
                    raise CorruptionError(
                        last_path or path,
                        last_end or start,
                        f"group {self.sequence + 1} is missing; the next is "
                        f"{first[0].sequence}, in {path}",
                    )
                last_path, last_end = path, (yield from self._file_records(file, journal_id, start))
                assert last_end >= start
                self.end = (journal_id, last_end, self._group_end)
            finally:
                file.close()

    async def read(self) -> AsyncIterator[tuple[int, int, memoryview]]:
        """As `records`, read and checked on a worker thread: a journal, and what is behind its
        last group, is long. The loop gets its turn between RECORDS_PER_TURN."""
        records = self.records()
        while some := await self._disk.run(_take, records):
            for record in some:
                yield record

    def _journal_ids(self) -> list[int]:
        marked = self._mark.journal_id
        ids = [i for i in list_journals(self._disk, self._directory) if i >= marked]
        if marked and (not ids or ids[0] != marked):
            raise BookieStartError(
                f"{self._directory}/{file_name(marked)} is missing: the last checkpoint needs the "
                "journal from there on"
            )
        for previous, journal_id in pairwise(ids):
            if journal_id != previous + 1:
                raise BookieStartError(
                    f"{self._directory}/{file_name(previous + 1)} is missing: there are journals "
                    "before and after it"
                )
        return ids

    def _start_offset(self, file: File, journal_id: int) -> int | None:
        """Where the groups start that are to be replayed; None if this journal has no header of
        its own, because the crash came while it was being made."""
        size = file.size()
        marked = journal_id == self._mark.journal_id
        try:
            header = parse_file_header(file.pread(FILE_HEADER_SIZE, 0))
            if header.journal_id != journal_id:
                raise ValueError(f"the header is of journal {header.journal_id:x}")
        except ValueError as error:
            # A journal's header is durable before any group is written behind it. Nobody knows of
            # which version they would be, and a spare that is made a journal may be of the old one.
            used = size < FILE_HEADER_SIZE or self._find_any(file, journal_id)
            if marked or used:
                raise CorruptionError(file.path, 0, str(error)) from error
            return None
        if size < header.size:
            raise CorruptionError(
                file.path, size, f"the journal ends here, it was made with {header.size} bytes"
            )
        self._header = header
        first = header.first_group_offset
        return max(self._mark.offset, first) if marked else first

    def _find_any(self, file: File, journal_id: int) -> bool:
        for version in (OLD_FILE_VERSION, FILE_VERSION):
            self._header = FileHeader(journal_id, 1, 0, version)
            if self._find_group(file, journal_id, 0) is not None:
                return True
        return False

    def _file_records(
        self, file: File, journal_id: int, offset: int
    ) -> Generator[tuple[int, int, memoryview], None, int]:
        """Yields the records from `offset` on; returns the offset where good groups end."""
        self._group_end = offset
        while (group := self._read_group(file, journal_id, offset)) is not None:
            header, body = group
            if not self._follows(header):
                raise CorruptionError(
                    file.path,
                    offset,
                    f"group {header.sequence} where {self.sequence + 1} should be",
                )
            self.sequence = header.sequence
            self.group_count += 1
            self.record_count += header.record_count
            try:
                yield from records(body, header.record_count)
            except ValueError as error:
                raise CorruptionError(file.path, offset, str(error)) from error
            end = offset + self._header.group_header_size + header.body_size
            assert len(body) == header.body_size, "what was counted is replayed"
            self._group_end = end
            offset = self._header.behind(end)
            assert offset >= end
        self._check_tail(file, journal_id, offset)
        return offset

    def _check_tail(self, file: File, journal_id: int, offset: int) -> None:
        """What follows the last good group must not prove that there were more."""
        at = offset
        while (found := self._find_group(file, journal_id, at)) is not None:
            unknown = self.sequence == UNKNOWN_SEQUENCE
            if unknown or found.durable_sequence > self.sequence:
                raise CorruptionError(
                    file.path,
                    offset,
                    f"damaged group; group {found.sequence} at {found.offset} is good and says "
                    f"that all up to {found.durable_sequence} were durable",
                )
            logger.info(
                "journal=%s torn tail: group=%d at offset=%d was never durable",
                file.path,
                found.sequence,
                found.offset,
            )
            assert found.offset >= at, "the search goes forwards"
            at = found.offset + 1
        logger.info("journal=%s ends at offset=%d group=%d", file.path, offset, self.sequence)

    def _follows(self, header: GroupHeader) -> bool:
        return self.sequence in (UNKNOWN_SEQUENCE, header.sequence - 1)

    def _read_group(
        self, file: File, journal_id: int, offset: int
    ) -> tuple[GroupHeader, memoryview] | None:
        """The undamaged group of this journal at `offset`, None if there is none."""
        version, header_size = self._header.version, self._header.group_header_size
        parsed = parse_group_header(file.pread(header_size, offset), 0, version)
        if parsed is None:
            return None
        crc, header = parsed
        if header.journal_id != journal_id or header.offset != offset:
            return None
        data = file.pread(header_size + header.body_size, offset)
        if not group_matches(data, crc, header.body_size, version):
            return None
        return header, memoryview(data)[header_size:]

    def _find_group(self, file: File, journal_id: int, start: int) -> GroupHeader | None:
        """The first undamaged group of this journal at or after `start`."""
        magic = GROUP_MAGIC.to_bytes(4, "big")
        before = self._header.group_header_size - OLD_GROUP_HEADER_SIZE
        at = start + before
        while chunk := file.pread(SCAN_CHUNK_SIZE_BYTES, at):
            found = chunk.find(magic)
            while found >= 0:
                group = self._read_group(file, journal_id, at + found - before)
                if group is not None:
                    return group[0]
                found = chunk.find(magic, found + 1)
            if len(chunk) < len(magic):
                break
            at += len(chunk) - (len(magic) - 1)
            assert at > start, "the search goes forwards"
        return None


def _take(
    records: Iterator[tuple[int, int, memoryview]],
) -> list[tuple[int, int, memoryview]]:
    """On a worker thread: the next few, and at most little more than READ_SIZE_BYTES of them."""
    taken: list[tuple[int, int, memoryview]] = []
    size = 0
    for record in records:
        taken.append(record)
        size += len(record[2])
        if len(taken) >= RECORDS_PER_TURN or size >= READ_SIZE_BYTES:
            break
    assert len(taken) <= RECORDS_PER_TURN
    return taken
