"""The connection of a command to a BookKeeper cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.ledger_walk import walk_ledger_ids
from ledger.metadata import LedgerManager, ledger_path
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from ledger.underreplication import UnderReplication
from metadata.store import NoNodeError
from runtime.running import running
from wire.bookkeeper.ledger_metadata import LedgerMetadata, MetadataFormatError, parse
from wire.bookkeeper.records import parse_service_info
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence

    from ledger.network.config import NetworkConfig
    from metadata.store import MetadataStore
    from runtime.env import Env
    from wire.bookkeeper.records import BookieServiceInfo

#: Ledgers whose metadata is read together.
METADATA_BATCH = 100


@dataclass(slots=True, frozen=True)
class Cluster:
    store: MetadataStore
    root: str
    env: Env
    watcher: BookieWatcher
    bookies: NetworkBookieClient
    client: LedgerClient

    @property
    def manager(self) -> LedgerManager:
        return self.client.manager

    @property
    def under_replication(self) -> UnderReplication:
        return UnderReplication(self.store, self.root)

    def registered(self) -> frozenset[str]:
        return self.watcher.writable | self.watcher.read_only

    def mode(self, bookie: str) -> str:
        if bookie in self.watcher.writable:
            return "writable"
        return "read-only" if bookie in self.watcher.read_only else "unavailable"

    def placement(self, excluded: Collection[str] = ()) -> RandomPlacement:
        """A random choice of the bookies that take writes."""

        def writable() -> list[str]:
            return sorted(self.watcher.writable.difference(excluded))

        return RandomPlacement(writable, self.env.rng)

    async def ledgers(
        self, step: Callable[[int], None] | None = None
    ) -> AsyncGenerator[tuple[int, LedgerMetadata | str], None]:
        """All ledgers, ascending, with their metadata, or why that cannot be read. `step(count)`
        tells how many more were looked at."""
        async with aclosing(walk_ledger_ids(self.store, self.root)) as portions:
            async for ids in portions:
                for start in range(0, len(ids), METADATA_BATCH):
                    batch = ids[start : start + METADATA_BATCH]
                    for each in await self.read_ledgers(batch):
                        yield each
                    if step is not None:
                        step(len(batch))

    async def read_ledgers(self, ids: Sequence[int]) -> list[tuple[int, LedgerMetadata | str]]:
        """Those that there are; METADATA_BATCH at most."""
        found: list[tuple[int, LedgerMetadata | str]] = []
        nodes = await self.store.get_many([ledger_path(self.root, i) for i in ids])
        for ledger_id, node in zip(ids, nodes, strict=True):
            if node is None:
                continue  # deleted meanwhile
            try:
                found.append((ledger_id, parse(node.data)))
            except MetadataFormatError as error:
                found.append((ledger_id, str(error)))
        return found

    async def service_info(self, bookie: str) -> BookieServiceInfo | None:
        """As the bookie has registered; None if it is not registered."""
        paths = [f"{self.root}/available/{bookie}", f"{self.root}/available/readonly/{bookie}"]
        for node in await self.store.get_many(paths):
            if node is not None:
                return parse_service_info(node.data, bookie)
        return None

    async def cookie_ids(self) -> list[str]:
        """The bookies that have a cookie: all there are, whether they run or not."""
        path = f"{self.root}/cookies"
        return await self.store.children(path) if await self.store.exists(path) else []


@asynccontextmanager
async def connected(
    store: MetadataStore, root: str, env: Env, network: NetworkConfig
) -> AsyncIterator[Cluster]:
    """Starts the environment, the store and what is above it; MetadataError."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(env.turn.serve, needs_start=False))
        assert env.poller is not None
        await stack.enter_async_context(running(env.poller.run))
        await stack.enter_async_context(running(env.net.run))
        await stack.enter_async_context(running(store.run))
        with suppress(NoNodeError):
            # A command fails where the watcher would try again for ever.
            await store.children(f"{root}/available")
        watcher = BookieWatcher(store, root)
        await stack.enter_async_context(running(watcher.run))
        bookies = NetworkBookieClient.following(env, watcher, network)
        await stack.enter_async_context(running(bookies.run))
        client = LedgerClient(
            store,
            bookies,
            env,
            LedgerClientConfig(ledgers_root=root),
            placement=RandomPlacement(lambda: sorted(watcher.writable), env.rng),
        )
        await stack.enter_async_context(running(client.run))
        yield Cluster(store, root, env, watcher, bookies, client)
