"""The journal's bytes (docs/formats.md, «Journal»): shared by the writer and the replay.

A file is a header block and then groups, each starting at a multiple of the file's alignment. A
group is what one write of the journal held: a header with a checksum over all of it, and records
`[length i32][ledger id i64][entry id i64]...`, which for entries are exactly those of the entry
log. Entry ids below -1 mark records that are no entries.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wire.buffers import Buffer

FILE_MAGIC = b"QKJL"
FILE_VERSION = 1
#: magic, version, journal id, alignment, file size; then the CRC32C of those.
_FILE_HEADER = struct.Struct(">4sIqIq")
_CRC = struct.Struct(">I")
FILE_HEADER_SIZE = _FILE_HEADER.size + _CRC.size

GROUP_MAGIC = 0x514A4752  # "QJGR"
_GROUP_START = struct.Struct(">II")  # magic, CRC32C of all that follows
_GROUP_REST = struct.Struct(">qqqqII")
GROUP_HEADER_SIZE = _GROUP_START.size + _GROUP_REST.size

#: Groups are numbered from 1.
UNKNOWN_SEQUENCE = -1

#: Records that are no entries. The first four as in BookKeeper's journal.
LEDGER_KEY = -0x1000
LEDGER_FENCED = -0x2000
FORCE = -0x4000
EXPLICIT_LAC = -0x8000
LEDGER_DELETED = -0x10000
#: The ledger of records that are of none.
NO_LEDGER = -1

_RECORD_START = struct.Struct(">iqq")
_SPECIAL = struct.Struct(">iqqi")
RECORD_START_SIZE = _RECORD_START.size
#: What is counted into `length` of the shortest record: both ids.
RECORD_LENGTH_MIN = 16


class Position(NamedTuple):
    """A place in the journal: everything before it is a prefix of what was journaled."""

    journal_id: int
    offset: int
    #: Of the last group before it: 0 if there is none, UNKNOWN_SEQUENCE if it is not known.
    sequence: int


class GroupHeader(NamedTuple):
    journal_id: int
    offset: int
    sequence: int
    #: The highest sequence that was durable when this group was written.
    durable_sequence: int
    body_size: int
    record_count: int


def file_name(journal_id: int) -> str:
    return f"{journal_id:x}.txn"


def journal_id_of(name: str) -> int | None:
    """None if it is not the name of a journal."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "txn":
        return None
    try:
        journal_id = int(stem, 16)
    except ValueError:
        return None
    return journal_id if file_name(journal_id) == name else None


def align(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) & -alignment


def pack_file_header(journal_id: int, alignment: int, size: int) -> bytes:
    """The header, padded to a whole block."""
    assert FILE_HEADER_SIZE <= alignment <= size
    header = _FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, journal_id, alignment, size)
    return (header + _CRC.pack(crc32c(header))).ljust(alignment, b"\0")


def parse_file_header(data: Buffer) -> tuple[int, int, int]:
    """(journal id, alignment, file size). ValueError says what is wrong."""
    if len(data) < FILE_HEADER_SIZE:
        raise ValueError(f"{len(data)} bytes are less than a journal's header")
    magic, version, journal_id, alignment, size = _FILE_HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FILE_HEADER.size)
    if magic != FILE_MAGIC:
        raise ValueError(f"magic {magic!r} is not a journal's ({FILE_MAGIC!r})")
    if crc != crc32c(memoryview(data)[: _FILE_HEADER.size]):
        raise ValueError("the header's checksum does not match")
    if version != FILE_VERSION:
        raise ValueError(f"journal version {version}, known is {FILE_VERSION}")
    return journal_id, alignment, size


def pack_group_header(header: GroupHeader, body: Sequence[Buffer]) -> bytes:
    assert header.durable_sequence < header.sequence
    assert header.record_count <= header.body_size
    rest = _GROUP_REST.pack(*header)
    crc = crc32c(rest)
    for piece in body:
        crc = crc32c(piece, crc)
    return _GROUP_START.pack(GROUP_MAGIC, crc) + rest


def parse_group_header(data: Buffer, at: int = 0) -> tuple[int, GroupHeader] | None:
    """(CRC32C, header), the checksum not yet compared; None if no group starts here."""
    if len(data) - at < GROUP_HEADER_SIZE:
        return None
    magic, crc = _GROUP_START.unpack_from(data, at)
    if magic != GROUP_MAGIC:
        return None
    return crc, GroupHeader(*_GROUP_REST.unpack_from(data, at + _GROUP_START.size))


def group_matches(data: Buffer, crc: int, body_size: int) -> bool:
    """Whether `data`, which starts with a group's header, is the whole group, undamaged."""
    size = GROUP_HEADER_SIZE + body_size
    return len(data) >= size and crc32c(memoryview(data)[_GROUP_START.size : size]) == crc


def special_record(ledger_id: int, kind: int, value: bytes = b"") -> bytes:
    """A record that is no entry, with its length in front. Those with a value have its size."""
    if kind in (LEDGER_KEY, EXPLICIT_LAC):
        return _SPECIAL.pack(20 + len(value), ledger_id, kind, len(value)) + value
    assert not value
    return _RECORD_START.pack(16, ledger_id, kind)


def special_value(record: Buffer) -> bytes:
    """The value of a record (without its length) of kind LEDGER_KEY or EXPLICIT_LAC. ValueError."""
    if len(record) < 20:
        raise ValueError(f"a record of {len(record)} bytes has no value")
    size = int.from_bytes(record[16:20], "big")
    if len(record) != 20 + size:
        raise ValueError(f"a record of {len(record)} bytes, its value of {size}")
    return bytes(record[20:])


def records(body: memoryview, count: int) -> Iterator[tuple[int, int, memoryview]]:
    """(ledger id, entry id, record without its length) of a group's body. ValueError."""
    at = 0
    found = 0
    while at < len(body):
        if len(body) - at < RECORD_START_SIZE:
            raise ValueError(f"{len(body) - at} bytes after the last record")
        length, ledger_id, entry_id = _RECORD_START.unpack_from(body, at)
        end = at + 4 + length
        if length < RECORD_LENGTH_MIN or end > len(body):
            raise ValueError(f"a record of {length} bytes at {at} of {len(body)}")
        yield ledger_id, entry_id, body[at + 4 : end]
        at = end
        found += 1
    if found != count:
        raise ValueError(f"{found} records where the header says {count}")
