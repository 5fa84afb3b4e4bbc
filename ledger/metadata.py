"""LedgerManager: ledgers' metadata in BookKeeper's tree (feature 4; docs/formats.md).

    /ledgers/LAYOUT, INSTANCEID           what the tree is
    /ledgers/idgen/ID-                    its sequence numbers are the ledger ids
    /ledgers/00/0000/L0013                metadata of ledger 13 (`%010d` split 2-4-4)
    /ledgers/000/0001/0995/1162/L7781     of ids from 2^31-1 on (`%019d` split 3-4-4-4-4)

All changes are compare-and-set on the node's version. A change whose outcome is unknown is read
back before anything is decided (invariants W8, W9).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.errors import (
    LedgerExistsError,
    LedgerMetadataError,
    NoSuchLedgerError,
)
from ledger.ledger_ids import LedgerIds
from ledger.underreplication import UnderReplication
from ledger.writer_marks import WriterMarks
from metadata.shared_writes import SharedWrites
from metadata.store import (
    BadVersionError,
    CreateOp,
    MetadataError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from wire.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    MetadataFormatError,
    parse,
    serialize,
)
from wire.bookkeeper.records import parse_instance_id
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

    from metadata.store import MetadataStore, Watch
    from runtime.env import Env

logger = logging.getLogger(__name__)

LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
#: Ids from here on have the long path (LegacyHierarchicalLedgerManager's limit).
LONG_ID_MIN = 2**31 - 1


@dataclass(slots=True, frozen=True)
class Versioned:
    """Metadata as read or written, with the version that the next compare-and-set needs."""

    metadata: LedgerMetadata
    version: int


def ledger_path(root: str, ledger_id: int) -> str:
    assert ledger_id >= 0
    is_long = ledger_id >= LONG_ID_MIN
    digits = f"{ledger_id:019d}" if is_long else f"{ledger_id:010d}"
    ends = [3, 7, 11, 15] if is_long else [2, 6]
    start, parts = 0, [root]
    for end in ends:
        parts.append(digits[start:end])
        start = end
    return "/".join(parts) + "/L" + digits[start:]


#: Makes a new ledger's node by this operation, in one multi with something of the caller's. It
#: decides an unknown outcome itself, and may raise that operation's NodeExistsError or NoNodeError.
Place = Callable[[int, CreateOp], Awaitable[None]]


class LedgerManager:
    def __init__(self, store: MetadataStore, env: Env, root: str = "/ledgers") -> None:
        self._store = store
        #: Of ledgers that there are: a broker's partitions close theirs at the same time.
        self._writes = SharedWrites(store)
        self._env = env
        self._root = root
        self._ids = LedgerIds(store, root)
        #: Where the last ledger is that was made with something else.
        self._known_folder = ""
        #: What writers say of copies that are missing.
        self.writer_marks = WriterMarks(store, env, root)

    @property
    def store(self) -> MetadataStore:
        return self._store

    @property
    def root(self) -> str:
        """Where in the store the ledgers' metadata are."""
        return self._root

    async def ensure_layout(self) -> None:
        """Makes the fixed part of the tree where it is missing (what `bookkeeper shell` calls
        initnewcluster); LedgerMetadataError if there is a layout of another kind."""
        nodes = {
            "LAYOUT": LAYOUT,
            "INSTANCEID": str(self._env.new_uuid()).encode(),
            "available/readonly": b"",
            "cookies": b"",
            "idgen": b"",
        }
        for name, data in nodes.items():
            path = f"{self._root}/{name}"
            if not await self._store.exists(path):
                with suppress(NodeExistsError):
                    await self._store.create(path, data, make_parents=True)
        layout = (await self._store.get(f"{self._root}/LAYOUT")).data
        if b"HierarchicalLedgerManagerFactory" not in layout:
            raise LedgerMetadataError(-1, f"{self._root}/LAYOUT is {layout!r}: unknown")

    async def sync(self) -> None:
        """Reads from now on know of all ledgers that are made by now (`MetadataStore.sync`)."""
        await self._store.sync(self._root)

    async def read_instance_id(self) -> str:
        """Of the tree, as its INSTANCEID says. LedgerMetadataError if that or LAYOUT is missing:
        then this is no tree of ledgers, or only what is left of one."""
        names = ("LAYOUT", "INSTANCEID")
        nodes = await self._store.get_many([f"{self._root}/{name}" for name in names])
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                raise LedgerMetadataError(-1, f"{self._root}/{name} is missing")
        instance = nodes[1]
        assert instance is not None
        try:
            return parse_instance_id(instance.data)
        except MetadataFormatError as error:
            raise LedgerMetadataError(-1, str(error)) from error

    async def create(
        self,
        metadata: LedgerMetadata,
        ledger_id: int | None = None,
        *,
        place: Place | None = None,
    ) -> tuple[int, Versioned]:
        """A new ledger's id and its metadata, which got a creator token. With `place` it is the
        caller who makes the node. LedgerMetadataError; LedgerExistsError if the id was given and is
        taken; whatever `place` raises."""
        assert ledger_id is None or place is None
        metadata = replace(metadata, ctoken=self._env.rng.getrandbits(62) | 1)
        data = serialize(metadata)
        versioned = Versioned(metadata, 0)
        if ledger_id is not None:
            if not await self._create_node(ledger_id, data):
                raise LedgerExistsError(ledger_id, "is in the metadata already")
            return ledger_id, versioned
        while True:
            ledger_id = await self._new_id()
            if place is None:
                is_made = await self._create_node(ledger_id, data)
            else:
                is_made = await self._place_node(ledger_id, data, place)
            if is_made:
                return ledger_id, versioned

    async def _create_node(self, ledger_id: int, data: bytes) -> bool:
        """False if it is not known to be ours: then another id serves as well."""
        path = ledger_path(self._root, ledger_id)
        try:
            await self._store.create(path, data, make_parents=True)
        except (NodeExistsError, MetadataUnknownOutcomeError):
            # The bytes hold our creator token: if they are there, only the reply was lost.
            try:
                node = (await self._store.get_many([path]))[0]
            except MetadataError as error:
                raise _not_made(error) from error
            return node is not None and node.data == data
        except MetadataError as error:
            raise _not_made(error) from error
        return True

    async def _place_node(self, ledger_id: int, data: bytes, place: Place) -> bool:
        """False if the id is taken, by who chose it (`create_ledger_adv`)."""
        path = ledger_path(self._root, ledger_id)
        folder = path.rpartition("/")[0]
        # Ten thousand ledgers share one. What has to be looked for costs a multi another request.
        make_parents = folder != self._known_folder
        while True:
            try:
                await place(ledger_id, CreateOp(path, data, make_parents=make_parents))
            except NodeExistsError as error:
                if error.path != path:
                    raise
                return False
            except NoNodeError as error:
                if error.path != path or make_parents:
                    raise
                make_parents = True  # it was empty, and deleted with its last ledger
            else:
                self._known_folder = folder
                return True

    async def _new_id(self) -> int:
        try:
            ledger_id = await self._ids.take()
        except MetadataError as error:
            raise _not_made(error) from error
        if ledger_id >= LONG_ID_MIN:
            raise LedgerMetadataError(ledger_id, "the 2^31-1 ids of idgen are used up")
        return ledger_id

    async def read(self, ledger_id: int) -> Versioned:
        """NoSuchLedgerError; LedgerMetadataError if it cannot be parsed."""
        try:
            node = await self._store.get(ledger_path(self._root, ledger_id))
        except NoNodeError as error:
            raise NoSuchLedgerError(ledger_id, "not in the metadata") from error
        except MetadataError as error:
            raise LedgerMetadataError(ledger_id, f"not read: {error}") from error
        try:
            return Versioned(parse(node.data), node.version)
        except MetadataFormatError as error:
            raise LedgerMetadataError(ledger_id, f"bad metadata: {error}") from error

    async def update(
        self,
        ledger_id: int,
        current: Versioned,
        transform: Callable[[LedgerMetadata], LedgerMetadata | None],
    ) -> Versioned:
        """Writes `transform(metadata)`. On a conflict or an unknown outcome it reads again and asks
        `transform` again, which must therefore recognise its own work: it returns None when
        nothing is (or is left) to do, and raises when its premise is gone."""
        path = ledger_path(self._root, ledger_id)
        while True:
            wanted = transform(current.metadata)
            if wanted is None:
                return current
            # As BookKeeper does: the token has served once the ledger was created.
            wanted = replace(wanted, ctoken=0)
            try:
                version = await self._writes.put(path, serialize(wanted), current.version)
            except NoNodeError as error:
                raise NoSuchLedgerError(ledger_id, "was deleted") from error
            except (BadVersionError, MetadataUnknownOutcomeError):
                current = await self.read(ledger_id)
                if current.metadata == wanted:
                    return current
            except MetadataError as error:
                raise LedgerMetadataError(ledger_id, f"not written: {error}") from error
            else:
                return Versioned(wanted, version)

    def watch(self, ledger_id: int) -> Watch:
        """Fires when its metadata changes or is deleted; to be closed."""
        return self._store.watch(ledger_path(self._root, ledger_id))

    async def delete(self, ledger_id: int) -> None:
        """Fine if it is gone. The directories above are deleted if they are empty."""
        path = ledger_path(self._root, ledger_id)
        try:
            await self._store.delete(path)
        except NoNodeError:
            return
        parent = path.rpartition("/")[0]
        while parent != self._root:
            try:
                await self._store.delete(parent)
            except (NotEmptyError, NoNodeError, BadVersionError):
                return
            parent = parent.rpartition("/")[0]

    async def mark_under_replicated(self, ledger_id: int, bookies: Collection[str]) -> bool:
        """Has auto-recovery look at the copies on these bookies, as they are now. False, and
        logged, if it fails."""
        records = UnderReplication(self._store, self._root)
        try:
            await records.mark(ledger_id, bookies, self._env.clock.time_ms(), again=True)
        except (MetadataError, MetadataFormatError) as error:
            logger.warning("ledger=%d not marked as under-replicated: %s", ledger_id, error)
            return False
        return True


def _not_made(error: MetadataError) -> LedgerMetadataError:
    return LedgerMetadataError(-1, f"no new ledger: {error}")
