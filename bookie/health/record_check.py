"""RecordCheck: whether the bytes of a record are the entry that was stored (BP-31).

For who reads records that nobody asked for: compaction, and the look at logs whose map is lost. A
ledger's digest is asked of the metadata once and remembered, for a bounded number of ledgers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from wire.bookkeeper.entry import DigestMismatchError, DigestType, crc32c_matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookie.known_ledgers import KnownLedgers
    from bookie.storage.log_scan import RecordSlice
    from wire.bookkeeper.entry import Digest

_unpack_ids = struct.Struct(">qq").unpack_from
DIGESTS_MAX = 10_000


class RecordCheck:
    __slots__ = ("_digests", "_is_crc32c", "_known")

    def __init__(self, known: KnownLedgers | None, *, is_crc32c: bool) -> None:
        """`is_crc32c`: all entries are sealed with CRC32C, as `verify_digest_on_write` says."""
        self._known = known
        self._is_crc32c = is_crc32c
        self._digests: dict[int, Digest] = {}

    async def prepare(self, records: RecordSlice, chosen: Sequence[int]) -> None:
        """Learns the digests of the chosen records' ledgers."""
        if self._known is None or self._is_crc32c:
            return
        for ledger_id in {records.keys[i][0] for i in chosen} - self._digests.keys():
            # What cannot be told now is asked again with the next records.
            digest = await self._known.digest(ledger_id)
            if digest is not None:
                if len(self._digests) >= DIGESTS_MAX:
                    del self._digests[next(iter(self._digests))]
                self._digests[ledger_id] = digest

    def can_tell(self, ledger_id: int) -> bool:
        """Whether `problem` knows how this ledger's entries are sealed."""
        return self._is_crc32c or ledger_id in self._digests

    def problem(self, records: RecordSlice, i: int) -> str | None:
        """What is wrong with record `i`; None if it is right, or nobody can tell."""
        start = records.offsets[i] - records.origin
        size = records.sizes[i]
        ledger_id, entry_id = records.keys[i]
        if _unpack_ids(records.data, start) != (ledger_id, entry_id):
            return "the ids are of another entry"
        digest = self._digests.get(ledger_id)
        if self._is_crc32c or (digest is not None and digest.digest_type is DigestType.CRC32C):
            return None if crc32c_matches(records.data, start, size) else "digest mismatch"
        if digest is not None:
            try:
                digest.open(records.data[start : start + size], ledger_id, entry_id)
            except DigestMismatchError as error:
                return str(error)
        return None
