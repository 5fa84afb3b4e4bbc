"""`quire standalone`: metadata, bookie, ledger client and broker in one process.

Composition only: every part is made here, given its neighbours, started in the order in which they
depend on each other, and stopped in the reverse order: a stop first closes the listeners, then the
partitions' ledgers (which still need the bookie), then the bookie, then the metadata store.

Data directory: `metadata.db`, `bookie/journal`, `bookie/ledgers`, `lock`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config
from bookie.gc_config import GcConfig
from broker.cluster.config_file import NodeConfig, load
from broker.cluster.view import ensure_cluster_id
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.metadata import LedgerManager
from ledger.placement import RandomPlacement
from metadata.sqlite import SqliteStore
from quire.broker_parts import LISTENER, check_listeners, request_memory_bytes, start_broker
from quire.composition import running, serve_until_cancelled
from quire.ledger_gc import MetadataLedgers
from quire.local_bookie import LocalBookieClient
from runtime.env import Env, real_env
from runtime.real_disk import RealDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from bookie.config import BookieConfig
    from broker.dispatch import Dispatcher
    from broker.log.manager import LogManager
    from quire.options import StandaloneOptions

logger = logging.getLogger(__name__)

BOOKIE_ID = "quire-standalone"
HELD_ADDS_MAX = 1_000_000
#: Where BookKeeper's clusters look every ten minutes and once a day, one process with little data
#: gives space back within a minute or so. Its metadata is at hand, and the copying is limited.
GC_DEFAULTS = GcConfig(
    wait_ms=10_000,
    minor_interval_ms=60_000,
    major_interval_ms=3_600_000,
    throttle_by_bytes=True,
    rate_bytes=32 << 20,
)


@dataclass(slots=True)
class _Storage:
    env: Env
    store: SqliteStore
    bookie: Bookie
    bookie_config: BookieConfig
    ledgers: LedgerClient


async def run(
    options: StandaloneOptions,
    *,
    on_bookie: Callable[[Bookie], None] | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `started` with the bound address. ConfigError, PropertiesError,
    BookieStartError; OSError if the data directory is taken or the address is in use.

    `on_bookie` is given the bookie once it serves: who tests durability makes it crash."""
    config = _load_config(options)

    async def start(stack: AsyncExitStack) -> tuple[str, int]:
        storage = await _start_storage(options, config, stack)
        if on_bookie is not None:
            on_bookie(storage.bookie)
        return await _start_broker(options, config, storage, stack)

    await serve_until_cancelled(start, task_status)


def _load_config(options: StandaloneOptions) -> NodeConfig:
    host, port = options.listen
    shown = f"[{host}]" if ":" in host else host
    overrides = {
        "node.id": "0",
        "listeners": f"{LISTENER}://{shown}:{port}",
        **options.overrides,
    }
    config = load(options.properties, overrides, BOOKIE_CONFIGS)
    check_listeners(config)
    return config


async def _start_storage(
    options: StandaloneOptions, config: NodeConfig, stack: AsyncExitStack
) -> _Storage:
    env = real_env()
    directory = _data_directory(options)
    env.disk.make_directory(directory)
    stack.callback(_lock(env, directory))
    await stack.enter_async_context(running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(running(env.poller.run))
    store = SqliteStore(os.path.join(directory, "metadata.db"), env.disk.run)
    await stack.enter_async_context(running(store.run))
    cluster_id = await ensure_cluster_id(store, env)
    settings = bookie_config(
        config.bookie_values,
        bookie_id=BOOKIE_ID,
        instance_id=cluster_id,
        journal_directory=os.path.join(directory, "bookie", "journal"),
        ledger_directory=os.path.join(directory, "bookie", "ledgers"),
        verify_digest_on_write=True,
        # Back-pressure is the requests' memory, which bounds what can be on its way here; a
        # bookie that refused sooner would cost the partition its ledger.
        held_adds_max=HELD_ADDS_MAX,
        held_adds_size_max_bytes=2 * request_memory_bytes(config.broker),
        gc=GC_DEFAULTS,
    )
    known = MetadataLedgers(LedgerManager(store, env), settings.gc.metadata_rate)
    bookie = Bookie(settings, env, known_ledgers=known)
    await stack.enter_async_context(running(bookie.run))
    ledgers = LedgerClient(
        store,
        LocalBookieClient({BOOKIE_ID: bookie}),
        env,
        # The partition's own window is the smaller one; sealing a ledger may exceed it.
        LedgerClientConfig(window_entries_max=1 << 20, window_bytes_max=1 << 40),
        placement=RandomPlacement(lambda: [] if bookie.is_read_only else [BOOKIE_ID], env.rng),
    )
    await stack.enter_async_context(running(ledgers.run))
    return _Storage(env, store, bookie, settings, ledgers)


def _data_directory(options: StandaloneOptions) -> str:
    return os.path.abspath(options.data_dir)


def _lock(env: Env, directory: str) -> Callable[[], None]:
    try:
        return env.disk.lock(os.path.join(directory, "lock"))
    except BlockingIOError as error:
        raise OSError(f"the data directory {directory} is in use by another server") from error


async def _start_broker(
    options: StandaloneOptions, config: NodeConfig, storage: _Storage, stack: AsyncExitStack
) -> tuple[str, int]:
    env = storage.env
    parts = await start_broker(
        env, storage.store, storage.ledgers, config, _data_directory(options), stack
    )
    await _start_metrics(options, config, storage, parts.dispatcher, parts.logs, stack)
    await stack.enter_async_context(running(env.net.run))
    return parts.listen()


async def _start_metrics(
    options: StandaloneOptions,
    config: NodeConfig,
    storage: _Storage,
    dispatcher: Dispatcher,
    logs: LogManager,
    stack: AsyncExitStack,
) -> None:
    if options.metrics is None:
        return
    # prometheus_client is slow to import, and often not wanted
    from quire.admin.serve import AdminParts, serve_admin
    from quire.metrics.bookie import bookie_collector
    from quire.metrics.broker import partition_collector, request_collector
    from quire.metrics.client import ledger_client_collector
    from quire.metrics.process import disk_collector, process_collector
    from runtime.metrics import Metrics

    metrics = Metrics()
    metrics.register(process_collector())
    if isinstance(storage.env.disk, RealDisk):
        metrics.register(disk_collector(storage.env.disk))
    metrics.register(bookie_collector(storage.bookie, storage.bookie_config, storage.env.clock))
    metrics.register(ledger_client_collector(storage.ledgers.statistics, storage.env.clock))
    metrics.register(request_collector(dispatcher))
    metrics.register(partition_collector(logs))
    host, port = options.metrics
    parts = AdminParts(
        storage.bookie,
        storage.bookie_config,
        config.bookie_values,
        storage.store,
        storage.ledgers,
        storage.env,
        metrics,
        _data_directory(options),
    )

    async def serve(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        await serve_admin(parts, host, port, task_status=task_status)

    await stack.enter_async_context(running(serve))
