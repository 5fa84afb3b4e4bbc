"""Which bookies there are, and where (BookieWatcherImpl.java, ZKRegistrationClient.java).

Follows the registrations in the metadata. What was known stays known while the metadata cannot be
reached.

An address goes with the registration: it may be given to another bookie (containers, DHCP), which
would answer «no such entry» for the one before it. BookKeeper's DefaultBookieAddressResolver does
not resolve a bookie that is not registered, unless its id is a host and port. Here such a bookie
has a `Place` that is not certain: its last one, or what its id says, until somebody else is
registered there. So has a bookie where another one is registered, too: who of them is dead is not
known before its session is over. A `Place` that is not certain is good for a bookie that proves who
it is (ledger/network/greeting.py), and for no other.

Assumed of bookies that cannot prove it (Java's, ours of earlier versions): they register before
they listen, the news of that come before their answers, and a machine is always registered under
the same host name. None of this is assumed of bookies that can.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

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


#: BookieSocketAddress.isDummyBookieIdForHostname.
_HOST_AND_PORT = re.compile(r"([^:/]+):([0-9]{1,5})")


class Place(NamedTuple):
    """Where a bookie is, as far as the metadata tell."""

    host: str
    port: int
    is_registered: bool = True
    #: Another bookie is registered at this address.
    is_contested: bool = False

    @property
    def is_certain(self) -> bool:
        return self.is_registered and not self.is_contested


class BookieWatcher:
    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._available = f"{root}/available"
        self._read_only_path = f"{root}/available/{READ_ONLY_NODE}"
        #: Of those that are registered now; and by whom each address is claimed.
        self._addresses: dict[BookieId, tuple[str, int]] = {}
        self._claims: Counter[tuple[str, int]] = Counter()
        #: Of those that are not.
        self._last_addresses: dict[BookieId, tuple[str, int]] = {}
        self._locations: dict[BookieId, str] = {}
        self.writable: frozenset[BookieId] = frozenset()
        self.read_only: frozenset[BookieId] = frozenset()
        self._listeners: list[Callable[[], None]] = []
        self._address_listeners: list[Callable[[], None]] = []
        self._arrival_listeners: list[Callable[[BookieId], None]] = []

    def resolve(self, bookie: BookieId) -> Place | None:
        """Where it is; None if that is not known, or is another bookie's address by now."""
        address = self._addresses.get(bookie)
        if address is not None:
            return Place(*address, is_contested=self._claims[address] > 1)
        address = self._last_addresses.get(bookie) or _told_by_id(bookie)
        if address is None or address in self._claims:
            return None
        return Place(*address, is_registered=False)

    def location(self, bookie: BookieId) -> str | None:
        """Where it says that it is, `/region/rack`; None if it does not."""
        return self._locations.get(bookie)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls it, on the loop, whenever the sets have changed."""
        self._listeners.append(listener)

    def on_addresses(self, listener: Callable[[], None]) -> None:
        """Calls it, on the loop, when a registered bookie's address has changed, or one has come or
        gone; before any other listener."""
        self._address_listeners.append(listener)

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
        found = await self._read_addresses(self._available, writable)
        found |= await self._read_addresses(self._read_only_path, read_only)
        self._take_addresses(found)
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

    def _take_addresses(self, found: dict[BookieId, tuple[str, int]]) -> None:
        if found == self._addresses:
            return
        self._last_addresses |= self._addresses
        for bookie in found:
            self._last_addresses.pop(bookie, None)
        self._addresses = found
        self._claims = Counter(found.values())
        for listener in self._address_listeners:
            listener()

    async def _read_addresses(
        self, parent: str, bookies: Collection[BookieId]
    ) -> dict[BookieId, tuple[str, int]]:
        found: dict[BookieId, tuple[str, int]] = {}
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
                found[bookie] = (endpoint.host, endpoint.port)
            if (location := info.properties.get(LOCATION_PROPERTY)) is not None:
                self._locations[bookie] = location
        return found


def _told_by_id(bookie: BookieId) -> tuple[str, int] | None:
    """BookieSocketAddress.resolveLegacyBookieId."""
    match = _HOST_AND_PORT.fullmatch(bookie)
    return None if match is None else (match[1], int(match[2]))
