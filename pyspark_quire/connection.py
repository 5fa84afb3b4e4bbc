"""The driver's connection: the metadata of a quire cluster, and its bookies.

    async with connected(Where("zk+hierarchical://zk1:2181/ledgers")) as connection:
        topics = await read_topics(connection.store)

`run_within(where, seconds, work)` does that from code that is not async, and never hangs: a
stream's driver waits for its Python worker without a limit (SPARK-48330).
"""

from __future__ import annotations

import os
import random
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
from ledger.errors import LedgerError
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from metadata.service_uri import parse_service_uri
from metadata.zookeeper_config import ZooKeeperSettings
from pyspark_quire.worker_logs import Refusals, log_to_stderr
from runtime.config import ConfigError
from runtime.env import Env, RealClock
from runtime.jaas import JAAS_PATH_SETTING
from runtime.poller import Poller
from runtime.real_disk import RealDisk
from runtime.real_net import RealNet
from runtime.running import running
from runtime.settings import keys_of
from runtime.turn import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ledger.network.config import NetworkConfig
    from metadata.store import MetadataStore
    from runtime.config import ConfigValue

T = TypeVar("T")

#: What a reader heeds, in small letters and as it is written: what BookKeeper's client has, and its
#: file of a bookie's names, for TLS and SASL; and how ZooKeeper is reached.
_NAMES = {
    name.lower(): name
    for name in (
        *(key.name for key in (*CLIENT_KEYS, *keys_of(ZooKeeperSettings))),
        *("tlsProviderFactoryClass", "tlsCertificatePath", JAAS_PATH_SETTING, "zkTimeout"),
    )
}
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
        texts = {}
        for name, text in self.settings.items():
            if name.lower() not in _NAMES:
                raise ConfigError(
                    name, f"bookkeeper.{name}: BookKeeper's client has no such setting"
                )
            texts[_NAMES[name.lower()]] = text
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
    env = reader_env()
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


def reader_env() -> Env:
    """A real environment of which nobody syncs files: to give the kernel back what it has for that
    takes some 30 ms (io_destroy waits for all processors), of every task. Call it in a trio run."""
    poller = Poller(Turn())
    return Env(RealClock(), random.SystemRandom(), RealNet(poller), RealDisk(), poller.turn, poller)


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

    log_to_stderr()
    with Refusals() as refusals:
        try:
            return trio.run(main)
        except BaseExceptionGroup as group:
            raise refusals.told(single_error(group)) from None
        except LedgerError as error:
            refusals.told(error)
            raise


def single_error(error: BaseException) -> BaseException:
    """The one that a group of groups holds. Of several, as when each partition fails for the same
    reason, the first, or what is no `Exception`, with a note of the others."""
    leaves = _leaves(error)
    first = next((each for each in leaves if not isinstance(each, Exception)), leaves[0])
    if len(leaves) > 1:
        kinds = sorted({type(each).__name__ for each in leaves})
        first.add_note(f"one of {len(leaves)} errors: {', '.join(kinds)}")
    return first


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]
