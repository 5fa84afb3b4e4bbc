"""`quire dump checkpoint` (and `lastMark`) and `quire dump cookie`: files of a few bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from bookie.cookie import parse_cookie
from bookie.errors import CorruptionError
from bookie.journal.journal_format import UNKNOWN_SEQUENCE, Position
from bookie.storage.checkpoint import decode_checkpoint
from quire.tools.dump.files import ReadFile

if TYPE_CHECKING:
    from bookie.storage.checkpoint import Checkpoint
    from quire.tools.output import Output

#: A checkpoint has 16 bytes for each ledger of one entry log.
CHECKPOINT_SIZE_MAX = 256 * 1024 * 1024
COOKIE_SIZE_MAX = 1024 * 1024
_LAST_MARK = struct.Struct(">qq")


def read_small(path: str, size_max: int) -> bytes:
    """OSError."""
    with ReadFile(path) as file:
        if file.size > size_max:
            raise OSError(f"{file.size} bytes are too many")
        return file.pread(size_max, 0)


def load_checkpoint(path: str) -> Checkpoint:
    """OSError, CorruptionError."""
    data = read_small(path, CHECKPOINT_SIZE_MAX)
    if not data:
        raise CorruptionError(path, 0, "the file is empty")
    return decode_checkpoint(path, data)


def load_last_mark(path: str) -> Position:
    """OSError, CorruptionError."""
    data = read_small(path, CHECKPOINT_SIZE_MAX)
    if len(data) != _LAST_MARK.size:
        words = f"{len(data)} bytes instead of {_LAST_MARK.size}"
        raise CorruptionError(path, 0, words if data else "the file is empty")
    journal_id, offset = _LAST_MARK.unpack(data)
    return Position(journal_id, offset, UNKNOWN_SEQUENCE)


def show_checkpoint(out: Output, path: str) -> None:
    checkpoint = load_checkpoint(path)
    mark = checkpoint.mark
    fields = {
        "file": path,
        "journal": mark.journal_id,
        "offset": mark.offset,
        "sequence": mark.sequence,
        "log": checkpoint.log_id,
        "log_end": checkpoint.log_end,
        "ledgers": len(checkpoint.ledgers),
        "locations_stamp": checkpoint.index_stamps[0],
        "ledgers_stamp": checkpoint.index_stamps[1],
        "crc": "ok",
    }
    out.row("checkpoint", fields, 0)
    for ledger_id, size in sorted(checkpoint.ledgers.items()):
        out.row("ledger", {"ledger": ledger_id, "bytes": size}, 1)


def show_last_mark(out: Output, path: str) -> None:
    mark = load_last_mark(path)
    out.row("lastMark", {"file": path, "journal": mark.journal_id, "offset": mark.offset}, 0)


def show_cookie(out: Output, path: str) -> None:
    data = read_small(path, COOKIE_SIZE_MAX)
    if not data:
        raise CorruptionError(path, 0, "the file is empty")
    try:
        cookie = parse_cookie(data.decode("utf-8"))
    except ValueError as error:
        raise CorruptionError(path, 0, str(error)) from error
    fields = {
        "file": path,
        "version": 5,
        "bookie_id": cookie.bookie_id,
        "journal_directory": cookie.journal_directory,
        "ledger_directories": list(cookie.ledger_directories),
        "instance_id": cookie.instance_id or None,
    }
    out.row("cookie", fields, 0)
