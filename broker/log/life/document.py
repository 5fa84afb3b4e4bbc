"""Partitions' documents in metadata: read many at a time, written with a certain outcome.

What a document says is broker/log/life/chain.py's, and what an archive is. Here is decided when
ledgers go to archives: `write_chain` bounds the ledgers that a document names itself, so that
neither its size (ZooKeeper takes no more than 1 MiB) nor the work of a roll grows with the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from broker.log.life.chain import (
    Chain,
    ChainDocument,
    ChainFormatError,
    archive_bytes,
    archive_from_bytes,
    archive_path,
)
from metadata.store import (
    BadVersionError,
    CreateOp,
    DeleteOp,
    MetadataError,
    MetadataUnknownOutcomeError,
    Node,
    NoNodeError,
    PutOp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.settings import LogSettings
    from metadata.store import MetadataStore, Op

#: An answer that is lost so often in a row is no accident.
ATTEMPTS_MAX = 5

#: Archives that one write may make: their numbers begin with the document's version.
ARCHIVES_PER_WRITE_MAX = 1000

#: Documents in one request: at some kB each they stay below ZooKeeper's 1 MiB.
READ_COUNT_MAX = 128


class Documents(Protocol):
    """A `MetadataStore`, or its `SharedWrites`."""

    async def get(self, path: str) -> Node: ...

    async def put(self, path: str, data: bytes, version: int) -> int: ...

    async def multi(self, ops: Sequence[Op]) -> None: ...


async def read_chain(
    store: MetadataStore, path: str, node: Node | None = None
) -> tuple[Chain, int]:
    """With its archives, and the document's version. `node`: the document, if it was just read.
    NoNodeError, MetadataError, ChainFormatError."""
    while True:
        if node is None:
            node = await store.get(path)
        document = ChainDocument(node.data)
        paths = [archive_path(path, archive.number) for archive in document.archives]
        archived: list[list[LedgerInfo]] = []
        for start in range(0, len(paths), READ_COUNT_MAX):
            for found in await store.get_many(paths[start : start + READ_COUNT_MAX]):
                if found is not None:
                    archived.append(archive_from_bytes(found.data))
                    await trio.lowlevel.checkpoint()
        assert len(archived) <= len(paths)
        if len(archived) == len(paths):
            return document.chain(archived), node.version
        # An archive goes with its name. So the document is another by now.
        again = await store.get(path)
        if again.version == node.version:
            raise ChainFormatError(f"archives of {path} are missing")
        node = again


async def write_chain(
    store: Documents,
    path: str,
    before: Chain,
    chain: Chain,
    version: int,
    settings: LogSettings,
    *,
    new_ledger: Op | None = None,
) -> tuple[Chain, int]:
    """Puts `chain` in the place of `before`, whose document has `version`: what was written (some
    ledgers may have gone to archives), and its version. `new_ledger` makes the one that it names
    first of all, in the same multi. Errors as `put_document`."""
    assert version >= 0
    also: list[Op] = [] if new_ledger is None else [new_ledger]
    ledgers = chain.ledgers
    # No number comes twice: a reader that has an old document must not find another archive.
    used = (archive.number for archive in before.archives)
    number = max((version * ARCHIVES_PER_WRITE_MAX, *used)) + 1
    chain = chain.with_fitted_archives(settings.archive_ledgers)
    chain, written = chain.with_written_archives(number)
    also += [CreateOp(archive_path(path, fresh), data) for fresh, data in written]
    number += len(written)
    while sum(not info.is_open for info in chain.newest) > settings.document_ledgers_max:
        oldest = chain.newest[: settings.archive_ledgers]
        also.append(CreateOp(archive_path(path, number), archive_bytes(oldest)))
        chain = chain.with_archive(number, len(oldest))
        number += 1
    assert len(also) <= ARCHIVES_PER_WRITE_MAX + 1
    assert chain.ledgers == ledgers, "where a ledger is written changes nothing of the chain"
    named = set(chain.archives)
    also += [
        DeleteOp(archive_path(path, archive.number))
        for archive in before.archives
        if archive not in named
    ]
    return chain, await put_document(store, path, chain.to_bytes(), version, also)


async def put_document(
    store: Documents, path: str, data: bytes, version: int, also: Sequence[Op] = ()
) -> int:
    """As `MetadataStore.put`, but a lost answer is looked up: the new version if the document is
    ours, and sent again if it never arrived. Only for bytes that no rival writes: a document names
    its owner's incarnation and epoch, and each of those has one task that writes. `also`: done with
    it in one multi.

    NoNodeError, BadVersionError: it was not written. MetadataUnavailableError: nothing is known
    after a lost answer, nothing was written without one; calling it again with the same arguments
    finds out. MetadataUnknownOutcomeError after ATTEMPTS_MAX lost answers."""
    assert version >= 0
    for attempt in range(ATTEMPTS_MAX):
        try:
            if not also:
                return await store.put(path, data, version)
            await store.multi([PutOp(path, data, version), *also])
            return version + 1
        except MetadataUnknownOutcomeError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        except BadVersionError:
            # Also of an earlier call of ours whose answer was lost.
            node = await store.get(path)
            if node.version == version + 1 and node.data == data:
                return node.version
            raise
        node = await store.get(path)
        if node.version == version + 1 and node.data == data:
            return node.version
        if node.version != version:
            raise BadVersionError(path, f"version {node.version} instead of {version}")
    raise AssertionError("the last attempt returns or raises")


class DocumentReader:
    """Those who ask while a request is on its way share the next one. Each is told what was there
    when it asked, or later: a broker that believes an old document would fence the ledger of its
    owner."""

    __slots__ = ("_asked", "_is_reading", "_store")

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._asked: list[_Question] = []
        self._is_reading = False

    async def get(self, path: str) -> Node:
        """NoNodeError; MetadataError for all that share the request."""
        (node,) = await self.get_many([path])
        if node is None:
            raise NoNodeError(path)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """One answer for each path, None for a missing node. MetadataError as `get`."""
        questions = [_Question(path) for path in paths]
        self._asked += questions
        await trio.lowlevel.checkpoint()  # others that start now come along
        for question in questions:
            while not question.is_answered:
                if self._is_reading:
                    await question.answered.wait()
                else:
                    await self._read()
            if question.error is not None:
                raise question.error
        return [question.node for question in questions]

    async def _read(self) -> None:
        """One request, by one of those who wait. If that one is cancelled another takes over."""
        assert not self._is_reading, "one request at a time"
        assert self._asked, "who reads has asked"
        chunk, self._asked = self._asked[:READ_COUNT_MAX], self._asked[READ_COUNT_MAX:]
        self._is_reading = True
        try:
            # Many may ask for one: of a large topic's partitions the assignment.
            paths = list(dict.fromkeys(question.path for question in chunk))
            await self._store.sync(paths[0])
            found = dict(zip(paths, await self._store.get_many(paths), strict=True))
            for question in chunk:
                question.node, question.is_answered = found[question.path], True
        except MetadataError as error:
            for question in chunk:
                question.error = type(error)(question.path, str(error))
                question.is_answered = True
        finally:
            self._is_reading = False
            self._asked[:0] = [question for question in chunk if not question.is_answered]
            for question in (*chunk, *self._asked):
                question.answered.set()
                question.answered = trio.Event()


class _Question:
    __slots__ = ("answered", "error", "is_answered", "node", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.answered = trio.Event()
        self.is_answered = False
        self.node: Node | None = None
        self.error: MetadataError | None = None
