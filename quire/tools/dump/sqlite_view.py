"""An SQLite file as it is now, without taking a lock or writing anything beside it.

A server keeps its metadata file locked, and SQLite itself, to read a file whose write-ahead log is
there, makes an index of that log next to it. So what is committed in the log is laid over a copy of
the file in memory. If there is no log, the file is opened as it is.

The copy is consistent. Pages of the file only change when a checkpoint copies them out of the log,
and the log is read after the file: whatever such a page was, its newest committed version is in
the log and covers it. A log that was begun anew meanwhile has another salt: then all is read again.
"""

from __future__ import annotations

import sqlite3
import struct
from typing import TYPE_CHECKING
from urllib.parse import quote

from quire.tools.dump.files import SQLITE_MAGIC, ReadFile

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTEMPTS_MAX = 10
#: As much as SQLite takes as a database in memory.
MEMORY_SIZE_MAX = 1024 * 1024 * 1024
WAL_SUFFIX = "-wal"

_WAL_HEADER = struct.Struct(">IIIIIIII")
_WAL_MAGIC = 0x377F0682  # the lowest bit: words of checksums are big-endian
_FRAME_HEADER = struct.Struct(">IIIIII")
#: Where the file says that it needs a write-ahead log: read and write version.
_VERSIONS_OFFSET = 18


def open_view(path: str) -> sqlite3.Connection:
    """A connection that reads. OSError, sqlite3.Error, ValueError if it is no SQLite file."""
    for _ in range(ATTEMPTS_MAX):
        with ReadFile(path) as file:
            size = file.size
            head = file.pread(len(SQLITE_MAGIC), 0)
            if head != SQLITE_MAGIC:
                raise ValueError("the file is empty" if not size else "it is no SQLite file")
            salt = _wal_salt(path)
            if salt is None:
                return sqlite3.connect(f"file:{quote(path)}?immutable=1", uri=True)
            if size > MEMORY_SIZE_MAX:
                raise ValueError(
                    f"{size} bytes and a write-ahead log: stop the server and start it once, then "
                    "the log is part of the file"
                )
            data = bytearray(file.pread(size, 0))
        if _apply_wal(path, data, salt):
            return _deserialized(data)
    raise OSError("it changes too fast to be read")


def _deserialized(data: bytearray) -> sqlite3.Connection:
    data[_VERSIONS_OFFSET : _VERSIONS_OFFSET + 2] = b"\x01\x01"
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(data))
    return connection


def _wal_salt(path: str) -> tuple[int, int] | None:
    """What tells this write-ahead log from the next; None if there is nothing in it."""
    try:
        with ReadFile(path + WAL_SUFFIX) as file:
            header = file.pread(_WAL_HEADER.size, 0)
    except FileNotFoundError:
        return None
    if len(header) < _WAL_HEADER.size:
        return None
    fields = _WAL_HEADER.unpack(header)
    return fields[4], fields[5]


def _apply_wal(path: str, data: bytearray, salt: tuple[int, int]) -> bool:
    """Lays the log's committed pages over `data`; False if it is another log now."""
    try:
        with ReadFile(path + WAL_SUFFIX) as file:
            header = file.pread(_WAL_HEADER.size, 0)
            if len(header) < _WAL_HEADER.size or _WAL_HEADER.unpack(header)[4:6] != salt:
                return False
            page_count = 0
            pages: dict[int, int] = {}
            uncommitted: dict[int, int] = {}
            for number, commit_size, offset in _frames(file, header):
                uncommitted[number] = offset
                if commit_size:
                    pages |= uncommitted
                    uncommitted.clear()
                    page_count = commit_size
            page_size = _WAL_HEADER.unpack(header)[2]
            if page_count * page_size > MEMORY_SIZE_MAX:
                raise ValueError(f"{page_count} pages of {page_size} bytes are too many")
            if page_count:
                _set_size(data, page_count * page_size)
            for number, offset in pages.items():
                if 0 < number <= page_count:
                    start = (number - 1) * page_size
                    data[start : start + page_size] = file.pread(page_size, offset)
    except FileNotFoundError:
        return False
    return _wal_salt(path) == salt


def _set_size(data: bytearray, size: int) -> None:
    if len(data) < size:
        data.extend(bytes(size - len(data)))
    else:
        del data[size:]


def _frames(file: ReadFile, header: bytes) -> Iterator[tuple[int, int, int]]:
    """(page number, pages of the database if it commits else 0, offset of the page) of the frames
    that count: up to the first with another salt or a wrong checksum."""
    magic, _, page_size, _, salt_1, salt_2, *checksum = _WAL_HEADER.unpack(header)
    sizes = range(9, 17)
    if magic & ~1 != _WAL_MAGIC or page_size not in [1 << bits for bits in sizes]:
        raise ValueError("the write-ahead log next to it is damaged")
    order = ">" if magic & 1 else "<"
    state = _checksum(order, header[:24], (0, 0))
    if list(state) != checksum:
        raise ValueError("the write-ahead log next to it is damaged")
    offset = _WAL_HEADER.size
    while True:
        frame = file.pread(_FRAME_HEADER.size + page_size, offset)
        if len(frame) < _FRAME_HEADER.size + page_size:
            return
        number, commit_size, frame_1, frame_2, *found = _FRAME_HEADER.unpack_from(frame)
        if (frame_1, frame_2) != (salt_1, salt_2):
            return
        state = _checksum(order, frame[:8], state)
        state = _checksum(order, frame[_FRAME_HEADER.size :], state)
        if list(state) != found:
            return
        yield number, commit_size, offset + _FRAME_HEADER.size
        offset += len(frame)


def _checksum(order: str, data: bytes, state: tuple[int, int]) -> tuple[int, int]:
    """SQLite's, over pairs of words: fileformat2, «Checksum Algorithm»."""
    first, second = state
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
