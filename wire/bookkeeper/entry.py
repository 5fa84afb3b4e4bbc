"""Entries as BookKeeper stores and sends them: header, MAC, payload (feature 1).

An entry is `ledger id, entry id, LAC, length` (four big-endian i64, 32 bytes), the MAC over those
32 bytes and the payload, then the payload. `length` is the sum of the payload bytes of the ledger
up to and including the entry. The MAC's size and algorithm follow from the ledger's digest type
(DigestManager.java; bytes and vectors in docs/formats.md).

Bookies never check a MAC; readers and compaction do. Nothing here copies a payload.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from wire.checksum import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire.buffers import Buffer, Buffers

HEADER_SIZE = 32
MASTER_KEY_SIZE = 20
LAC_PACKET_HEADER_SIZE = 16
#: The LAC of an entry made when nothing was confirmed yet, and the last entry of an empty ledger.
INVALID_ENTRY_ID = -1

_HEADER = struct.Struct(">qqqq")
_HEADER_CRC32C = struct.Struct(">qqqqI")
_IDS = struct.Struct(">qq")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")

_pack_header = _HEADER.pack
_unpack_header_crc32c = _HEADER_CRC32C.unpack_from


class DigestType(IntEnum):
    """Numbered as in LedgerMetadataFormat.DigestType; HMAC is «MAC» in BookKeeper's API."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


#: Bytes of the MAC in an entry.
MAC_SIZE = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}


class DigestMismatchError(ValueError):
    """An entry's bytes are not those that its writer sealed, or it is another entry's."""


class EntryHeader(NamedTuple):
    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int


def master_key(password: bytes) -> bytes:
    """The 20 bytes that every add and every fencing read carries; also for the empty password."""
    return hashlib.sha1(b"ledger" + password).digest()


def parse_header(entry: Buffer) -> EntryHeader:
    """The first 32 bytes of an entry, not verified. ValueError if there are fewer."""
    if len(entry) < HEADER_SIZE:
        raise ValueError(f"an entry of {len(entry)} bytes is shorter than its header (32 bytes)")
    return EntryHeader._make(_HEADER.unpack_from(entry))


def parse_ids(entry: Buffer) -> tuple[int, int]:
    """(ledger id, entry id) of an entry, not verified. ValueError if it is too short."""
    if len(entry) < HEADER_SIZE:
        raise ValueError(f"an entry of {len(entry)} bytes is shorter than its header (32 bytes)")
    ledger_id, entry_id = _IDS.unpack_from(entry)
    return ledger_id, entry_id


class Digest:
    """Seals and opens the entries of one ledger. Holds no state besides its keys."""

    __slots__ = ("_hmac", "_is_crc32c", "digest_type", "mac_size", "overhead_size")

    def __init__(self, digest_type: DigestType = DigestType.CRC32C, password: bytes = b"") -> None:
        self.digest_type = DigestType(digest_type)
        self.mac_size = MAC_SIZE[self.digest_type]
        #: Bytes before the payload.
        self.overhead_size = HEADER_SIZE + self.mac_size
        self._is_crc32c = self.digest_type is DigestType.CRC32C
        key = hashlib.sha1(b"mac" + password).digest()
        self._hmac = hmac.new(key, digestmod="sha1")

    def seal(
        self,
        ledger_id: int,
        entry_id: int,
        last_add_confirmed: int,
        length: int,
        payload: Buffers,
        payload_size: int,
    ) -> bytes:
        """Header and MAC, to be sent in front of the payload's pieces, which are only read.

        `length` includes this entry's `payload_size` bytes (asserted as far as it can be)."""
        assert length >= payload_size
        header = _pack_header(ledger_id, entry_id, last_add_confirmed, length)
        if self._is_crc32c:
            value = crc32c(header)
            for piece in payload:
                value = crc32c(piece, value)
            return header + value.to_bytes(4, "big")
        return header + self._mac(header, payload)

    def open(self, entry: Buffer, ledger_id: int, entry_id: int) -> memoryview:
        """The payload, a view into `entry`, after checking its MAC and that it is this entry.

        DigestMismatchError names the ledger and the entry that were asked for."""
        view = entry if type(entry) is memoryview else memoryview(entry)
        if len(view) < self.overhead_size:
            raise DigestMismatchError(
                f"ledger {ledger_id} entry {entry_id}: {len(view)} bytes are less than "
                f"header and digest ({self.overhead_size})"
            )
        if self._is_crc32c:
            found_ledger_id, found_entry_id, _, _, stored = _unpack_header_crc32c(view)
            payload = view[36:]
            intact = crc32c(payload, crc32c(view[:32])) == stored
        else:
            found_ledger_id, found_entry_id = _IDS.unpack_from(view)
            payload = view[self.overhead_size :]
            header = view[:HEADER_SIZE]
            intact = self._mac(header, (payload,)) == view[HEADER_SIZE : self.overhead_size]
        if not intact:
            raise DigestMismatchError(
                f"ledger {ledger_id} entry {entry_id}: {self.digest_type.name} digest mismatch "
                f"over {len(view)} bytes"
            )
        if found_entry_id != entry_id or found_ledger_id != ledger_id:
            raise DigestMismatchError(
                f"ledger {ledger_id} entry {entry_id}: the bytes are of ledger "
                f"{found_ledger_id} entry {found_entry_id}"
            )
        return payload

    def open_run(
        self, entries: Sequence[Buffer], ledger_id: int, first_entry_id: int
    ) -> list[memoryview]:
        """Payloads of consecutive entries, each checked as `open` does, for less per entry."""
        if not self._is_crc32c:
            return [
                self.open(entry, ledger_id, entry_id)
                for entry_id, entry in enumerate(entries, first_entry_id)
            ]
        payloads: list[memoryview] = []
        entry_id = first_entry_id
        for entry in entries:
            view = entry if type(entry) is memoryview else memoryview(entry)
            if len(view) < 36:
                self.open(view, ledger_id, entry_id)  # raises, with the words
            found_ledger_id, found_entry_id, _, _, stored = _unpack_header_crc32c(view)
            payload = view[36:]
            if (
                crc32c(payload, crc32c(view[:32])) != stored
                or found_entry_id != entry_id
                or found_ledger_id != ledger_id
            ):
                self.open(view, ledger_id, entry_id)
            payloads.append(payload)
            entry_id += 1
        return payloads

    def seal_lac(self, ledger_id: int, last_add_confirmed: int) -> bytes:
        """The packet of WRITE_LAC and READ_LAC: both ids and the MAC over them."""
        header = _IDS.pack(ledger_id, last_add_confirmed)
        return header + self._mac(header, ())

    def open_lac(self, packet: Buffer, ledger_id: int) -> int:
        """The LAC in a packet of `seal_lac`; DigestMismatchError."""
        view = memoryview(packet)
        header = view[:LAC_PACKET_HEADER_SIZE]
        mac = view[LAC_PACKET_HEADER_SIZE:]
        if len(view) != LAC_PACKET_HEADER_SIZE + self.mac_size or self._mac(header, ()) != mac:
            raise DigestMismatchError(
                f"ledger {ledger_id}: digest mismatch in a LAC packet of {len(view)} bytes"
            )
        found_ledger_id, last_add_confirmed = _IDS.unpack_from(view)
        if found_ledger_id != ledger_id:
            raise DigestMismatchError(
                f"ledger {ledger_id}: the LAC packet is of ledger {found_ledger_id}"
            )
        return int(last_add_confirmed)

    def _mac(self, header: Buffer, payload: Buffers) -> bytes:
        match self.digest_type:
            case DigestType.CRC32C:
                value = crc32c(header)
                for piece in payload:
                    value = crc32c(piece, value)
                return _U32.pack(value)
            case DigestType.CRC32:
                value = zlib.crc32(header)
                for piece in payload:
                    value = zlib.crc32(piece, value)
                return _I64.pack(value)
            case DigestType.HMAC:
                mac = self._hmac.copy()
                mac.update(header)
                for piece in payload:
                    mac.update(piece)
                return mac.digest()
            case DigestType.DUMMY:
                return b""


def crc32c_matches(view: memoryview, start: int, size: int) -> bool:
    """Whether the CRC32C in the entry at `view[start : start + size]` is that of its header and
    payload. For who stores entries without knowing their ledger's digest type."""
    payload_start = start + HEADER_SIZE + 4
    if size < HEADER_SIZE + 4:
        return False
    value = crc32c(view[payload_start : start + size], crc32c(view[start : start + HEADER_SIZE]))
    return bool(int.from_bytes(view[start + HEADER_SIZE : payload_start], "big") == value)


def crc32c_of_verified(view: memoryview, start: int, size: int) -> int:
    """CRC32C over all bytes of the entry at `view[start : start + size]`, of which `crc32c_matches`
    is true: its payload is not read."""
    header_end, payload_start = start + HEADER_SIZE, start + HEADER_SIZE + 4
    # The payload's own is the digest's less the header's; what stands before it is the header and
    # the digest. Both are moved by the payload's size.
    before = crc32c(view[start:payload_start]) ^ crc32c(view[start:header_end])
    digest = int.from_bytes(view[header_end:payload_start], "big")
    return joined(before, digest, size - HEADER_SIZE - 4)
