"""A folder of nodes in metadata that other brokers change, followed by watches.

Tells which nodes may have changed: made, put, deleted, or anything after a session was lost. What
changes while somebody looks is told in one go afterwards, so a burst of changes costs a few reads,
and nothing queues up. No polling.

A read of metadata may be older than memory, because memory may learn of a change while the read is
under way. `touch` notes such a change, and `read` leaves the node out and marks it for another
look. Comparing what memory had before and after the read would miss a node that was made and
deleted meanwhile.

A node that this process makes may be deleted before its watch was set. Memory then holds a node
that metadata no longer lists, so each look at the folder marks those, too. Without this a deleted
topic would stay visible until the next restart.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from metadata.store import MetadataError, NoNodeError
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from metadata.store import MetadataStore, Node

logger = logging.getLogger(__name__)

#: While metadata is away, a look is tried again this often.
RETRY_SECONDS = 1.0
#: Nodes that are told at once.
LOOK_COUNT_MAX = 500


class WatchedFolder:
    """Owner of the watches; one task for each node, asleep until it changes."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self._path = path
        self._scopes: dict[str, trio.CancelScope] = {}
        self._dirty: dict[str, None] = {}
        self._is_dirty = trio.Event()
        #: For each read that is under way, what was touched since it began.
        self._reads: dict[object, set[str]] = {}

    async def run(
        self,
        look: Callable[[list[str]], Awaitable[None]],
        known: Callable[[], Iterable[str]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """`await look(names)` for every node that is there, and then whenever some may have
        changed. It reads them itself; MetadataError: it is called again with the same names.
        Started once all that was there has been looked at.

        `known()`: those that memory has. What somebody here makes is to be marked after memory has
        it: it may be deleted before it was ever seen here."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._follow_children, known, nursery)
            await self._look(look)
            task_status.started()
            while True:
                await self._is_dirty.wait()
                await self._look(look)

    def mark(self, name: str) -> None:
        """It is to be looked at."""
        self._dirty[name] = None
        self._is_dirty.set()

    async def read(self, names: Sequence[str]) -> dict[str, Node | None]:
        """What is stored under these names; without those that were touched meanwhile: of what
        was read and what memory has either may be the newer. They are marked. MetadataError."""
        read = object()
        touched = self._reads[read] = set()
        try:
            nodes = await self._store.get_many([f"{self._path}/{name}" for name in names])
        finally:
            del self._reads[read]
        for name in sorted(touched.intersection(names)):
            self.mark(name)
        pairs = zip(names, nodes, strict=True)
        return {name: node for name, node in pairs if name not in touched}

    async def read_one(self, name: str) -> Node | None:
        """What is stored under this name, read until nothing was touched meanwhile.
        MetadataError."""
        while not (found := await self.read([name])):
            pass
        return found[name]

    async def differing(self, known: Iterable[str]) -> list[str]:
        """Names that are there and not in `known`, or the other way round, as of this call or
        later. MetadataError."""
        await self._store.sync(self._path)
        return sorted(set(known) ^ set(await self._children()))

    def touch(self, name: str) -> None:
        """Memory has changed what it knows of this one."""
        for touched in self._reads.values():
            touched.add(name)

    async def _look(self, look: Callable[[list[str]], Awaitable[None]]) -> None:
        self._is_dirty = trio.Event()
        while self._dirty:
            names = list(self._dirty)[:LOOK_COUNT_MAX]
            for name in names:
                del self._dirty[name]
            try:
                await look(names)
            except MetadataError as error:
                logger.warning("not_followed", kv(folder=self._path, error=error))
                self._dirty.update(dict.fromkeys(names))
                await trio.sleep(RETRY_SECONDS)

    async def _follow_children(
        self,
        known: Callable[[], Iterable[str]],
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        watch = self._store.watch_children(self._path)
        try:
            while True:
                try:
                    names = set(await self._children())
                    self._have(names, nursery)
                    for name in sorted(set(known()) - names):
                        self.mark(name)
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                except MetadataError as error:
                    logger.warning("not_followed", kv(folder=self._path, error=error))
                    await trio.sleep(RETRY_SECONDS)
                    continue
                await watch.changed()
        finally:
            watch.close()

    async def _children(self) -> list[str]:
        try:
            return await self._store.children(self._path)
        except NoNodeError:
            return []

    def _have(self, names: set[str], nursery: trio.Nursery) -> None:
        # Sorted, so that a simulation does it in the same order each time.
        for name in sorted(self._scopes.keys() - names):
            self._scopes.pop(name).cancel()
            self.mark(name)
        for name in sorted(names - self._scopes.keys()):
            self._scopes[name] = scope = trio.CancelScope()
            nursery.start_soon(self._follow, name, scope)

    async def _follow(self, name: str, scope: trio.CancelScope) -> None:
        # The watch comes before the look: nothing is missed between them.
        watch = self._store.watch(f"{self._path}/{name}")
        try:
            with scope:
                while True:
                    self.mark(name)
                    await watch.changed()
        finally:
            watch.close()
