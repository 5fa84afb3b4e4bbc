"""The payload of our ledger entries: 16 bytes of header, then what the kind says.

    offset  size  field
    0       1     format version (1)
    1       1     kind
    2       2     flags
    4       4     record count (BATCHES; 0 otherwise)
    8       8     first offset (BATCHES: of the first record; otherwise the log end offset)

BATCHES holds one or more record batches v2, back to back, as the producer sent them but for base
offset and leader epoch. A batch that is larger than an entry may be spans several BATCHES entries:
all but the last carry FLAG_CONTINUES, all but the first FLAG_CONTINUED; each carries the batch's
first offset and count, so that a reader which lands on any of them knows which records it is in.
INDEX holds the ledger's offset index (broker/log/read/offset_index.py); SNAPSHOT the producer state
(broker/log/append/producer_state.py) followed by nothing; ABORTED rows of the index of aborted
transactions (broker/log/transactions/aborted_index.py). docs/formats.md has the same for readers.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wire.buffers import Buffer

FORMAT_VERSION = 1
HEADER = Struct(">BBHiq")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 16

KIND_BATCHES = 1
KIND_INDEX = 2
KIND_SNAPSHOT = 3
KIND_ABORTED = 4

FLAG_CONTINUES = 0x1
FLAG_CONTINUED = 0x2


class EntryFormatError(ValueError):
    """An entry's payload is not one of ours; names what is wrong."""


class EntryHeader(NamedTuple):
    version: int
    kind: int
    flags: int
    record_count: int
    first_offset: int


def pack_header(kind: int, first_offset: int, record_count: int = 0, flags: int = 0) -> bytes:
    return HEADER.pack(FORMAT_VERSION, kind, flags, record_count, first_offset)


def parse_header(payload: Buffer) -> EntryHeader:
    """EntryFormatError if it is too short or of a version that we do not know."""
    if len(payload) < HEADER_SIZE:
        raise EntryFormatError(f"entry payload of {len(payload)} bytes has no header")
    header = EntryHeader._make(HEADER.unpack_from(payload))
    if header.version != FORMAT_VERSION:
        raise EntryFormatError(f"entry payload of unknown format version {header.version}")
    return header
