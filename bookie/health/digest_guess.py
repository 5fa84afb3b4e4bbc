"""DigestGuess: checks entries of ledgers whose digest nobody can name.

A bookie is not told how a ledger's entries are sealed, and the metadata may be out of reach, as
when an index is made anew. But the checksums of two types need no password: as soon as an entry of
a ledger matches one of them, all of that ledger's have to. Until one does, nothing is said: the
ledger may be sealed with a MAC, or with nothing.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from wire.bookkeeper.entry import HEADER_SIZE, MAC_SIZE, DigestType, crc32c_matches

if TYPE_CHECKING:
    from collections.abc import Callable

_CRC32 = struct.Struct(">q")
LEDGERS_MAX = 100_000


def crc32_matches(view: memoryview, start: int, size: int) -> bool:
    """As `crc32c_matches`, for DigestType.CRC32."""
    payload_start = start + HEADER_SIZE + MAC_SIZE[DigestType.CRC32]
    if payload_start > start + size:
        return False
    value = zlib.crc32(view[start : start + HEADER_SIZE])
    value = zlib.crc32(view[payload_start : start + size], value)
    return bool(_CRC32.unpack_from(view, start + HEADER_SIZE)[0] == value)


class DigestGuess:
    __slots__ = ("_found", "_is_crc32c")

    def __init__(self, *, is_crc32c: bool = False) -> None:
        """`is_crc32c`: all ledgers have CRC32C digests, there is nothing to guess."""
        self._is_crc32c = is_crc32c
        self._found: dict[int, Callable[[memoryview, int, int], bool]] = {}

    def matches(self, ledger_id: int, view: memoryview, start: int, size: int) -> bool | None:
        """Whether the entry in `view[start : start + size]` has its ledger's digest; None if that
        cannot be told."""
        if self._is_crc32c:
            return crc32c_matches(view, start, size)
        found = self._found.get(ledger_id)
        if found is not None:
            return found(view, start, size)
        for candidate in (crc32c_matches, crc32_matches):
            if candidate(view, start, size):
                if len(self._found) >= LEDGERS_MAX:
                    del self._found[next(iter(self._found))]
                self._found[ledger_id] = candidate
                return True
        return None
