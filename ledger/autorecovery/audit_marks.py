"""AuditMarks: marks that auditors alone wrote.

An auditor marks a ledger for what it saw: a bookie was not registered, or lacked entries. Whoever
repairs the ledger looks for the same himself, so such a mark of an open ledger may be taken back
when nothing is missing any more (ledger/autorecovery/open_end.py). Another one may not. A writer
that goes on without a bookie marks the ledger for it once: if its mark went, entries that are
confirmed later would have a copy less, and nobody would say so while the ledger is open. When it
writes to the bookie again it leaves its own mark to the auditors, as one of theirs
(ledger/writer_marks.py).

So the mark tells who made it, by a comment behind BookKeeper's text. Java's parser skips it, and
ours does. Whoever else changes the mark (ledger/underreplication.py, Java's) writes the text anew
without it; then the mark stays until the ledger is closed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ledger.writer_marks import AUDITOR, WRITER
from metadata.store import (
    BadVersionError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
)
from wire.bookkeeper.records import (
    UnderreplicatedLedger,
    encode_underreplicated,
    parse_underreplicated,
    underreplicated_path,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.bookie_client import BookieId
    from ledger.underreplication import UnderReplication
    from metadata.store import MetadataStore


class AuditMarks:
    """Questions and changes; keeps nothing. Errors as `records` raises them."""

    def __init__(self, store: MetadataStore, records: UnderReplication, root: str) -> None:
        self._store = store
        self._records = records
        self._base = f"{root}/underreplication/ledgers"

    def _path(self, ledger_id: int) -> str:
        return f"{self._base}/{underreplicated_path(ledger_id)}"

    async def mark(self, ledger_id: int, missing: Collection[BookieId], time_ms: int) -> bool:
        """As `UnderReplication.mark` without `again`, by an auditor."""
        path = self._path(ledger_id)
        with suppress(NodeExistsError, NoNodeError, MetadataUnknownOutcomeError):
            await self._store.create(path, _encode(sorted(missing), time_ms), make_parents=True)
            return True
        (node,) = await self._store.get_many([path])
        if node is not None and node.data.endswith((AUDITOR, WRITER)):
            known = parse_underreplicated(node.data).replicas
            more = sorted(set(missing).difference(known))
            if not more:
                return False
            # A writer's stays one.
            comment = WRITER if node.data.endswith(WRITER) else AUDITOR
            with suppress(BadVersionError, NoNodeError, MetadataUnknownOutcomeError):
                data = _encode([*known, *more], time_ms, comment)
                await self._store.put(path, data, node.version)
                return True
        return await self._records.mark(ledger_id, missing, time_ms)

    async def is_only_audits(self, ledger_id: int, version: int) -> bool:
        """Whether the mark with that version is there, and nobody but auditors wrote to it."""
        (node,) = await self._store.get_many([self._path(ledger_id)])
        return node is not None and node.version == version and node.data.endswith(AUDITOR)


def _encode(bookies: Collection[BookieId], time_ms: int, comment: bytes = AUDITOR) -> bytes:
    return encode_underreplicated(UnderreplicatedLedger(tuple(bookies), time_ms)) + comment
