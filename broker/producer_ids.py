"""Producer ids, unique in the cluster: metadata gives them in blocks (ProducerIdManager)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from metadata.store import BadVersionError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from metadata.store import MetadataStore

PATH = "/quire/producer-ids"
BLOCK_SIZE = 1000


class ProducerIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
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
            with contextlib.suppress(NodeExistsError):
                await self._store.create(PATH, b"0", make_parents=True)
            return
        start = int(node.data)
        try:
            await self._store.put(PATH, str(start + BLOCK_SIZE).encode(), node.version)
        except BadVersionError:
            return  # another broker took that block
        self._next, self._end = start, start + BLOCK_SIZE
