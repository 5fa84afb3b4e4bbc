"""The bytes of an entry log: header, record heads, ledgers map (docs/formats.md, «Entry log»).

They are BookKeeper's (DefaultEntryLogger.java): a header of 1024 bytes, records
`[length i32][entry]`, and at the end, once the log is full, a ledgers map: how many bytes each
ledger has in it. In bytes of the header that BookKeeper leaves zero is our checksum of the map.
"""

from __future__ import annotations

import errno
import struct
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from bookie.errors import CorruptionError
from bookie.journal.journal_format import FILE_HEADER_SIZE, parse_file_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from runtime.disk import File
    from wire.buffers import Buffer

HEADER_SIZE = 1024
MAGIC = b"BKLO"
#: Of a journal that is to be an entry log and has its journal's header still.
ADOPTED_MAGIC = b"QKJL"
VERSION = 1
_HEADER = struct.Struct(">4siqi")  # magic, version, offset of the ledgers map, ledgers in it
#: Tag, CRC32C of the header up to here and of the map. Missing in logs of BookKeeper.
_CHECK = struct.Struct(">4sI")
CHECK_TAG = b"QKMC"
_MAP_START = struct.Struct(">iqqi")  # record length, -1, -2, ledgers in this batch
_MAP_ITEM = struct.Struct(">qq")
RECORD_START = struct.Struct(">iqq")
RECORD_START_SIZE = RECORD_START.size
#: Ids of the records of the ledgers map: not a ledger's, not an entry's.
MAP_LEDGER_ID = -1
MAP_ENTRY_ID = -2
MAP_BATCH_COUNT = 10_000
LENGTH_SIZE = 4
#: Of a log that compaction is writing: it may be referred to, but is not needed yet.
COMPACTING_SUFFIX = ".compacting"


def log_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def log_id_of(name: str) -> int | None:
    """None if it is not the name of an entry log."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix != "log":
        return None
    try:
        log_id = int(stem, 16)
    except ValueError:
        return None
    return log_id if log_name(log_id) == name else None


def pack_header(map_offset: int, ledger_count: int, ledgers_map: bytes = b"") -> bytes:
    """`ledgers_map`: its records, to be checksummed."""
    header = _HEADER.pack(MAGIC, VERSION, map_offset, ledger_count)
    if ledgers_map:
        header += _CHECK.pack(CHECK_TAG, crc32c(ledgers_map, crc32c(header)))
    return header.ljust(HEADER_SIZE, b"\0")


def read_adopted_journal_id(file: File) -> int:
    """Of a journal that is to be an entry log the journal's id; -1 if it is none."""
    try:
        return parse_file_header(file.pread(FILE_HEADER_SIZE, 0)).journal_id
    except ValueError:
        return -1


def pack_ledgers_map(ledgers: dict[int, int]) -> bytes:
    """The records of the map, in batches, as they stand in the log.

    All at once: for tests, which make logs by hand and check by it what `EntryLogs` packs in parts.
    """
    items = sorted(ledgers.items())
    return b"".join(
        pack_map_batch([pack_map_items(items[start : start + MAP_BATCH_COUNT])])
        for start in range(0, len(items), MAP_BATCH_COUNT)
    )


def pack_map_items(items: Iterable[tuple[int, int]]) -> bytes:
    """(ledger id, bytes) each, a part of a batch."""
    return b"".join([_MAP_ITEM.pack(ledger_id, size) for ledger_id, size in items])


def pack_map_batch(parts: Sequence[bytes]) -> bytes:
    """One record of the map: at most MAP_BATCH_COUNT items, ascending over all batches."""
    size = sum(map(len, parts))
    count = size // _MAP_ITEM.size
    length = _MAP_START.size - LENGTH_SIZE + size
    return b"".join([_MAP_START.pack(length, MAP_LEDGER_ID, MAP_ENTRY_ID, count), *parts])


class MapPlace(NamedTuple):
    """Where the header says that a log's map is."""

    offset: int
    ledger_count: int
    #: CRC32C of the header's start, with which that of the map begins, and what it should be at the
    #: end; -1 in logs of BookKeeper.
    check: int
    expected: int


class MapBatch(NamedTuple):
    """One record of the map, in columns."""

    ledger_ids: array[int]
    sizes: array[int]
    #: The record as it stands in the log.
    record: bytes


def read_ledgers_map(file: File) -> dict[int, int] | None:
    """Bytes by ledger id; None if the log has no map (it was not completed). CorruptionError if it
    should have one and it cannot be read, for whatever reason: then nobody may conclude that a
    ledger is not in it. All of it is in memory, some 94 bytes a ledger: for one log at a time."""
    try:
        return _read_map(file)
    except OSError as error:
        raise lost_sector(file, error) from error


def lost_sector(file: File, error: OSError) -> Exception:
    """A sector that is lost is damage of this log, and no reason to end for who serves others."""
    if error.errno != errno.EIO:
        return error
    return CorruptionError(file.path, 0, f"header or map cannot be read: {error}")


def read_map_place(file: File) -> MapPlace | None:
    """None if the log has no map. CorruptionError if that cannot be told. OSError."""
    header = file.pread(HEADER_SIZE, 0)
    if header[:4] == ADOPTED_MAGIC and read_adopted_journal_id(file) >= 0:
        return None
    if len(header) < HEADER_SIZE or header[:4] != MAGIC:
        raise CorruptionError(file.path, 0, "not an entry log: no header")
    _, version, offset, count = _HEADER.unpack_from(header)
    if version != VERSION:
        raise CorruptionError(file.path, 4, f"entry log version {version}, known is {VERSION}")
    if offset == 0:
        return None
    tag, expected = _CHECK.unpack_from(header, _HEADER.size)
    check = crc32c(header[: _HEADER.size])
    return MapPlace(offset, count, check, expected if tag == CHECK_TAG else -1)


def read_map_batches(file: File, place: MapPlace) -> Iterator[MapBatch]:
    """The map's records, one in memory at a time. CorruptionError at the end if it is not what the
    header says: what came before is not to be believed then. OSError."""
    offset, left, check = place.offset, place.ledger_count, place.check
    size = file.size()
    while left > 0 and HEADER_SIZE <= offset <= size - _MAP_START.size:
        start = file.pread(_MAP_START.size, offset)
        length, ledger_id, entry_id, count = _MAP_START.unpack(start)
        items_size = count * _MAP_ITEM.size
        if (ledger_id, entry_id) != (MAP_LEDGER_ID, MAP_ENTRY_ID) or not 0 < count <= left:
            break
        if items_size > size - offset:
            break
        items = file.pread(items_size, offset + _MAP_START.size)
        if len(items) != items_size or length != _MAP_START.size - LENGTH_SIZE + items_size:
            break
        record = start + items
        yield MapBatch(*unpack_map_items(items), record)
        check = crc32c(record, check)
        offset += LENGTH_SIZE + length
        left -= count
    # A map is never empty: no ledgers next to an offset is a header that a crash tore, and
    # believing it would delete what is in the log (bookkeeper PR 4607).
    if left or place.ledger_count <= 0:
        words = f"{place.ledger_count - left} readable ledgers of {place.ledger_count}"
        raise CorruptionError(file.path, offset, f"the ledgers map has {words}")
    if place.expected not in (-1, check):
        raise CorruptionError(
            file.path, place.offset, "the ledgers map does not match its checksum"
        )


def unpack_map_items(items: Buffer) -> tuple[array[int], array[int]]:
    """Ledger ids, and their bytes."""
    both = array("q")
    both.frombytes(items)
    if sys.byteorder == "little":
        both.byteswap()
    return both[0::2], both[1::2]


def map_batch_size(count: int) -> int:
    """Bytes of a record of the map with so many ledgers."""
    return _MAP_START.size + count * _MAP_ITEM.size


def unpack_map_batch(record: Buffer) -> tuple[array[int], array[int]]:
    """Of a whole record of the map, which was checked."""
    return unpack_map_items(memoryview(record)[_MAP_START.size :])


def _read_map(file: File) -> dict[int, int] | None:
    place = read_map_place(file)
    if place is None:
        return None
    ledgers: dict[int, int] = {}
    for batch in read_map_batches(file, place):
        ledgers.update(zip(batch.ledger_ids, batch.sizes, strict=True))
    if len(ledgers) != place.ledger_count:
        words = f"{len(ledgers)} readable ledgers of {place.ledger_count}"
        raise CorruptionError(file.path, place.offset, f"the ledgers map has {words}")
    return ledgers
