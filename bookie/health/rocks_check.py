"""A look at a RocksDB database's logs before it is opened.

RocksDB (9.8) checks every record of its write-ahead log and manifest, but one damage is not found:
if the type of a record is turned into that of a reused log file, it takes the record for one of the
file's earlier life and reads the same place again, for ever. Our databases never reuse log files,
so such a type can only be damage, and is refused here, where the open would not come to an end.

The format is LevelDB's: blocks of 32 KiB, with records of a header (crc u32, length u16, type u8,
little-endian) and bytes; what is left of a block that cannot hold a header is zeros.
"""

from __future__ import annotations

import os
import struct

from bookie.errors import CorruptionError

BLOCK_SIZE_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")
#: RecyclableFull, First, Middle, Last; RecyclableUserDefinedTimestampSize.
REUSED_TYPES = frozenset({5, 6, 7, 8, 11})


def check_logs(path: str) -> None:
    """CorruptionError with file and offset. What else is wrong is RocksDB's to find."""
    if not os.path.isdir(path):
        return
    for name in sorted(os.listdir(path)):
        if name.startswith("MANIFEST-") or (name.endswith(".log") and name[:-4].isdigit()):
            _check_log(f"{path}/{name}")


def _check_log(path: str) -> None:
    with open(path, "rb") as file:
        origin = 0
        while block := file.read(BLOCK_SIZE_BYTES):
            at = 0
            while at + _HEADER.size <= len(block):
                crc, length, kind = _HEADER.unpack_from(block, at)
                if kind in REUSED_TYPES:
                    raise CorruptionError(
                        path, origin + at, f"a record of type {kind} in a log that is not reused"
                    )
                if not crc and not length and not kind:
                    break  # the rest was allocated and never written
                at += _HEADER.size + length
            origin += len(block)
