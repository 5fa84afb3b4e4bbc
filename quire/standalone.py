"""`quire standalone`: metadata, bookie, ledger client and broker in one process.

Composition only: every part is made here, given its neighbours, started in the order in which they
depend on each other, and stopped in the reverse order: a stop first closes the listeners, then the
partitions' ledgers (which still need the bookie), then the bookie, then the metadata store.

Data directory: `metadata.db`, `bookie/journal`, `bookie/ledgers`, `lock`.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config
from broker.cluster.catalog import TopicCatalog
from broker.cluster.config_definitions_broker import parse_protocol_map
from broker.cluster.config_file import NodeConfig, load
from broker.cluster.registry import ConfigRegistry
from broker.cluster.view import StandaloneView, ensure_cluster_id
from broker.dispatch import Dispatcher
from broker.groups.coordinator import GroupCoordinator
from broker.log.chain import new_document
from broker.log.manager import LogManager
from broker.log.settings import LogSettings
from broker.server import KafkaServer, ServerSettings
from broker.timers import Timers
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.placement import RandomPlacement
from metadata.sqlite import SqliteStore
from quire import metrics_export
from quire.handlers import group_config, make_handlers
from quire.ledger_gc import LedgerGc
from quire.local_bookie import LocalBookieClient
from runtime.config import ConfigError
from runtime.env import Env, real_env
from runtime.logs import kv
from runtime.metrics import Metrics
from runtime.real_disk import RealDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from broker.cluster.config import BrokerConfig
    from quire.options import StandaloneOptions

logger = logging.getLogger(__name__)

BOOKIE_ID = "quire-standalone"
LISTENER = "PLAINTEXT"
#: Where Kafka has no limit (queued.max.request.bytes=-1) we have one: memory is bounded.
REQUEST_MEMORY_BYTES_DEFAULT = 128 << 20
HELD_ADDS_MAX = 1_000_000


@dataclass(slots=True)
class _Storage:
    env: Env
    store: SqliteStore
    bookie: Bookie
    ledgers: LedgerClient


async def run(
    options: StandaloneOptions,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `started` with the bound address. ConfigError, PropertiesError,
    BookieStartError; OSError if the data directory is taken or the address is in use."""
    config = _load_config(options)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_set_when_cancelled, stop)
        # Parts are stopped one after the other, so a cancellation must not reach all at once.
        with trio.CancelScope(shield=True):
            async with AsyncExitStack() as stack:
                storage = await _start_storage(options, config, stack)
                address = await _start_broker(options, config, storage, stack)
                task_status.started(address)
                await stop.wait()
        nursery.cancel_scope.cancel()


async def _set_when_cancelled(stop: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


@asynccontextmanager
async def _running(
    service: Callable[..., Awaitable[object]], *, needs_start: bool = True
) -> AsyncIterator[None]:
    """Runs a service's `run` around the block; leaving it cancels the service and waits."""
    async with trio.open_nursery() as nursery:
        if needs_start:
            await nursery.start(service)
        else:
            nursery.start_soon(service)
        yield
        nursery.cancel_scope.cancel()


def _load_config(options: StandaloneOptions) -> NodeConfig:
    host, port = options.listen
    shown = f"[{host}]" if ":" in host else host
    overrides = {
        "node.id": "0",
        "listeners": f"{LISTENER}://{shown}:{port}",
        **options.overrides,
    }
    config = load(options.properties, overrides, BOOKIE_CONFIGS)
    for listener in config.broker.parsed_listeners():
        protocols = parse_protocol_map(config.broker.listener_security_protocol_map)
        if protocols[listener.name] != LISTENER:
            raise ConfigError(
                "listeners",
                f"listeners: {listener.name} asks for {protocols[listener.name]};"
                f" only {LISTENER} is served",
            )
    for note in config.notes:
        logger.warning("setting_without_effect", kv(note=note))
    return config


async def _start_storage(
    options: StandaloneOptions, config: NodeConfig, stack: AsyncExitStack
) -> _Storage:
    env = real_env()
    directory = _data_directory(options)
    env.disk.make_directory(directory)
    stack.callback(_lock(env, directory))
    await stack.enter_async_context(_running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(_running(env.poller.run))
    store = SqliteStore(os.path.join(directory, "metadata.db"), env.disk.run)
    await stack.enter_async_context(_running(store.run))
    cluster_id = await ensure_cluster_id(store, env)
    bookie = Bookie(
        bookie_config(
            config.bookie_values,
            bookie_id=BOOKIE_ID,
            instance_id=cluster_id,
            journal_directory=os.path.join(directory, "bookie", "journal"),
            ledger_directory=os.path.join(directory, "bookie", "ledgers"),
            verify_digest_on_write=True,
            # Back-pressure is the requests' memory, which bounds what can be on its way here; a
            # bookie that refused sooner would cost the partition its ledger.
            held_adds_max=HELD_ADDS_MAX,
            held_adds_size_max_bytes=2 * _request_memory_bytes(config.broker),
        ),
        env,
    )
    await stack.enter_async_context(_running(bookie.run))
    ledgers = LedgerClient(
        store,
        LocalBookieClient({BOOKIE_ID: bookie}),
        env,
        # The partition's own window is the smaller one; sealing a ledger may exceed it.
        LedgerClientConfig(window_entries_max=1 << 20, window_bytes_max=1 << 40),
        placement=RandomPlacement(lambda: [BOOKIE_ID], env.rng),
    )
    await stack.enter_async_context(_running(ledgers.run))
    gc = LedgerGc(bookie, ledgers.manager)
    await stack.enter_async_context(_running(gc.run, needs_start=False))
    return _Storage(env, store, bookie, ledgers)


def _request_memory_bytes(broker: BrokerConfig) -> int:
    configured = broker.queued_max_request_bytes
    return configured if configured > 0 else REQUEST_MEMORY_BYTES_DEFAULT


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
    env, store = storage.env, storage.store
    registry = ConfigRegistry(store, config.broker_texts)
    await registry.load()
    broker = registry.broker
    catalog = TopicCatalog(store, env, registry, initial_partition_document=new_document)
    await catalog.load()
    logs = LogManager(
        catalog,
        store,
        storage.ledgers,
        env,
        LogSettings(producer_expiration_ms=broker.producer_id_expiration_ms),
        retention_check_interval_ms=broker.log_retention_check_interval_ms,
    )
    registry.subscribe(logs.refresh_configs)
    await stack.enter_async_context(_running(logs.run))
    coordinator = GroupCoordinator(env, group_config(broker), catalog, logs)
    await stack.enter_async_context(_running(coordinator.run))
    timers = Timers()
    await stack.enter_async_context(_running(timers.run))
    view = StandaloneView(await ensure_cluster_id(store, env), broker)
    handlers = make_handlers(
        env=env,
        store=store,
        registry=registry,
        catalog=catalog,
        logs=logs,
        coordinator=coordinator,
        view=view,
        timers=timers,
        data_directory=_data_directory(options),
    )
    requests = await stack.enter_async_context(trio.open_nursery())
    stack.callback(requests.cancel_scope.cancel)
    dispatcher = Dispatcher(handlers, requests, env.turn)
    server = KafkaServer(
        env.net,
        dispatcher,
        ServerSettings(
            frame_bytes_max=broker.socket_request_max_bytes,
            request_memory_bytes=_request_memory_bytes(broker),
            connections_max=broker.max_connections,
            connections_idle_ms=broker.connections_max_idle_ms,
        ),
    )
    await _start_metrics(options, storage, dispatcher, logs, stack)
    await stack.enter_async_context(_running(env.net.run))
    await stack.enter_async_context(_running(server.reap_idle, needs_start=False))
    address = ("", 0)
    for wanted in broker.parsed_listeners():
        listener = server.listen(wanted.host or "0.0.0.0", wanted.port, wanted.name)
        view.set_port(wanted.name, listener.address[1])
        address = listener.address
        logger.info("listening", kv(listener=wanted.name, host=address[0], port=address[1]))
    return address


async def _start_metrics(
    options: StandaloneOptions,
    storage: _Storage,
    dispatcher: Dispatcher,
    logs: LogManager,
    stack: AsyncExitStack,
) -> None:
    if options.metrics is None:
        return
    metrics = Metrics()
    metrics.register(metrics_export.process_collector())
    if isinstance(storage.env.disk, RealDisk):
        metrics.register(metrics_export.disk_collector(storage.env.disk))
    metrics.register(metrics_export.bookie_collector(storage.bookie))
    metrics.register(metrics_export.request_collector(dispatcher))
    metrics.register(metrics_export.partition_collector(logs))
    host, port = options.metrics

    async def serve(*, task_status: trio.TaskStatus[object]) -> None:
        await metrics.serve(host, port, task_status=task_status)

    await stack.enter_async_context(_running(serve))
