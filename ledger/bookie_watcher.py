"""Which bookies there are, and where (BookieWatcherImpl.java, ZKRegistrationClient.java).

Follows the registrations in the metadata. What was known stays known while the metadata cannot be
reached, and an address also when its bookie is not registered any more: it may still serve reads.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from metadata.store import MetadataError, NoNodeError
from runtime.logs import kv
from wire.bookkeeper.ledger_metadata import MetadataFormatError
from wire.bookkeeper.records import LOCATION_PROPERTY, parse_service_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ledger.bookie_client import BookieId
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)

READ_ONLY_NODE = "readonly"
RETRY_SECONDS = 1.0


class BookieWatcher:
    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._available = f"{root}/available"
        self._read_only_path = f"{root}/available/{READ_ONLY_NODE}"
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self._locations: dict[BookieId, str] = {}
        self.writable: frozenset[BookieId] = frozenset()
        self.read_only: frozenset[BookieId] = frozenset()
        self._listeners: list[Callable[[], None]] = []
        self._arrival_listeners: list[Callable[[BookieId], None]] = []

    def resolve(self, bookie: BookieId) -> tuple[str, int] | None:
        """Host and port, as last registered; None if that never was seen."""
        return self._addresses.get(bookie)

    def location(self, bookie: BookieId) -> str | None:
        """Where it says that it is, `/region/rack`; None if it does not."""
        return self._locations.get(bookie)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls it, on the loop, whenever the sets have changed."""
        self._listeners.append(listener)

    def on_arrival(self, listener: Callable[[BookieId], None]) -> None:
        """Calls it, on the loop, for each bookie that has become writable (LedgerClient.came)."""
        self._arrival_listeners.append(listener)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` once the bookies were read the first time."""
        watches = [self._store.watch_children(path) for path in self._paths]
        try:
            while True:
                try:
                    await self._look()
                except MetadataError as error:
                    logger.warning("bookies_not_read", kv(error=error))
                    await trio.sleep(RETRY_SECONDS)
                    continue
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                async with trio.open_nursery() as nursery:
                    for watch in watches:
                        nursery.start_soon(self._until_changed, watch.changed, nursery.cancel_scope)
        finally:
            for watch in watches:
                watch.close()

    @staticmethod
    async def _until_changed(changed: Callable[[], object], scope: trio.CancelScope) -> None:
        await changed()  # type: ignore[misc]
        scope.cancel()

    @property
    def _paths(self) -> tuple[str, str]:
        return self._available, self._read_only_path

    async def _look(self) -> None:
        writable = await self._children(self._available)
        writable.discard(READ_ONLY_NODE)
        read_only = await self._children(self._read_only_path)
        # One that is on its way from one to the other is in both: then it is not to be written to.
        writable -= read_only
        await self._read_addresses(self._available, writable)
        await self._read_addresses(self._read_only_path, read_only)
        if writable != self.writable or read_only != self.read_only:
            arrived = sorted(writable - self.writable)
            self.writable, self.read_only = frozenset(writable), frozenset(read_only)
            logger.info("bookies", kv(writable=len(writable), read_only=len(read_only)))
            for arrival_listener in self._arrival_listeners:
                for bookie in arrived:
                    arrival_listener(bookie)
            for listener in self._listeners:
                listener()

    async def _children(self, path: str) -> set[str]:
        try:
            return set(await self._store.children(path))
        except NoNodeError:
            return set()

    async def _read_addresses(self, parent: str, bookies: Collection[BookieId]) -> None:
        ordered = sorted(bookies)
        nodes = await self._store.get_many([f"{parent}/{bookie}" for bookie in ordered])
        for bookie, node in zip(ordered, nodes, strict=True):
            if node is None:
                continue
            try:
                info = parse_service_info(node.data, bookie)
            except MetadataFormatError as error:
                logger.warning("bad_registration", kv(bookie=bookie, error=error))
                continue
            endpoint = info.bookie_endpoint
            if endpoint is not None:
                self._addresses[bookie] = (endpoint.host, endpoint.port)
            if (location := info.properties.get(LOCATION_PROPERTY)) is not None:
                self._locations[bookie] = location
