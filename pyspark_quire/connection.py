"""The driver's connection: the metadata of a quire cluster, and its bookies.

    async with connected(Where("zk+hierarchical://zk1:2181/ledgers")) as connection:
        topics = await read_topics(connection.store)

`run_within(where, seconds, work)` does that from code that is not async, and never hangs: a
stream's driver waits for its Python worker without a limit (SPARK-48330).
"""

from __future__ import annotations

import os
import stat
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import trio

from joined.metadata_service import metadata_store
from joined.node_configs import NODE_CONFIGS
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.config_definitions import CLIENT_KEYS, client_config, network_config
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from metadata.service_uri import parse_service_uri
from runtime.config import ConfigError
from runtime.env import real_env
from runtime.running import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ledger.network.config import NetworkConfig
    from metadata.store import MetadataStore
    from runtime.config import ConfigValue
    from runtime.env import Env

T = TypeVar("T")

#: Entries of a striped ledger that one read asks for: a scan wants them all.
STRIPED_READ_BATCH = 256


#: For a session's end that the service does not answer.
CLOSE_SECONDS = 1.0


class UnreachableError(Exception):
    """The metadata service did not answer in time, or is not there; says which."""


@dataclass(slots=True, frozen=True)
class Where:
    """Picklable. `settings`: BookKeeper's client's, by its names in any case (Spark's options have
    none), as texts."""

    metadata: str
    settings: dict[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, ConfigValue]:
        """ConfigError (a ValueError) names the setting."""
        known = {key.name.lower(): key.name for key in CLIENT_KEYS}
        texts = {}
        for name, text in self.settings.items():
            if name.lower() not in known:
                raise ConfigError(
                    name, f"bookkeeper.{name}: BookKeeper's client has no such setting"
                )
            texts[known[name.lower()]] = text
        return {**NODE_CONFIGS.parse(texts), "metadataServiceUri": self.metadata}

    def network(self) -> NetworkConfig:
        return network_config(self.values())

    def client(self, root: str) -> LedgerClientConfig:
        return client_config(
            self.values(),
            LedgerClientConfig(ledgers_root=root, striped_read_batch=STRIPED_READ_BATCH),
        )

    @property
    def ledgers_root(self) -> str:
        return parse_service_uri(self.metadata).ledgers_root


@dataclass(slots=True, frozen=True)
class Connection:
    store: MetadataStore
    root: str
    env: Env
    watcher: BookieWatcher
    ledgers: LedgerClient

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Of all bookies that are known now."""
        found = {}
        for bookie in sorted(self.watcher.writable | self.watcher.read_only):
            place = self.watcher.resolve(bookie)
            if place is not None:
                found[bookie] = (place.host, place.port)
        return found


@asynccontextmanager
async def connected(where: Where) -> AsyncIterator[Connection]:
    """ValueError for bad settings, UnreachableError, MetadataError. Waits for a ZooKeeper that does
    not answer: `run_within` bounds that."""
    _check_socket(where)
    env = real_env()
    async with AsyncExitStack() as stack:
        await start_env(env, stack)
        store, root = metadata_store(where.values(), env, name="pyspark_quire")
        await stack.enter_async_context(running(store.run))
        # Else the service keeps the session until it is overdue.
        stack.push_async_callback(_close, store)
        if not await store.exists(f"{root}/LAYOUT"):
            raise UnreachableError(f"metadata {where.metadata}: there is no cluster at {root}")
        watcher = BookieWatcher(store, root)
        await stack.enter_async_context(running(watcher.run))
        bookies = NetworkBookieClient.following(env, watcher, where.network())
        await stack.enter_async_context(running(bookies.run))
        placement = RandomPlacement(lambda: sorted(watcher.writable), env.rng)
        ledgers = LedgerClient(store, bookies, env, where.client(root), placement=placement)
        await stack.enter_async_context(running(ledgers.run))
        yield Connection(store, root, env, watcher, ledgers)


async def _close(store: MetadataStore) -> None:
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await store.aclose()


async def start_env(env: Env, stack: AsyncExitStack) -> None:
    """The loop's own parts of a real environment; the stack's end stops them."""
    await stack.enter_async_context(running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(running(env.poller.run))
    await stack.enter_async_context(running(env.net.run))


def _check_socket(where: Where) -> None:
    """A clear word where a store would try for as long as it may."""
    path = parse_service_uri(where.metadata).socket_path
    if path is None:
        return
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        is_socket = False
    if not is_socket:
        raise UnreachableError(
            f"metadata {where.metadata}: there is no such socket. Is the server on this machine,"
            " and was it started with `--bookie-listen` (or with several `--bookies`)? Without"
            " that nobody but the server reaches its bookie"
        )


def run_within(where: Where, seconds: float, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Connects, runs `work`, disconnects. UnreachableError if that takes longer; what `work`
    raises, alone and not as a group."""

    async def main() -> T:
        with trio.move_on_after(seconds):
            async with connected(where) as connection:
                return await work(connection)
        raise UnreachableError(f"metadata {where.metadata}: no answer within {seconds:g} s")

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        raise single_error(group) from None


def single_error(error: BaseException) -> BaseException:
    """The one that a group of groups holds; the group if there are several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
