"""A folder of documents in metadata that every broker has in memory, and any of them changes.

Each document is a node, named after the hex of its name's UTF-8. A change is decided on what is
stored, written by compare-and-set (optimistic.py), and in memory when it returns; what other
brokers change comes by watches (watched_folder.py).

A document that is emptied stays as `{}`: a node made anew under the name would have the versions
that another broker may have read of this one. Who has names that never come again may `remove`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from broker.cluster import optimistic
from broker.cluster.watched_folder import WatchedFolder
from metadata.store import NoNodeError
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from metadata.store import MetadataStore, Node

logger = logging.getLogger(__name__)

#: What is left of a document that is no more.
EMPTY = b"{}"
#: Documents that are read together at the start.
READ_COUNT = 500

D = TypeVar("D")


class WatchedDocuments(Generic[D]):
    def __init__(self, store: MetadataStore, path: str, parse: Callable[[bytes], D]) -> None:
        """`parse` raises ValueError, whose words go to the log."""
        self._store = store
        self._path = path
        self._parse = parse
        self._folder = WatchedFolder(store, path)
        self._documents: dict[str, D] = {}
        #: Told of each name whose document has changed, after memory has it.
        self.on_change: Callable[[str], None] = lambda name: None

    async def load(self) -> None:
        """Reads all that is stored. MetadataError. One that cannot be read is left out, with a line
        in the log."""
        try:
            nodes = await self._store.children(self._path)
        except NoNodeError:
            return
        for start in range(0, len(nodes), READ_COUNT):
            chunk = nodes[start : start + READ_COUNT]
            read = await self._store.get_many([f"{self._path}/{node}" for node in chunk])
            for node, found in zip(chunk, read, strict=True):
                self._take(_name(node), found)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows what is stored; started once memory agrees with it."""
        await self._folder.run(self._look, self._nodes, task_status=task_status)

    def get(self, name: str) -> D | None:
        return self._documents.get(name)

    def items(self) -> Iterator[tuple[str, D]]:
        """A picture of now."""
        return iter(list(self._documents.items()))

    def __len__(self) -> int:
        return len(self._documents)

    async def change(self, name: str, decide: Callable[[D | None], bytes | None]) -> None:
        """Stores `decide(what is stored)`, unless that is None; it may be asked again, and may
        raise, which changes nothing. MetadataError."""
        path = self._path_of(name)
        # What is not there is no compare-and-set's to find out that somebody made.
        await self._store.sync(path)
        seen: Node | None = None

        async def look(_: Node | None) -> None:
            nonlocal seen
            seen = None
            with suppress(NoNodeError):
                seen = await self._store.get(path)

        async def write(node: Node | None, data: bytes) -> None:
            if node is None:
                await self._store.create(path, data, make_parents=True)
            else:
                await self._store.put(path, data, node.version)

        await look(None)
        await optimistic.change(
            lambda: seen,
            lambda node: decide(self._parsed(name, node)),
            write,
            look_again=look,
            recognise=None,
        )
        await self._refresh(name)

    async def remove(self, name: str) -> None:
        """Of a name that never comes again; it may be gone already. MetadataError."""
        with suppress(NoNodeError):
            await self._store.delete(self._path_of(name))
        await self._refresh(name)

    async def _refresh(self, name: str) -> None:
        # Not just remembered: by now another broker may have been there again, and been seen.
        node = _node(name)
        self._take(name, await self._folder.read_one(node))
        self._folder.mark(node)

    async def _look(self, nodes: list[str]) -> None:
        """MetadataError."""
        for node, found in (await self._folder.read(nodes)).items():
            self._take(_name(node), found)

    def _nodes(self) -> list[str]:
        return [_node(name) for name in self._documents]

    def _take(self, name: str, found: Node | None) -> None:
        before, document = self._documents.get(name), self._parsed(name, found)
        if document == before:
            return
        self._folder.touch(_node(name))
        if document is None:
            del self._documents[name]
        else:
            self._documents[name] = document
        self.on_change(name)

    def _parsed(self, name: str, found: Node | None) -> D | None:
        if found is None or found.data == EMPTY:
            return None
        try:
            return self._parse(found.data)
        except ValueError as error:
            logger.error("document_not_understood", kv(folder=self._path, name=name, error=error))
            return None

    def _path_of(self, name: str) -> str:
        return f"{self._path}/{_node(name)}"


def _node(name: str) -> str:
    return name.encode().hex()


def _name(node: str) -> str:
    return bytes.fromhex(node).decode()
