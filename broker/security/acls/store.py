"""AclStore: the ACLs of the cluster, in metadata and in this broker's index.

Owner of the documents (documents_core.py) and of the `AclIndex` that is made of them. A change is
written by compare-and-set, one document after the other, and is in the index when the call returns;
other brokers have it when their watches have told them, which takes some milliseconds, and as long
as they are cut off from metadata they decide by what they knew.

A document that is not understood changes nothing and is told in the log: ACLs that a later version
wrote are then not seen here. At a start it raises: who starts without ACLs that deny would allow.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from broker.api import in_slices
from broker.cluster import optimistic
from broker.cluster.watched_folder import WatchedFolder
from broker.security.acls.documents_core import (
    ACLS_PATH,
    DOCUMENT_BYTES_MAX,
    decoding,
    document_of,
    encoding,
)
from metadata.store import MetadataError, NoNodeError
from runtime.config import ConfigError
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.security.acls.bindings import AclBinding
    from broker.security.acls.index_core import AclIndex
    from metadata.store import MetadataStore, Node

logger = logging.getLogger(__name__)

_Acls = frozenset["AclBinding"]
_NONE: _Acls = frozenset()
#: Before others have the loop: ACLs that are hashed, and put into the index: some microseconds.
ACLS_PER_TURN = 200


class AclStore:
    """Not to be used before `load`. `run` follows what other brokers change."""

    def __init__(self, store: MetadataStore, index: AclIndex) -> None:
        self.index = index
        self._store = store
        self._folder = WatchedFolder(store, ACLS_PATH)
        self._documents: dict[str, _Acls] = {}
        #: Who reads a document puts it into the index before the next one reads: it takes several
        #: turns, and what was read later is the newer.
        self._lock = trio.Lock()

    async def load(self) -> None:
        """Reads all that is stored. MetadataError; ConfigError: it is not understood."""
        names: list[str] = []
        # Who was refused lately is not to be let in by a server that is behind.
        await self._store.sync(ACLS_PATH)
        with suppress(NoNodeError):
            names = await self._store.children(ACLS_PATH)
        nodes = await self._store.get_many([f"{ACLS_PATH}/{name}" for name in names])
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                acls = await in_slices(decoding(node.data))
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    "authorizer.class.name", f"{ACLS_PATH}/{name} has no ACLs: {error}"
                ) from error
            await self._have(name, acls)
        logger.info("acls loaded", kv(acls=len(self.index)))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns; started once memory agrees with what is stored."""
        await self._folder.run(self._look, lambda: list(self._documents), task_status=task_status)

    async def add(self, acls: Iterable[AclBinding]) -> dict[AclBinding, KafkaError]:
        """Stored and in force when it returns; those that are there stay. What failed, and why."""
        return await self._change(acls, lambda before, some: before | some)

    async def remove(self, acls: Iterable[AclBinding]) -> dict[AclBinding, KafkaError]:
        """The same of those that are to go."""
        return await self._change(acls, lambda before, some: before - some)

    async def refresh(self) -> None:
        """What was changed before this call is in the index when it returns: whoever takes away all
        that matches must not miss what another broker has acknowledged. MetadataError."""
        await self._store.sync(ACLS_PATH)
        names: list[str] = []
        with suppress(NoNodeError):
            names = await self._store.children(ACLS_PATH)
        await self._look(sorted({*names, *self._documents}))

    # -- changes ----------------------------------------------------------------------------------

    async def _change(
        self, acls: Iterable[AclBinding], changed: Callable[[_Acls, _Acls], _Acls]
    ) -> dict[AclBinding, KafkaError]:
        failed: dict[AclBinding, KafkaError] = {}
        by_document: dict[str, set[AclBinding]] = {}
        slices = Slices(ACLS_PER_TURN)
        for acl in acls:
            if slices.due():
                await slices.turn()
            by_document.setdefault(document_of(acl), set()).add(acl)
        for name, some in by_document.items():
            try:
                await self._change_one(name, frozenset(some), changed)
            except KafkaError as error:
                failed.update(dict.fromkeys(some, error))
            except MetadataError as error:
                logger.warning("acls_not_changed", kv(path=error.path, error=error))
                timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "metadata did not answer")
                failed.update(dict.fromkeys(some, timed_out))
        return failed

    async def _change_one(
        self, name: str, some: _Acls, changed: Callable[[_Acls, _Acls], _Acls]
    ) -> None:
        """KafkaError, MetadataError."""
        path = f"{ACLS_PATH}/{name}"
        await self._store.sync(path)
        seen: Node | None = None
        wanted: bytes | None = None

        async def write(node: Node | None, data: bytes) -> None:
            if node is None:
                await self._store.create(path, data, make_parents=True)
            else:
                await self._store.put(path, data, node.version)

        async def look(_: Node | None) -> None:
            nonlocal seen, wanted
            seen = None
            with suppress(NoNodeError):
                seen = await self._store.get(path)
            wanted = await _changed(await _decoded(name, seen), some, changed)

        async def recognise(before: Node | None) -> bool:
            # Both changes say what is to be there or not: what was done already is not done again.
            await look(before)
            return False

        await look(None)
        await optimistic.change(
            lambda: seen,
            lambda _: wanted,
            write,
            look_again=look,
            recognise=recognise,
            attempts_max=optimistic.ATTEMPTS_MAX,
        )
        async with self._lock:
            await self._have(name, await _decoded(name, await self._folder.read_one(name)))
        self._folder.mark(name)

    # -- the index --------------------------------------------------------------------------------

    async def _look(self, names: list[str]) -> None:
        """MetadataError."""
        async with self._lock:
            for name, node in (await self._folder.read(names)).items():
                try:
                    acls = await _decoded(name, node)
                except KafkaError:
                    continue
                await self._have(name, acls)

    async def _have(self, name: str, acls: _Acls) -> None:
        """Those that deny come first and go last, so that what is in between allows no more than
        before or after. Otherwise by what they say: a set's order is of the process, and they are
        listed in the order of the index."""
        before = self._documents.get(name, _NONE)
        self._documents[name] = acls
        slices = Slices(ACLS_PER_TURN)
        for acl in sorted(acls - before, key=_order):
            if slices.due():
                await slices.turn()
            self.index.add(acl)
        for acl in sorted(before - acls, key=_order, reverse=True):
            if slices.due():
                await slices.turn()
            self.index.remove(acl)


def _order(acl: AclBinding) -> tuple[int | str, ...]:
    kind = (acl.resource_type, acl.pattern_type, acl.name)
    return (acl.permission, *kind, acl.principal, acl.host, acl.operation)


async def _changed(
    before: _Acls, some: _Acls, changed: Callable[[_Acls, _Acls], _Acls]
) -> bytes | None:
    """The document that is to be; None: as it is. KafkaError."""
    after = changed(before, some)
    if after == before:
        return None
    data = await in_slices(encoding(after))
    if len(data) > DOCUMENT_BYTES_MAX and len(after) > len(before):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "there are too many ACLs")
    return data


async def _decoded(name: str, node: Node | None) -> _Acls:
    """KafkaError: it is not understood, and is not to be overwritten."""
    try:
        return _NONE if node is None else await in_slices(decoding(node.data))
    except (ValueError, TypeError) as error:
        logger.error("acls_not_understood", kv(path=f"{ACLS_PATH}/{name}", error=error))
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "stored ACLs are not understood"
        ) from error
