"""One entry by its offset, as the index has it; and files with the bytes of one payload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.errors import CorruptionError
from quire.tools.dump.entries import EntryDump, show_offset_index, show_snapshot
from wire.bookkeeper.entry import parse_ids

if TYPE_CHECKING:
    from quire.tools.dump.files import ReadFile
    from quire.tools.dump.options import EntryOptions
    from quire.tools.output import Output

ENTRY_SIZE_MAX = 64 * 1024 * 1024
LENGTH_SIZE = 4
_INDEX_MAGIC = b"QIX1"
_SNAPSHOT_START = b"\x00\x01"


def show_at_offset(
    out: Output, options: EntryOptions, file: ReadFile, kind: str | None, at: int | None
) -> None:
    """The entry at `at` of an entry log or a journal; of another file the snapshot, the offset
    index or the payload that it holds. CorruptionError, OSError."""
    if kind not in ("journal", "entrylog"):
        _show_bare(out, options, file, at or 0)
        return
    assert at is not None
    length = int.from_bytes(file.pread(LENGTH_SIZE, max(at - LENGTH_SIZE, 0)), "big", signed=True)
    entry = b""
    if at >= LENGTH_SIZE and 0 < length <= min(ENTRY_SIZE_MAX, file.size - at):
        entry = file.pread(length, at)
    try:
        ledger_id, entry_id = parse_ids(entry)
        if ledger_id < 0 or entry_id < 0:
            raise ValueError(f"ledger {ledger_id} entry {entry_id}")
    except ValueError:
        raise CorruptionError(
            file.path, at, "there is no entry here; an offset is that behind the entry's length"
        ) from None
    out.row(kind, {"file": file.path, "size": file.size}, 0)
    EntryDump(out, options, file.path).show(ledger_id, entry_id, memoryview(entry), at, 1)


def _show_bare(out: Output, options: EntryOptions, file: ReadFile, at: int) -> None:
    if file.size - at > ENTRY_SIZE_MAX:
        raise OSError(f"{file.size - at} bytes are too many for one snapshot or index")
    data = memoryview(file.pread(ENTRY_SIZE_MAX, at))
    if not data:
        raise CorruptionError(file.path, at, "the file is empty" if not at else "the file ends")
    out.row("payload", {"file": file.path, "size": len(data)}, 0)
    if data[:4] == _INDEX_MAGIC:
        show_offset_index(out, data, file.path, at, 1)
    elif data[:2] == _SNAPSHOT_START:
        show_snapshot(out, data, file.path, at, 1)
    else:
        dump = EntryDump(out, options, file.path)
        if not dump.show_payload(0, 0, data, at, 1):
            raise CorruptionError(file.path, at, "neither a snapshot nor an offset index")
