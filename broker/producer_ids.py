"""Producer ids, unique in the cluster: metadata gives them in blocks (ProducerIdManager)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from metadata.store import (
    BadVersionError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
)

if TYPE_CHECKING:
    from metadata.store import MetadataStore

PATH = "/quire/producer-ids"
BLOCK_SIZE = 1000


class ProducerIds:
    """The node holds the first id of the next block, and who took the last one: two brokers never
    put the same bytes, or one whose reply was lost would take the other's block for its own."""

    def __init__(self, store: MetadataStore, owner: str) -> None:
        """`owner`: a name that no other broker, and no other life of this one, has."""
        self._store = store
        self._owner = owner
        self._next = 0
        self._end = 0
        self._refill = trio.Lock()

    async def take(self) -> int:
        """A producer id that nobody else ever gets. MetadataError."""
        if self._next == self._end:
            async with self._refill:
                while self._next == self._end:
                    await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        try:
            node = await self._store.get(PATH)
        except NoNodeError:
            with contextlib.suppress(NodeExistsError, MetadataUnknownOutcomeError):
                await self._store.create(PATH, b"0", make_parents=True)
            return
        start = int(node.data.split()[0])
        taken = f"{start + BLOCK_SIZE} {self._owner}".encode()
        try:
            await self._store.put(PATH, taken, node.version)
        except (BadVersionError, MetadataUnknownOutcomeError):
            return  # another broker took that block; or perhaps we did, and then it is lost
        self._next, self._end = start, start + BLOCK_SIZE
