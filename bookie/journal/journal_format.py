"""The journal's bytes (docs/formats.md, «Journal»): shared by the writer and the replay.

A file is a header block and then groups, each starting at a multiple of the file's alignment. A
group is what one write of the journal held: a header with a checksum over all of it, and records
`[length i32][ledger id i64][entry id i64]...`, which for entries are exactly those of the entry
log.

A journal may become an entry log (bookie/storage/adopted.py), so all of it behind the first 1024
bytes is a chain of records: what is no entry has the ids (-1, -2), which every reader of entry logs
passes over, Apache BookKeeper's too. Such are the headers of groups, what fills up to the next
multiple of the alignment, and records that are no entries; these have their kind, an id below -1,
behind the two ids. Journals of version 1, which had none of that, are read too.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from wire.checksum import joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wire.buffers import Buffer

FILE_MAGIC = b"QKJL"
FILE_VERSION = 2
OLD_FILE_VERSION = 1
#: magic, version, journal id, alignment, file size; then the CRC32C of those.
_FILE_HEADER = struct.Struct(">4sIqIq")
_CRC = struct.Struct(">I")
FILE_HEADER_SIZE = _FILE_HEADER.size + _CRC.size

GROUP_MAGIC = 0x514A4752  # "QJGR"
_GROUP_START = struct.Struct(">II")  # magic, CRC32C of all that follows
_GROUP_REST = struct.Struct(">qqqqII")
#: Without what makes a record of it: all of it in version 1.
OLD_GROUP_HEADER_SIZE = _GROUP_START.size + _GROUP_REST.size

#: Groups are numbered from 1.
UNKNOWN_SEQUENCE = -1

#: Records that are no entries. The first four as in BookKeeper's journal.
LEDGER_KEY = -0x1000
LEDGER_FENCED = -0x2000
FORCE = -0x4000
EXPLICIT_LAC = -0x8000
LEDGER_DELETED = -0x10000
KINDS = (LEDGER_KEY, LEDGER_FENCED, FORCE, EXPLICIT_LAC, LEDGER_DELETED)
#: The ledger of records that are of none.
NO_LEDGER = -1

_RECORD_START = struct.Struct(">iqq")
_VALUE_SIZE = struct.Struct(">i")
_IDS = struct.Struct(">qq")
RECORD_START_SIZE = _RECORD_START.size
GROUP_HEADER_SIZE = RECORD_START_SIZE + OLD_GROUP_HEADER_SIZE
#: The ids of a record that readers of entry logs pass over, as those of a ledgers map.
PASSED_OVER = (-1, -2)
_GROUP_RECORD_START = _RECORD_START.pack(GROUP_HEADER_SIZE - 4, *PASSED_OVER)
#: An entry log's header takes so much of a file that becomes one.
LOG_HEADER_SIZE = 1024
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


def first_group_offset(alignment: int, version: int = FILE_VERSION) -> int:
    """Where the header block ends."""
    if version == OLD_FILE_VERSION:
        return alignment
    return align(LOG_HEADER_SIZE + RECORD_START_SIZE, alignment)


def group_header_size(version: int) -> int:
    return OLD_GROUP_HEADER_SIZE if version == OLD_FILE_VERSION else GROUP_HEADER_SIZE


def filler(size: int) -> bytes:
    """A record of so many bytes, at least RECORD_START_SIZE, that holds nothing."""
    assert size >= RECORD_START_SIZE
    return _RECORD_START.pack(size - 4, *PASSED_OVER).ljust(size, b"\0")


def padding_size(size: int, alignment: int) -> int:
    """What is between the end of a group of so many bytes and the next one: none, or a filler."""
    padding = align(size, alignment) - size
    return padding if not 0 < padding < RECORD_START_SIZE else padding + alignment


def group_space_max(body_size: int, alignment: int) -> int:
    """What a group with a body of so many bytes takes of the file, at most."""
    size = GROUP_HEADER_SIZE + body_size
    return size + padding_size(size, alignment) + alignment


class FileHeader(NamedTuple):
    journal_id: int
    alignment: int
    #: Of the whole file.
    size: int
    version: int = FILE_VERSION

    @property
    def first_group_offset(self) -> int:
        return first_group_offset(self.alignment, self.version)

    @property
    def group_header_size(self) -> int:
        return group_header_size(self.version)

    def behind(self, end: int) -> int:
        """Where the group behind one that ends at `end` starts."""
        if self.version == OLD_FILE_VERSION:
            return align(end, self.alignment)
        return end + padding_size(end, self.alignment)


def pack_file_header(journal_id: int, alignment: int, size: int) -> bytes:
    """The header block."""
    assert FILE_HEADER_SIZE <= alignment <= size
    header = _FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, journal_id, alignment, size)
    header = (header + _CRC.pack(crc32c(header))).ljust(LOG_HEADER_SIZE, b"\0")
    return header + filler(first_group_offset(alignment) - LOG_HEADER_SIZE)


def parse_file_header(data: Buffer) -> FileHeader:
    """ValueError says what is wrong."""
    if len(data) < FILE_HEADER_SIZE:
        raise ValueError(f"{len(data)} bytes are less than a journal's header")
    magic, version, journal_id, alignment, size = _FILE_HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FILE_HEADER.size)
    if magic != FILE_MAGIC:
        raise ValueError(f"magic {magic!r} is not a journal's ({FILE_MAGIC!r})")
    if crc != crc32c(memoryview(data)[: _FILE_HEADER.size]):
        raise ValueError("the header's checksum does not match")
    if version not in (OLD_FILE_VERSION, FILE_VERSION):
        raise ValueError(f"journal version {version}, known is {FILE_VERSION}")
    return FileHeader(journal_id, alignment, size, version)


def pack_group_header(
    header: GroupHeader, body: Sequence[Buffer], known: Mapping[int, int] | None = None
) -> bytes:
    """`known`: the CRC32C of pieces of the body, by their index; others are read for it."""
    assert header.durable_sequence < header.sequence
    assert header.record_count <= header.body_size
    rest = _GROUP_REST.pack(*header)
    crc = crc32c(rest)
    for index, piece in enumerate(body):
        if known and index in known:
            crc = joined(crc, known[index], len(piece))
        else:
            crc = crc32c(piece, crc)
    return _GROUP_RECORD_START + _GROUP_START.pack(GROUP_MAGIC, crc) + rest


def parse_group_header(
    data: Buffer, at: int = 0, version: int = FILE_VERSION
) -> tuple[int, GroupHeader] | None:
    """(CRC32C, header), the checksum not yet compared; None if no group starts here."""
    start = at + group_header_size(version) - OLD_GROUP_HEADER_SIZE
    if len(data) - start < OLD_GROUP_HEADER_SIZE:
        return None
    magic, crc = _GROUP_START.unpack_from(data, start)
    # The checksum is not of what makes a record of the header.
    if magic != GROUP_MAGIC or bytes(data[at:start]) != _GROUP_RECORD_START[: start - at]:
        return None
    return crc, GroupHeader(*_GROUP_REST.unpack_from(data, start + _GROUP_START.size))


def group_crc_start(version: int) -> int:
    """Where in a group the bytes begin that its checksum is of."""
    return group_header_size(version) - _GROUP_REST.size


def group_matches(data: Buffer, crc: int, body_size: int, version: int = FILE_VERSION) -> bool:
    """Whether `data`, which starts with a group's header, is the whole group, undamaged."""
    size = group_header_size(version) + body_size
    return len(data) >= size and crc32c(memoryview(data)[group_crc_start(version) : size]) == crc


def special_record(ledger_id: int, kind: int, value: bytes = b"") -> bytes:
    """A record that is no entry, with its length in front. Those with a value have its size."""
    content = _IDS.pack(ledger_id, kind)
    if kind in (LEDGER_KEY, EXPLICIT_LAC):
        content += _VALUE_SIZE.pack(len(value)) + value
    else:
        assert not value
    return _RECORD_START.pack(16 + len(content), *PASSED_OVER) + content


def special_value(record: Buffer) -> bytes:
    """The value of a record of kind LEDGER_KEY or EXPLICIT_LAC, as `records` gives it.
    ValueError."""
    if len(record) < 20:
        raise ValueError(f"a record of {len(record)} bytes has no value")
    size = int.from_bytes(record[16:20], "big")
    if len(record) != 20 + size:
        raise ValueError(f"a record of {len(record)} bytes, its value of {size}")
    return bytes(record[20:])


def records(body: memoryview, count: int) -> Iterator[tuple[int, int, memoryview]]:
    """(ledger id, entry id or kind, record from these ids on) of a group's body. ValueError."""
    at = 0
    found = 0
    while at < len(body):
        if len(body) - at < RECORD_START_SIZE:
            raise ValueError(f"{len(body) - at} bytes after the last record")
        length, ledger_id, entry_id = _RECORD_START.unpack_from(body, at)
        start = at + 4
        end = start + length
        if length < RECORD_LENGTH_MIN or end > len(body):
            raise ValueError(f"a record of {length} bytes at {at} of {len(body)}")
        if (ledger_id, entry_id) == PASSED_OVER:
            start += _IDS.size
            if end - start < _IDS.size:
                raise ValueError(f"a record of {length} bytes at {at} has no kind")
            ledger_id, entry_id = _IDS.unpack_from(body, start)
        yield ledger_id, entry_id, body[start:end]
        at = end
        found += 1
    if found != count:
        raise ValueError(f"{found} records where the header says {count}")
