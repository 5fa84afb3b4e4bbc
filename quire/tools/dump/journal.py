"""`quire dump journal`: header, groups, records, and where a replay would stop, and why.

Groups are judged by the rules of journal_replay.py, with this file's own reading of them:
where the next group does not count, the journal ends. If a later group of the same journal says
that more was durable, that is damage, and a bookie refuses to start; else it is the torn tail of a
crash, and what stands behind it is dropped. What a group looks like that does not count is told:
never written, of an earlier life of the file, or torn.

The replay starts at the checkpoint's mark, if that is known: groups before it are shown, but what
is wrong with them stops nobody.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from bookie.journal.journal_files import SPARE_PREFIX
from bookie.journal.journal_format import (
    EXPLICIT_LAC,
    FILE_HEADER_SIZE,
    FORCE,
    GROUP_MAGIC,
    LEDGER_DELETED,
    LEDGER_FENCED,
    LEDGER_KEY,
    OLD_GROUP_HEADER_SIZE,
    UNKNOWN_SEQUENCE,
    FileHeader,
    GroupHeader,
    Position,
    group_crc_start,
    journal_id_of,
    parse_file_header,
    parse_group_header,
    records,
    special_value,
)
from quire.tools.dump.entries import EntryDump, LedgerTotals
from quire.tools.dump.files import LOOK_SIZE_BYTES, WINDOW_SIZE_BYTES, Window, find_bytes, is_zero
from quire.tools.dump.secrets import lac_packet_text, master_key_text
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quire.tools.dump.files import Source
    from quire.tools.dump.options import EntryOptions
    from quire.tools.output import Output, Step

KIND_NAMES = {
    LEDGER_KEY: "key",
    LEDGER_FENCED: "fenced",
    FORCE: "force",
    EXPLICIT_LAC: "explicit-lac",
    LEDGER_DELETED: "deleted",
}
#: Of a larger one the records are not shown. Bookies make groups of some megabytes.
GROUP_SIZE_MAX = 256 * 1024 * 1024
LENGTH_SIZE = 4
IDS_SIZE = 16
_MAGIC = GROUP_MAGIC.to_bytes(4, "big")


@dataclass(slots=True)
class Chain:
    """What is carried from one journal to the next of the same directory."""

    #: Where a replay would start; None: not known, so from the first journal's first group.
    mark: Position | None = None
    last_journal_id: int | None = None
    #: Of the last good group of that journal.
    sequence: int = UNKNOWN_SEQUENCE


@dataclass(slots=True)
class _Totals:
    groups: int = 0
    records: int = 0
    entries: int = 0
    bytes: int = 0
    dropped_groups: int = 0
    ledgers: LedgerTotals = field(default_factory=LedgerTotals)


class JournalDump:
    def __init__(
        self, out: Output, options: EntryOptions, source: Source, chain: Chain, step: Step | None
    ) -> None:
        self._out = out
        self._options = options
        self._source = source
        self._file = source.path
        name = os.path.basename(source.path)
        self._is_spare = name.startswith(SPARE_PREFIX)
        self._named_id = journal_id_of(name)
        # A spare is what an earlier life left: it goes before nothing, and nothing before it.
        self._chain = Chain() if self._is_spare else chain
        self._window = Window(source, step)
        # Looking ahead for groups must not throw away what is read here.
        self._ahead = Window(source)
        self._entries = EntryDump(out, options, source.path)
        self._totals = _Totals()
        self._journal_id = 0
        self._header = FileHeader(0, 1, 0)
        self._sequence = UNKNOWN_SEQUENCE

    def run(self) -> None:
        header = self._show_header()
        if header is None:
            return
        self._journal_id, self._header = header.journal_id, header
        if self._source.size < header.size:
            self._out.damage(
                self._file,
                self._source.size,
                f"the journal ends here, it was made with {header.size} bytes",
                1,
            )
        start = self._take_up_chain()
        broken = start > header.first_group_offset and self._show_unneeded(start)
        offset, verdict, reason = self._show_judged(start)
        if broken and verdict == "clean":
            reason += "; what is damaged before the mark is not read"
        self._show_end(offset, verdict, reason)
        self._chain.last_journal_id = self._journal_id
        self._chain.sequence = self._sequence

    def _show_header(self) -> FileHeader | None:
        """None if there is nothing to go on with."""
        data = self._window.view(0, FILE_HEADER_SIZE)
        fields: dict[str, Any] = {"file": self._file}
        try:
            header = parse_file_header(data)
            journal_id, alignment = header.journal_id, header.alignment
            if alignment < FILE_HEADER_SIZE or alignment & (alignment - 1):
                raise ValueError(f"an alignment of {alignment} bytes cannot be")
        except ValueError as error:
            self._out.row("journal", {**fields, "size": self._source.size}, 0)
            self._header_damage(str(error))
            return None
        fields |= {
            "journal": journal_id,
            "version": header.version,
            "alignment": alignment,
            "size": header.size,
            "crc": "ok",
        }
        if self._is_spare:
            fields["spare"] = True
        self._out.row("journal", fields, 0)
        if self._named_id is not None and journal_id != self._named_id:
            self._header_damage(f"the header is of journal {journal_id:x}")
            return None
        return header

    def _header_damage(self, reason: str) -> None:
        """A file without its header is in order while it is being made: then it has no groups."""
        size = self._source.size
        marked = self._chain.mark is not None and self._named_id == self._chain.mark.journal_id
        own_groups = self._named_id is not None and self._find_own(self._named_id, 0) is not None
        if size == 0:
            reason = "the file is empty"
        elif size >= FILE_HEADER_SIZE and not own_groups and not marked and self._is_unmade():
            if self._chain.last_journal_id is not None:
                self._chain.last_journal_id = self._named_id
            words = f"{reason}: it was never taken into use, a replay skips it"
            self._out.row("end", {"offset": 0, "verdict": "unused", "reason": words}, 1)
            return
        self._out.damage(self._file, 0, reason, 1)

    def _is_unmade(self) -> bool:
        """Zeros, or the header of another journal whose file this was."""
        head = self._window.view(0, FILE_HEADER_SIZE)
        return not any(head) or _is_header(head)

    def _take_up_chain(self) -> int:
        """Where judging starts; sets the sequence number that the first group must follow."""
        chain, mark = self._chain, self._chain.mark
        if mark is not None and mark.journal_id == self._journal_id:
            self._sequence = mark.sequence
            return max(mark.offset, self._header.first_group_offset)
        last = chain.last_journal_id
        if last == self._journal_id - 1:
            self._sequence = chain.sequence
        elif last is not None and last < self._journal_id:
            missing = f"{last + 1:x}.txn"
            self._out.damage(self._file, None, f"the journal before it is missing ({missing})", 1)
        return self._header.first_group_offset

    # Groups before the mark.

    def _show_unneeded(self, end: int) -> bool:
        """Groups that no replay needs; whether some of them are damaged."""
        offset, broken = self._header.first_group_offset, False
        while offset < end:
            group = self._group_at(self._window, self._journal_id, offset)
            if group is None:
                self._out.damage(
                    self._file, offset, "no group counts here, before the mark: it is not needed", 1
                )
                broken = True
                found = self._find_own(self._journal_id, offset + 1)
                if found is None or found >= end:
                    return broken
                offset = found
                continue
            self._show_group(group, "before the mark")
            offset = self._behind(group)
        return broken

    # Groups that count.

    def _show_judged(self, start: int) -> tuple[int, str, str]:
        """(offset where the groups end that count, verdict, reason)."""
        offset = start
        while (group := self._group_at(self._window, self._journal_id, offset)) is not None:
            if not self._follows(group):
                words = f"group {group.sequence} where {self._sequence + 1} should be"
                self._out.damage(self._file, offset, words, 1)
                self._show_rest(offset, "refused")
                return offset, "damaged", words
            self._sequence = group.sequence
            if not self._show_group(group, "ok"):
                self._show_rest(self._behind(group), "refused")
                return offset, "damaged", "a record of a good group cannot be read"
            offset = self._behind(group)
        found = self._find_own(self._journal_id, offset)
        if found is None:
            return offset, "clean", self._look_of(offset)
        return offset, *self._judge_tail(offset, found)

    def _follows(self, group: GroupHeader) -> bool:
        return self._sequence in (UNKNOWN_SEQUENCE, group.sequence - 1)

    def _judge_tail(self, offset: int, found: int) -> tuple[str, str]:
        """There are good groups behind one that does not count."""
        at: int | None = found
        proof: GroupHeader | None = None
        while at is not None:
            group = self._group_at(self._ahead, self._journal_id, at)
            assert group is not None
            if self._proves_damage(group):
                proof = group
                break
            at = self._find_own(self._journal_id, self._behind(group))
        look = self._look_of(offset)
        if proof is None and self._sequence == UNKNOWN_SEQUENCE:
            words = (
                f"{look}; good groups follow. Whether what is missing was durable, only the "
                "checkpoint or the journal before tells: dump the directory"
            )
            self._out.damage(self._file, offset, words, 1)
            self._show_rest(found, "unsure")
            return "unsure", words
        if proof is None:
            self._show_rest(found, "dropped")
            return "torn", f"{look}; groups behind it were never durable and are dropped"
        words = (
            f"damaged group ({look}); group {proof.sequence} at {proof.offset} is good and says "
            f"that all up to {proof.durable_sequence} were durable"
        )
        self._out.damage(self._file, offset, words, 1)
        self._show_rest(found, "refused")
        return "damaged", words

    def _proves_damage(self, group: GroupHeader) -> bool:
        """Whether a good group says that one was durable which is not there any more."""
        known = self._sequence
        if known == UNKNOWN_SEQUENCE:
            known = group.sequence - 2  # at least the one before this group is missing
        return group.durable_sequence > known

    def _show_rest(self, start: int, state: str) -> None:
        """Good groups that do not count."""
        at = self._find_own(self._journal_id, start)
        while at is not None:
            group = self._group_at(self._window, self._journal_id, at)
            assert group is not None
            self._show_group(group, state)
            self._totals.dropped_groups += 1
            at = self._find_own(self._journal_id, self._behind(group))

    def _look_of(self, offset: int) -> str:
        """What stands where a group would."""
        if offset >= self._source.size:
            return "the journal is full"
        size = self._header.group_header_size
        parsed = parse_group_header(self._window.view(offset, size), 0, self._header.version)
        if parsed is None:
            block = min(offset + self._header.alignment, self._source.size)
            if is_zero(self._window, offset, block):
                return "nothing was written here"
            return "no group starts here: torn, or left by an earlier life of the file"
        _, header = parsed
        if header.journal_id != self._journal_id:
            return f"a group of an earlier life of the file, as journal {header.journal_id:x}"
        if header.offset != offset:
            return f"a group that belongs at offset {header.offset}"
        return f"torn: the checksum of group {header.sequence} is bad"

    # One group.

    def _group_at(self, window: Window, journal_id: int, offset: int) -> GroupHeader | None:
        """The undamaged group of this journal at `offset`."""
        size, version = self._header.group_header_size, self._header.version
        parsed = parse_group_header(window.view(offset, size), 0, version)
        if parsed is None:
            return None
        crc, header = parsed
        end = offset + size + header.body_size
        if header.journal_id != journal_id or header.offset != offset or end > self._source.size:
            return None
        found, at = 0, offset + group_crc_start(version)
        while at < end:
            piece = window.view(at, min(WINDOW_SIZE_BYTES, end - at))
            if not piece:
                return None
            found = crc32c(piece, found)
            at += len(piece)
        return header if found == crc else None

    def _find_own(self, journal_id: int, start: int) -> int | None:
        """Where the first undamaged group of this journal is, at or after `start`."""
        look = Window(self._source, chunk_size=LOOK_SIZE_BYTES)
        before = self._header.group_header_size - OLD_GROUP_HEADER_SIZE
        for at in find_bytes(self._ahead, _MAGIC, start + before, self._source.size):
            if self._group_at(look, journal_id, at - before) is not None:
                return at - before
        return None

    def _behind(self, group: GroupHeader) -> int:
        return self._header.behind(group.offset + self._header.group_header_size + group.body_size)

    def _show_group(self, group: GroupHeader, state: str) -> bool:
        """False if a record in it cannot be read, although the group's checksum is right."""
        totals = self._totals
        totals.groups += 1
        totals.records += group.record_count
        totals.bytes += group.body_size
        fields = {
            "offset": group.offset,
            "sequence": group.sequence,
            "durable": group.durable_sequence,
            "crc": "ok",
            "records": group.record_count,
            "size": group.body_size,
            "state": state,
        }
        if not (self._options.summary or self._options.payload_kinds):
            self._out.row("group", fields, 1)
        try:
            for offset, ledger_id, entry_id, record in self._records(group):
                self._show_record(offset, ledger_id, entry_id, record)
        except ValueError as error:
            self._out.damage(self._file, group.offset, str(error), 2)
            return False
        return True

    def _records(self, group: GroupHeader) -> Iterator[tuple[int, int, int, memoryview]]:
        """(offset behind the length, ledger id, entry id, record). ValueError."""
        if group.body_size > GROUP_SIZE_MAX:
            raise ValueError(f"a group of {group.body_size} bytes: its records are not read")
        start = group.offset + self._header.group_header_size
        body = self._window.view(start, group.body_size)
        if len(body) < group.body_size:
            raise ValueError("the group is cut short by the end of the file")
        at = start + LENGTH_SIZE
        for ledger_id, entry_id, record in records(body, group.record_count):
            yield at, ledger_id, entry_id, record
            # What is no entry has two ids more in front of it, in journals of the present version.
            passed_over = 0 if entry_id >= 0 or self._header.version == 1 else IDS_SIZE
            at += LENGTH_SIZE + passed_over + len(record)

    def _show_record(self, offset: int, ledger_id: int, entry_id: int, record: memoryview) -> None:
        options = self._options
        if entry_id >= 0:
            self._totals.entries += 1
            if options.summary:
                self._totals.ledgers.add(ledger_id, entry_id, len(record))
            elif options.wants(ledger_id, entry_id):
                self._entries.show(ledger_id, entry_id, record, offset, 2)
            return
        if entry_id not in KIND_NAMES:
            raise ValueError(f"ledger {ledger_id}: a record of kind {entry_id} is not known")
        fields: dict[str, Any] = {
            "offset": offset,
            "ledger": ledger_id,
            "kind": KIND_NAMES[entry_id],
            "size": len(record),
        }
        if entry_id == LEDGER_KEY:
            fields["key"] = master_key_text(special_value(record), options.show_secrets)
        elif entry_id == EXPLICIT_LAC:
            fields["lac"] = lac_packet_text(special_value(record))
        hidden = options.summary or options.payload_kinds or options.entry is not None
        if not hidden and options.ledger in (None, ledger_id):
            self._out.row("special", fields, 2)

    def _show_end(self, offset: int, verdict: str, reason: str) -> None:
        totals = self._totals
        totals.ledgers.show(self._out, 1)
        fields: dict[str, Any] = {
            "offset": offset,
            "sequence": None if self._sequence == UNKNOWN_SEQUENCE else self._sequence,
            "verdict": verdict,
            "groups": totals.groups,
            "records": totals.records,
            "entries": totals.entries,
            "bytes": totals.bytes,
            "not_counted_groups": totals.dropped_groups,
        }
        if self._chain.mark is not None:
            fields["needed"] = self._journal_id >= self._chain.mark.journal_id
        fields["reason"] = reason
        self._out.row("end", fields, 1)


def _is_header(data: memoryview) -> bool:
    try:
        parse_file_header(data)
    except ValueError:
        return False
    return True
