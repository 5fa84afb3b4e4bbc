"""Files that are only read, a window at a time; and which of them holds which structure.

Nothing is opened for writing, and no file is ever in memory as a whole: a journal or an entry log
has 2 GB. Files of a running server may be read: they grow, are renamed or vanish meanwhile, and
each dump shows a state in which each of its files once was.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Protocol

from bookie.cookie import FILE_NAME as COOKIE_NAME
from bookie.journal.journal_files import SPARE_PREFIX
from bookie.journal.journal_format import FILE_MAGIC as JOURNAL_MAGIC
from bookie.journal.journal_format import journal_id_of
from bookie.storage.checkpoint import CHECKPOINT_NAME, LAST_MARK_NAME
from bookie.storage.checkpoint import MAGIC as CHECKPOINT_MAGIC
from bookie.storage.entry_log_format import COMPACTING_SUFFIX, log_id_of
from bookie.storage.entry_log_format import MAGIC as ENTRY_LOG_MAGIC
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import BinaryIO

    from quire.tools.output import Output, Step

WINDOW_SIZE_BYTES = 1024 * 1024
#: For looking at places that lie far apart.
LOOK_SIZE_BYTES = 16 * 1024
SQLITE_MAGIC = b"SQLite format 3\0"
LEDGER_METADATA_MAGIC = b"BookieMetadataFormatVersion\t"
HEAD_SIZE = 64
STDIN = "-"
_BATCH_MAGIC_OFFSET = 16
_SEGMENT_NAME = re.compile(r"\d{20}\.log")


class Source(Protocol):
    """Bytes by offset. `size` is a bound where the end is not known yet."""

    path: str
    size: int

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; shorter only at the end. OSError."""


class ReadFile:
    """A regular file, as long as it was when it was opened. OSError if it cannot be read."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{path} is not a regular file")

    def pread(self, size: int, offset: int) -> bytes:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        data = os.pread(self._descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> ReadFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Stdin:
    """Standard input. Offsets may only rise: what lies before the last one is forgotten."""

    __slots__ = ("_data", "_start", "_stream", "path", "size")

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self.path = "stdin"
        self.size = sys.maxsize
        self._stream = sys.stdin.buffer if stream is None else stream
        self._start = 0
        self._data = b""

    def pread(self, size: int, offset: int) -> bytes:
        assert offset >= self._start
        while (behind := self._start + len(self._data)) < offset:
            more = self._stream.read(min(offset - behind, WINDOW_SIZE_BYTES))
            if not more:
                return b""
            self._start, self._data = behind, more
        self._data = self._data[offset - self._start :]
        self._start = offset
        parts = [self._data]
        wanted = size - len(self._data)
        while wanted > 0:
            more = self._stream.read(min(wanted, WINDOW_SIZE_BYTES))
            if not more:
                break
            parts.append(more)
            wanted -= len(more)
        self._data = b"".join(parts)
        return self._data[:size]


class Window:
    """Views into a file, read ahead a piece at a time. A view stays valid."""

    __slots__ = ("_buffer", "_chunk_size", "_source", "_start", "_step", "_told")

    def __init__(
        self, source: Source, step: Step | None = None, chunk_size: int = WINDOW_SIZE_BYTES
    ) -> None:
        self._source = source
        self._step = step
        self._chunk_size = chunk_size
        self._start = 0
        self._buffer = memoryview(b"")
        self._told = 0

    def view(self, offset: int, size: int) -> memoryview:
        """Shorter only at the end of the file. The caller bounds `size`."""
        at = offset - self._start
        if at < 0 or at + size > len(self._buffer):
            self._buffer = memoryview(self._source.pread(max(size, self._chunk_size), offset))
            self._start, at = offset, 0
            if self._step is not None and offset > self._told:
                self._step(offset - self._told)
                self._told = offset
        return self._buffer[at : at + size]

    def rest(self, offset: int) -> memoryview:
        """All that is in memory from `offset` on, at least one byte unless the file ends there."""
        self.view(offset, 1)
        return self._buffer[offset - self._start :]


def is_zero(window: Window, start: int, end: int) -> bool:
    """Whether there are only zeros, or nothing at all."""
    zeros = bytes(WINDOW_SIZE_BYTES)
    while start < end:
        piece = window.view(start, min(WINDOW_SIZE_BYTES, end - start))
        if not piece:
            return True
        # As bytes: two views are compared item by item.
        if bytes(piece) != zeros[: len(piece)]:
            return False
        start += len(piece)
    return True


def find_pattern(
    window: Window, pattern: re.Pattern[bytes], start: int, end: int, match_size_max: int
) -> Iterator[int]:
    """Offsets of all matches, also of those that overlap if the pattern looks ahead."""
    at = start
    while at < end:
        piece = window.view(at, min(WINDOW_SIZE_BYTES, end - at))
        # What could go on behind this piece is left for the next one.
        is_last = at + len(piece) >= end or len(piece) < match_size_max
        fresh = len(piece) if is_last else len(piece) - match_size_max + 1
        for match in pattern.finditer(piece):
            if match.start() >= fresh:
                break
            yield at + match.start()
        if is_last:
            return
        at += fresh


def find_bytes(window: Window, wanted: bytes, start: int, end: int) -> Iterator[int]:
    """Offsets of all places where `wanted` is; faster than a pattern."""
    at = start
    while at < end:
        piece = bytes(window.view(at, min(WINDOW_SIZE_BYTES, end - at)))
        found = piece.find(wanted)
        while found >= 0:
            yield at + found
            found = piece.find(wanted, found + 1)
        if len(piece) < len(wanted):
            return
        at += len(piece) - len(wanted) + 1


@dataclass(slots=True, frozen=True)
class Found:
    """A structure: `kind` is the name of its command, or "lastMark"; `path` a file or, for the
    index, a directory."""

    kind: str
    path: str


#: Which kinds a command shows.
KINDS = {
    "journal": ("journal",),
    "entrylog": ("entrylog",),
    "index": ("index",),
    "metadata": ("metadata",),
    "batch": ("batch", "journal", "entrylog"),
    "checkpoint": ("checkpoint", "lastMark"),
    "cookie": ("cookie",),
    "snapshot": ("journal", "entrylog"),
    "all": (
        "cookie",
        "checkpoint",
        "lastMark",
        "journal",
        "entrylog",
        "index",
        "metadata",
        "batch",
    ),
}


def find_structures(paths: Iterable[str], command: str, out: Output) -> list[Found]:
    """What `command` is to dump. A file is taken for what it is asked for, or, by «all», for what
    it looks like; a directory is searched. What is missing is reported."""
    found: list[Found] = []
    for path in paths:
        try:
            if path != STDIN and not os.path.exists(path):
                out.damage(path, None, "there is no such file or directory")
            elif path != STDIN and os.path.isdir(path):
                found += _in_directory(path, command, out)
            else:
                found.append(_as_asked(path, command))
        except (OSError, ValueError) as error:
            out.damage(path, None, error_words(error))
    return found


def _in_directory(path: str, command: str, out: Output) -> list[Found]:
    wanted = KINDS[command]
    found = [each for each in _walk(path, out) if each.kind in wanted]
    if not found:
        what = "nothing to dump" if command == "all" else f"nothing that `dump {command}` shows"
        out.damage(path, None, f"there is {what} in this directory")
    return found


def _as_asked(path: str, command: str) -> Found:
    if command == "all":
        kind = kind_of(path) if path != STDIN else "batch"
        if kind is None:
            raise ValueError("it is none of the structures that are known")
        return Found(kind, path)
    if command == "checkpoint" and os.path.basename(path) == LAST_MARK_NAME:
        return Found("lastMark", path)
    return Found(command, path)


def _walk(top: str, out: Output) -> Iterator[Found]:
    def failed(error: OSError) -> None:
        out.damage(str(error.filename), None, error_words(error))

    for directory, folders, names in os.walk(top, onerror=failed):
        folders.sort()
        if is_rocksdb(names):
            folders.clear()
            yield Found("index", directory)
            continue
        for name in sorted(names, key=_in_order):
            path = os.path.join(directory, name)
            try:
                kind = kind_of(path)
            except OSError as error:
                if os.path.exists(path):
                    failed(error)
                continue
            if kind is not None:
                yield Found(kind, path)


def _in_order(name: str) -> tuple[int, str]:
    """Journals and logs by number, which is written in hex without leading zeros."""
    for number in (journal_id_of(name), log_id_of(name.removesuffix(COMPACTING_SUFFIX))):
        if number is not None:
            return number, name
    return -1, name


def is_rocksdb(names: Iterable[str]) -> bool:
    names = set(names)
    return "CURRENT" in names and any(name.startswith("MANIFEST-") for name in names)


def kind_of(path: str) -> str | None:
    """By the first bytes, or else by the name. OSError."""
    with ReadFile(path) as file:
        head = file.pread(HEAD_SIZE, 0)
    name = os.path.basename(path)
    by_magic = {
        JOURNAL_MAGIC: "journal",
        ENTRY_LOG_MAGIC: "entrylog",
        CHECKPOINT_MAGIC: "checkpoint",
    }
    if head[:4] in by_magic:
        return by_magic[head[:4]]
    if head.startswith((SQLITE_MAGIC, LEDGER_METADATA_MAGIC)):
        return "metadata"
    return _kind_by_name(name, head)


def _kind_by_name(name: str, head: bytes) -> str | None:
    if journal_id_of(name) is not None or name.startswith(SPARE_PREFIX):
        return "journal"
    if log_id_of(name.removesuffix(COMPACTING_SUFFIX)) is not None:
        return "entrylog"
    if _SEGMENT_NAME.fullmatch(name) and (not head or head[_BATCH_MAGIC_OFFSET:][:1] <= b"\x02"):
        return "batch"
    by_name = {
        CHECKPOINT_NAME: "checkpoint",
        LAST_MARK_NAME: "lastMark",
        COOKIE_NAME: "cookie",
        "metadata.db": "metadata",
    }
    return by_name.get(name)


def error_words(error: Exception) -> str:
    """Without the path, which the caller knows."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
