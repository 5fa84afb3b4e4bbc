"""WriterMarks: what the writer of an open ledger says of its missing copies, and takes back.

A mark tells who made it, by a comment behind BookKeeper's text, which Java's parser skips and ours
does:

    # auditor    auditors alone; a worker takes it back when no copy is missing
    # writer     the ledger's writer, and maybe auditors before; it goes on without a bookie
    (none)       somebody else as well: it stays until the ledger is closed

A writer says once that it goes on without a bookie. While that lasts nobody may take its mark back:
what it confirms later would have a copy less, and no mark. Once all bookies of the ensemble are
sent all entries again, and the next one that lacks an entry will be told anew, the mark speaks of
the past only. Then the writer makes it an auditor's, if nobody else has written to it, and a worker
judges by the copies (ledger/autorecovery/open_end.py). What the writer tells afterwards makes
another version of it, with which the worker's deletion fails, or another mark.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from metadata.store import (
    BadVersionError,
    MetadataError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
)
from wire.bookkeeper.ledger_metadata import MetadataFormatError
from wire.bookkeeper.records import (
    UnderreplicatedLedger,
    encode_underreplicated,
    parse_underreplicated,
    underreplicated_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ledger.bookie_client import BookieId
    from metadata.store import MetadataStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

AUDITOR, WRITER = b"# auditor\n", b"# writer\n"


class WriterMarks:
    """Changes; keeps nothing. Each returns False, and logs, if the metadata fail it."""

    def __init__(self, store: MetadataStore, env: Env, root: str) -> None:
        self._store = store
        self._env = env
        self._base = f"{root}/underreplication/ledgers"

    async def mark(self, ledger_id: int, missing: Collection[BookieId]) -> bool:
        """Says that the ledger goes on without these. The mark gets a new version also if it names
        them: a worker that has looked already is to look once more."""
        try:
            await self._mark(ledger_id, missing)
        except (MetadataError, MetadataFormatError) as error:
            logger.warning("ledger=%d not marked as under-replicated: %s", ledger_id, error)
            return False
        return True

    async def _mark(self, ledger_id: int, missing: Collection[BookieId]) -> None:
        path = self._path(ledger_id)
        now_ms = self._env.clock.time_ms()
        while True:
            with suppress(NodeExistsError, NoNodeError, MetadataUnknownOutcomeError):
                marked = UnderreplicatedLedger(tuple(sorted(missing)), now_ms)
                data = encode_underreplicated(marked) + WRITER
                await self._store.create(path, data, make_parents=True)
                return
            (node,) = await self._store.get_many([path])
            if node is None:
                continue
            marked = parse_underreplicated(node.data)
            more = sorted(set(missing).difference(marked.replicas))
            since_ms = now_ms if more else marked.ctime_ms
            marked = UnderreplicatedLedger((*marked.replicas, *more), since_ms)
            comment = WRITER if node.data.endswith((AUDITOR, WRITER)) else b""
            with suppress(BadVersionError, NoNodeError, MetadataUnknownOutcomeError):
                await self._store.put(path, encode_underreplicated(marked) + comment, node.version)
                return

    async def leave_to_auditors(self, ledger_id: int, may: Callable[[], bool]) -> bool:
        """Makes the writer's mark an auditor's, if nobody else has written to it, and `may()`. That
        is asked when the mark was read: one that is made after the answer has another version."""
        path = self._path(ledger_id)
        try:
            while True:
                (node,) = await self._store.get_many([path])
                if node is None or not node.data.endswith(WRITER) or not may():
                    return True
                data = encode_underreplicated(parse_underreplicated(node.data)) + AUDITOR
                with suppress(BadVersionError, NoNodeError, MetadataUnknownOutcomeError):
                    await self._store.put(path, data, node.version)
                    return True
        except (MetadataError, MetadataFormatError) as error:
            logger.warning("ledger=%d: its mark is not left to auditors: %s", ledger_id, error)
            return False

    def _path(self, ledger_id: int) -> str:
        return f"{self._base}/{underreplicated_path(ledger_id)}"
