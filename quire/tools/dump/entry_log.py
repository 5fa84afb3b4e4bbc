"""`quire dump entrylog`: header, ledgers map, and every record with the result of its digest.

A log without a map (it is being written, or a crash came) is scanned in the same way. Where a
record is damaged, the next one is looked for behind it: lengths that cannot be, and a digest that
does not match in front of something that is no record, mean that the chain of lengths is broken.
The next record is then the next place where ids, LAC and length are plausible and the digest
matches.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from bookie.journal.journal_format import (
    GROUP_HEADER_SIZE,
    GROUP_MAGIC,
    KINDS,
    parse_file_header,
    parse_group_header,
)
from bookie.storage.entry_log_format import (
    ADOPTED_MAGIC,
    CHECK_TAG,
    COMPACTING_SUFFIX,
    HEADER_SIZE,
    LENGTH_SIZE,
    MAGIC,
    MAP_ENTRY_ID,
    MAP_LEDGER_ID,
    RECORD_START,
    RECORD_START_SIZE,
    VERSION,
    log_id_of,
)
from quire.tools.dump.entries import EntryDump, LedgerTotals
from quire.tools.dump.files import LOOK_SIZE_BYTES, Window, find_pattern, is_zero
from wire.bookkeeper.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from wire.bookkeeper.entry import crc32c_matches
from wire.bookkeeper.entry import parse_header as parse_entry_header

if TYPE_CHECKING:
    from quire.tools.dump.files import Source
    from quire.tools.dump.options import EntryOptions
    from quire.tools.output import Output, Step

#: BookKeeper's frames have 5 MiB; a length above this is damage.
ENTRY_SIZE_MAX = 64 * 1024 * 1024
_HEADER = struct.Struct(">4siqi")
_CHECK = struct.Struct(">4sI")
_GROUP_MAGIC = GROUP_MAGIC.to_bytes(4, "big")
_MAP_START = struct.Struct(">iqqi")
_MAP_ITEM = struct.Struct(">qq")
_ID_MAX = 1 << 40
#: A record's beginning, as far as a pattern can say: a length from 16 to 2^26, and ledger and
#: entry ids below 2^40. It consumes nothing, so records that begin within others are found too.
_RECORD_PATTERN = re.compile(
    rb"(?=(?!\x00{3}[\x00-\x0f])[\x00-\x04].{3}\x00{3}.{5}\x00{3})", re.DOTALL
)
_PATTERN_SIZE = 15


class EntryLogDump:
    def __init__(
        self, out: Output, options: EntryOptions, source: Source, step: Step | None
    ) -> None:
        self._out = out
        self._options = options
        self._source = source
        self._file = source.path
        self._window = Window(source, step)
        self._ahead = Window(source)
        self._entries = EntryDump(out, options, source.path)
        self._checker = self._entries.checker
        self._map: dict[int, int] | None = None
        #: Of a file that is a journal still.
        self._journal_id = -1
        self._end = source.size
        self._ledgers = LedgerTotals()
        self._entry_count = self._bytes = self._damaged = 0

    def run(self) -> None:
        if not self._show_header():
            return
        ledger = self._options.ledger
        if ledger is not None and self._map is not None and ledger not in self._map:
            words = f"the ledgers map has no ledger {ledger}"
            self._out.row("end", {"offset": self._end, "reason": words}, 1)
            return
        offset, reason = self._scan()
        self._show_end(offset, reason)

    # Header and map.

    def _show_header(self) -> bool:
        name = os.path.basename(self._file)
        header = self._window.view(0, HEADER_SIZE)
        fields: dict[str, Any] = {
            "file": self._file,
            "log": log_id_of(name.removesuffix(COMPACTING_SUFFIX)),
        }
        problem = None
        if len(header) < HEADER_SIZE:
            problem = f"{len(header)} bytes are less than an entry log's header"
            if not header:
                problem = "the file is empty"
        elif header[:4] == ADOPTED_MAGIC:
            with suppress(ValueError):  # then it is shown as far as its records can be followed
                self._journal_id = parse_file_header(header).journal_id
            self._out.row("entrylog", {**fields, "size": self._source.size, "journal": True}, 0)
            return True
        elif header[:4] != MAGIC:
            problem = f"magic {bytes(header[:4])!r} is not an entry log's ({MAGIC!r})"
        if problem is not None:
            self._out.row("entrylog", {**fields, "size": self._source.size}, 0)
            self._out.damage(self._file, 0, problem, 1)
            return False
        _, version, map_offset, map_count = _HEADER.unpack_from(header)
        fields |= {
            "version": version,
            "size": self._source.size,
            "map_offset": map_offset,
            "map_ledgers": map_count,
            "map_has_crc": header[_HEADER.size :][: len(CHECK_TAG)] == CHECK_TAG,
        }
        self._out.row("entrylog", fields, 0)
        if version != VERSION:
            self._out.damage(self._file, 4, f"entry log version {version}, known is {VERSION}", 1)
            return False
        if map_offset:
            self._read_map(header, map_offset, map_count)
        return True

    def _read_map(self, header: memoryview, offset: int, count: int) -> None:
        """Sets the map, and where the records end; neither if the map is damaged."""
        crc = crc32c(header[: _HEADER.size])
        start = offset
        ledgers: dict[int, int] = {}
        window = Window(self._source)
        while len(ledgers) < count:
            batch = self._map_batch(window, offset)
            if batch is None:
                break
            ledgers.update(batch)
            size = _MAP_START.size + len(batch) * _MAP_ITEM.size
            crc = crc32c(window.view(offset, size), crc)
            offset += size
        if len(ledgers) != count or count <= 0:
            words = f"the ledgers map has {len(ledgers)} readable ledgers of {count}"
            self._out.damage(self._file, offset, words, 1)
            return
        tag, expected = _CHECK.unpack_from(header, _HEADER.size)
        if tag == CHECK_TAG and crc != expected:
            words = "the ledgers map does not match its checksum"
            self._out.damage(self._file, start, words, 1)
            return
        self._map = ledgers
        self._end = start
        if not self._options.summary and not self._options.payload_kinds:
            for ledger_id, size in sorted(ledgers.items()):
                if self._options.ledger in (None, ledger_id):
                    self._out.row("mapped", {"ledger": ledger_id, "bytes": size}, 1)

    def _map_batch(self, window: Window, offset: int) -> list[tuple[int, int]] | None:
        """The ledgers of one record of the map; None if there is none at `offset`."""
        if not HEADER_SIZE <= offset <= self._source.size - _MAP_START.size:
            return None
        length, ledger_id, entry_id, count = _MAP_START.unpack(window.view(offset, _MAP_START.size))
        items_size = count * _MAP_ITEM.size
        fits = offset + LENGTH_SIZE + length <= self._source.size
        if (ledger_id, entry_id) != (MAP_LEDGER_ID, MAP_ENTRY_ID) or count <= 0 or not fits:
            return None
        if length != _MAP_START.size - LENGTH_SIZE + items_size or items_size > ENTRY_SIZE_MAX:
            return None
        items = window.view(offset + _MAP_START.size, items_size)
        return list(_MAP_ITEM.iter_unpack(items)) if len(items) == items_size else None

    # Records.

    def _scan(self) -> tuple[int, str]:
        """(where the records end, why)."""
        at = HEADER_SIZE
        end = self._end
        while at < end:
            at = self._take_run(at)
            if at >= end:
                break
            head = self._window.view(at, min(RECORD_START_SIZE, end - at))
            if not any(head) and is_zero(self._ahead, at, end):
                return at, "zeros up to the end"
            problem = self._head_problem(head, at)
            if problem is None:
                length, ledger_id, entry_id = RECORD_START.unpack(head)
                if (ledger_id, entry_id) == (MAP_LEDGER_ID, MAP_ENTRY_ID):
                    batch = self._map_batch(self._ahead, at)
                    if batch is not None:
                        at = self._show_loose_map(at, batch)
                        continue
                    if self._is_of_journal(at, length):
                        at += LENGTH_SIZE + length
                        continue
                    if self._journal_id >= 0:
                        return at, "a journal still, whose groups end here"
                    problem = "a record of the ledgers map that cannot be read"
                else:
                    problem = self._show_record(at, length, ledger_id, entry_id)
                    if problem is None:
                        at += LENGTH_SIZE + length
                        continue
            if self._journal_id >= 0:
                # What is behind the last group is of an earlier life of the file.
                return at, f"a journal still, whose groups end here ({problem})"
            found = self._find_record(at + 1, end)
            if found is None and self._map is None and at + len(head) <= self._source.size:
                remaining = end - at
                return (
                    at,
                    f"{problem}; {remaining} bytes are not a record: cut short by a crash, "
                    "or being written",
                )
            self._damaged += 1
            behind = (
                f"the next record is at {found + LENGTH_SIZE}" if found else "no record follows"
            )
            self._out.damage(self._file, at + LENGTH_SIZE, f"{problem}; {behind}", 1)
            if found is None:
                return at, problem
            at = found
        return at, "the ledgers map follows" if self._map is not None else "the file ends"

    def _is_of_journal(self, at: int, length: int) -> bool:
        """Whether it is what a journal that became an entry log has between its entries: a group's
        header, a record that is no entry, or a filler."""
        content = self._ahead.view(at + RECORD_START_SIZE, min(length, 32) - 16)
        if content[:4] == _GROUP_MAGIC:
            return self._is_of_this_life(at)
        if not any(content):
            return True
        return int.from_bytes(content[8:16], "big", signed=True) in KINDS

    def _is_of_this_life(self, at: int) -> bool:
        """Of a file that is a journal still: whether the group that begins here is that journal's,
        and none that an earlier life of the file has left."""
        group = parse_group_header(self._ahead.view(at, GROUP_HEADER_SIZE))
        if self._journal_id < 0 or group is None:
            return self._journal_id < 0
        return group[1][:2] == (self._journal_id, at)

    def _take_run(self, at: int) -> int:
        """Counts undamaged records as long as nothing of them is to be shown, as fast as it goes;
        returns where the first is that needs a closer look."""
        if not self._options.summary or self._options.digest not in ("auto", "crc32c"):
            return at
        data = self._window.rest(at)
        size = min(len(data), self._end - at)
        unpack, add, wanted = RECORD_START.unpack_from, self._ledgers.add, self._options.ledger
        start = count = taken = 0
        while start + RECORD_START_SIZE <= size:
            length, ledger_id, entry_id = unpack(data, start)
            behind = start + LENGTH_SIZE + length
            if behind > size or ledger_id < 0 or entry_id < 0:
                break
            if length < ENTRY_HEADER_SIZE or not crc32c_matches(data, start + 4, length):
                break
            start = behind
            if wanted is not None and ledger_id != wanted:
                continue
            count += 1
            taken += length + LENGTH_SIZE
            add(ledger_id, entry_id, length + LENGTH_SIZE)
        self._entry_count += count
        self._bytes += taken
        return at + start

    def _head_problem(self, head: memoryview, at: int) -> str | None:
        if len(head) < RECORD_START_SIZE:
            return f"{len(head)} bytes are less than a record's head"
        length, ledger_id, entry_id = RECORD_START.unpack(head)
        if length < RECORD_START_SIZE - LENGTH_SIZE or length > ENTRY_SIZE_MAX:
            return f"a record cannot have {length} bytes"
        if at + LENGTH_SIZE + length > self._end:
            return f"a record of {length} bytes goes beyond the end"
        is_map = (ledger_id, entry_id) == (MAP_LEDGER_ID, MAP_ENTRY_ID)
        if not is_map and (ledger_id < 0 or entry_id < 0):
            return f"a record of ledger {ledger_id} entry {entry_id}"
        return None

    def _show_record(self, at: int, length: int, ledger_id: int, entry_id: int) -> str | None:
        """None if the chain of lengths goes on behind the record, whatever is in it."""
        if not self._options.wants(ledger_id, entry_id):
            return None
        offset = at + LENGTH_SIZE
        entry = self._window.view(offset, length)
        if len(entry) < length:
            return f"a record of {length} bytes is cut short by the end of the file"
        checked = self._checker.check(entry, ledger_id, entry_id)
        bad = checked[0] in ("bad", "short")
        if bad and not self._is_alone(at, offset + length):
            return f"ledger {ledger_id} entry {entry_id}: the digest does not match"
        self._entry_count += 1
        self._bytes += length + LENGTH_SIZE
        self._damaged += bad
        if not self._options.summary:
            self._entries.show(ledger_id, entry_id, entry, offset, 1, checked)
            return None
        self._ledgers.add(ledger_id, entry_id, length + LENGTH_SIZE)
        if bad:
            words = f"ledger {ledger_id} entry {entry_id}: the digest does not match"
            self._out.damage(self._file, offset, words, 1)
        return None

    def _is_alone(self, start: int, end: int) -> bool:
        """Whether only the content of the record from `start` to `end` is damaged, not its length:
        then another follows, and none is in it that a wrong length swallowed."""
        return self._goes_on(end) and self._find_record(start + 1, end) is None

    def _goes_on(self, at: int) -> bool:
        """Whether a record, or the end of them, is at `at`."""
        if at >= self._end:
            return at == self._end
        head = self._ahead.view(at, min(RECORD_START_SIZE, self._end - at))
        if self._head_problem(head, at) is None:
            return True
        return is_zero(self._ahead, at, self._end)

    def _find_record(self, start: int, end: int) -> int | None:
        """Where the next undamaged record begins."""
        look = Window(self._source, chunk_size=LOOK_SIZE_BYTES)
        for at in find_pattern(self._ahead, _RECORD_PATTERN, start, end, _PATTERN_SIZE):
            head = look.view(at, min(RECORD_START_SIZE, self._end - at))
            if self._head_problem(head, at) is not None:
                continue
            length, ledger_id, entry_id = RECORD_START.unpack(head)
            if length < ENTRY_HEADER_SIZE:
                continue
            offset = at + LENGTH_SIZE
            header = parse_entry_header(look.view(offset, ENTRY_HEADER_SIZE))
            plausible = -1 <= header.last_add_confirmed < entry_id and 0 <= header.length < _ID_MAX
            if not plausible or entry_id >= _ID_MAX:
                continue
            if not self._checker.can_tell:
                if self._goes_on(offset + length):
                    return at
                continue
            checked = self._checker.check(look.view(offset, length), ledger_id, entry_id)
            if checked[0] == "ok":
                return at
        return None

    def _show_loose_map(self, at: int, batch: list[tuple[int, int]]) -> int:
        """A map that the header does not point at, for a crash came in between; or one that is
        damaged in another part."""
        fields = {"offset": at, "ledgers": len(batch)}
        self._out.row("map", fields, 1)
        return at + _MAP_START.size + len(batch) * _MAP_ITEM.size

    def _show_end(self, offset: int, reason: str) -> None:
        self._ledgers.show(self._out, 1, self._map)
        fields = {
            "offset": offset,
            "entries": self._entry_count,
            "bytes": self._bytes,
            "damaged": self._damaged,
            "reason": reason,
        }
        self._out.row("end", fields, 1)
