"""`quire standalone`: metadata, bookie, ledger client and broker in one process; or, with several
bookies or several brokers, those as processes of their own (quire/bookie_processes.py,
quire/broker_processes.py).

Composition only: every part is made here, given its neighbours, started in the order in which they
depend on each other, and stopped in the reverse order: a stop first closes the listeners, then the
partitions' ledgers (which still need the bookie), then the bookie, then the metadata store.

Several brokers are a cluster (broker/cluster/), of which the one in this process is a member. All
are asked to stop at once, so that none hands its partitions to one that stops next.

Data directory: `metadata.db`, `lock`, perhaps `admin-password`; `bookie/journal`, `bookie/ledgers`,
or `bookie-1`, `bookie-2` and so on; `broker-1` and so on; and `metadata.sock` while other processes
run or with `--bookie-listen` (quire/bookie_listener.py).
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config, bookie_notes
from bookie.server.pages_config import PagesConfig, pages_config
from bookie.space.gc_config import GcConfig
from broker.cluster.config import PLAINTEXT
from broker.cluster.config_file import NodeConfig, load
from broker.cluster.durability import Bookies
from broker.cluster.spreading import forget_spread
from broker.cluster.view import ensure_cluster_id
from broker.node.foundation import Foundation
from broker.node.parts import note_settings, request_memory_bytes, start_broker
from joined.ledger_gc import ABSENT_SECONDS_MIN, MetadataLedgers
from joined.local_bookie import LocalBookieClient
from joined.node_configs import NODE_CONFIGS, STANDALONE_CONFIGS
from joined.placement import start_placement, writable_of
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.config_definitions import client_config, network_config, placement_config
from ledger.metadata import LedgerManager
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from metadata.served import MetadataServer
from metadata.sqlite import SqliteStore
from quire import role_defaults
from quire.administrator import ensure_administrator
from quire.bookie_processes import (
    BookieProcesses,
    BookieProcessesConfig,
    check_layout,
    check_settings,
)
from quire.broker_processes import (
    BOOKIE_SOCKET_NAME,
    BrokerProcesses,
    BrokerProcessesConfig,
    check_node_ids,
    check_ports,
)
from quire.options import DEFAULT_LISTEN
from runtime.config import ConfigError, parse_properties
from runtime.env import Env, real_env
from runtime.logs import kv
from runtime.real_disk import RealDisk
from runtime.real_net import RealNet
from runtime.running import running, serve_until_cancelled
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from bookie.config import BookieConfig
    from broker.node.parts import BrokerParts
    from ledger.autorecovery.service import AutoRecovery
    from quire.options import StandaloneOptions
    from runtime.metrics import Metrics

logger = logging.getLogger(__name__)

BOOKIE_ID = "quire-standalone"
LOCAL_BOOKIE_DIRECTORY = "bookie"
HELD_ADDS_MAX = 1_000_000


@dataclass(slots=True)
class _Storage:
    env: Env
    store: SqliteStore
    ledgers: LedgerClient
    #: In this process; None if there are processes for that.
    local: tuple[Bookie, BookieConfig] | None
    bookies: Bookies
    watcher: BookieWatcher | None = None
    recovery: AutoRecovery | None = None
    #: None: no other process reaches our metadata.
    server: MetadataServer | None = None


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
        if on_bookie is not None and storage.local is not None:
            on_bookie(storage.local[0])
        return await _start_broker(options, config, storage, stack)

    await serve_until_cancelled(start, task_status)


def _listeners(options: StandaloneOptions) -> dict[str, str]:
    """The setting, if the file does not say it: one that asks clients who they are must not give
    place to one that does not. ConfigError if both say where to listen."""
    is_in_file = "listeners" in parse_properties(options.properties)
    if is_in_file and options.listen is None:
        return {}
    if is_in_file and "listeners" not in options.overrides:
        raise ConfigError("listeners", "listeners: the file has it, so --listen must not be given")
    host, port = options.listen or DEFAULT_LISTEN
    shown = f"[{host}]" if ":" in host else host
    return {"listeners": f"{PLAINTEXT}://{shown}:{port}"}


def _load_config(options: StandaloneOptions) -> NodeConfig:
    overrides = {"node.id": "0", **_listeners(options), **options.overrides}
    copies = role_defaults.copies(options.bookies) if options.bookies > 1 else {}
    defaults = "".join(f"{name}={text}\n" for name, text in copies.items())
    table = NODE_CONFIGS if options.bookies == 1 else STANDALONE_CONFIGS
    if options.bookies > 1 and options.bookie_listen is not None:
        raise ConfigError(
            "--bookie-listen",
            f"--bookie-listen: with --bookies {options.bookies} each bookie has a listener already",
        )
    config = load(defaults + options.properties, overrides, table)
    note_settings(config)
    # What cannot be is refused before anything starts, and before there is a file.
    placement_config(config.bookie_values)
    if options.processes > 1:
        _check_processes(options, config)
    if options.bookies > 1:
        check_settings(_bookie_processes_config(options, config))
    else:
        _local_bookie_config(options, config, instance_id="")
    return config


def _check_processes(options: StandaloneOptions, config: NodeConfig) -> None:
    """ConfigError: with so many processes it would not be what the settings say."""
    wanted = f"--processes {options.processes}"
    check_node_ids(config.broker.node_id, options.processes)
    if options.bookies > 1:
        raise ConfigError(
            "--processes",
            f"{wanted}: not with --bookies {options.bookies}; either the brokers or the bookies "
            "are several processes",
        )
    network = network_config(config.bookie_values)
    if network.tls is not None or network.sasl is not None:
        raise ConfigError(
            "--processes",
            f"{wanted}: its brokers reach the bookie at a socket that only this user may connect "
            "to, without TLS or a login: leave out what the settings say of those towards bookies",
        )


def _local_bookie_config(
    options: StandaloneOptions, config: NodeConfig, instance_id: str
) -> BookieConfig:
    """Of the bookie in this process. ConfigError."""
    directory = os.path.join(_data_directory(options), LOCAL_BOOKIE_DIRECTORY)
    return bookie_config(
        config.bookie_values,
        bookie_id=BOOKIE_ID,
        instance_id=instance_id,
        journal_directory=os.path.join(directory, "journal"),
        ledger_directory=os.path.join(directory, "ledgers"),
        verify_digest_on_write=True,
        # Back-pressure is the requests' memory, which bounds what can be on its way here; a
        # bookie that refused sooner would cost the partition its ledger.
        held_adds_max=HELD_ADDS_MAX,
        held_adds_size_max_bytes=2 * options.processes * request_memory_bytes(config.broker),
        gc=GcConfig(**role_defaults.fields_by(GcConfig, role_defaults.GARBAGE)),
    )


def _bookie_processes_config(
    options: StandaloneOptions, config: NodeConfig
) -> BookieProcessesConfig:
    return BookieProcessesConfig(
        _data_directory(options),
        options.bookies,
        # What the ledger client reads is not for them.
        settings={name: text for name, text in config.bookie_texts.items() if _is_bookies(name)},
        log_levels=options.log_levels,
        has_pages=options.metrics is not None,
    )


def _processes_config(options: StandaloneOptions, config: NodeConfig) -> BrokerProcessesConfig:
    return BrokerProcessesConfig(
        _data_directory(options),
        options.processes,
        config.broker,
        {**parse_properties(options.properties), **options.overrides},
        options.log_levels,
        options.metrics,
    )


async def _start_storage(
    options: StandaloneOptions, config: NodeConfig, stack: AsyncExitStack
) -> _Storage:
    env = real_env()
    directory = _data_directory(options)
    env.disk.make_directory(directory)
    check_layout(directory, options.bookies, LOCAL_BOOKIE_DIRECTORY)
    stack.callback(_lock(env, directory))
    await stack.enter_async_context(running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(running(env.poller.run))
    store = SqliteStore(os.path.join(directory, "metadata.db"), env.disk.run)
    await stack.enter_async_context(running(store.run))
    if options.bookies > 1:
        return await _start_processes(options, config, env, store, stack)
    return await _start_local(options, config, env, store, stack)


async def _start_local(
    options: StandaloneOptions,
    config: NodeConfig,
    env: Env,
    store: SqliteStore,
    stack: AsyncExitStack,
) -> _Storage:
    """One bookie in this process."""
    directory = _data_directory(options)
    settings = _local_bookie_config(options, config, await ensure_cluster_id(store, env))
    for note in bookie_notes(config.bookie_values, settings):
        logger.warning("setting_acts_otherwise", kv(note=note))
    # As on ZooKeeper: a collector that finds no tree of ledgers deletes none.
    await LedgerManager(store, env).ensure_layout()
    known = MetadataLedgers(
        LedgerManager(store, env), settings.gc.metadata_rate, ABSENT_SECONDS_MIN
    )
    bookie = Bookie(settings, env, known_ledgers=known)
    await stack.enter_async_context(running(bookie.run))
    server = None
    listen_at = options.bookie_listen
    if listen_at is None and options.processes > 1:
        listen_at = (os.path.join(directory, BOOKIE_SOCKET_NAME), 0)
    if listen_at is not None:
        from quire.bookie_listener import BookieListener, start_listener  # its server is not small

        listener = BookieListener(listen_at, directory, BOOKIE_ID, settings.ledger_directory)
        server = await start_listener(listener, bookie, store, env, stack)
    bookies = LocalBookieClient({BOOKIE_ID: bookie})
    ledgers = LedgerClient(
        store,
        bookies,
        env,
        # The partition's own window is the smaller one; sealing a ledger may exceed it.
        client_config(
            config.bookie_values,
            LedgerClientConfig(window_entries_max=1 << 20, window_bytes_max=1 << 40),
        ),
        placement=RandomPlacement(bookies.writable, env.rng),
    )
    await stack.enter_async_context(running(ledgers.run))
    local = (bookie, settings)
    return _Storage(env, store, ledgers, local, Bookies(bookies.writable), server=server)


async def _start_processes(
    options: StandaloneOptions,
    config: NodeConfig,
    env: Env,
    store: SqliteStore,
    stack: AsyncExitStack,
) -> _Storage:
    """Several bookies, each a process, on this one's metadata."""
    # Not small, and of no use to a bookie in this process.
    from quire.autorecovery_node import standalone_config, start_autorecovery

    await LedgerManager(store, env).ensure_layout()
    processes_config = _bookie_processes_config(options, config)
    assert env.poller is not None
    # Clients' connections end before those to the bookies do.
    inner = replace(env, net=RealNet(env.poller))
    await stack.enter_async_context(running(inner.net.run))
    server = MetadataServer(inner, processes_config.socket_path, store.session)
    await stack.enter_async_context(running(server.run))
    watcher = BookieWatcher(store)
    await stack.enter_async_context(running(watcher.run))
    processes = BookieProcesses(processes_config, server, watcher)
    await stack.enter_async_context(running(processes.run))
    values = config.bookie_values
    bookies = NetworkBookieClient.following(inner, watcher, network_config(values))
    await stack.enter_async_context(running(bookies.run))
    placement = await start_placement(placement_config(values), watcher, bookies, env, stack)
    defaults = role_defaults.ENTRY_CACHE | role_defaults.ensemble_change(options.bookies)
    ledgers = LedgerClient(
        store,
        bookies,
        env,
        # The partition's own window is the smaller one; sealing a ledger may exceed it.
        client_config(
            values,
            LedgerClientConfig(
                window_entries_max=1 << 20,
                window_bytes_max=1 << 40,
                **role_defaults.fields_by(LedgerClientConfig, defaults),
            ),
        ),
        placement=placement,
    )
    await stack.enter_async_context(running(ledgers.run))
    watcher.on_arrival(ledgers.health.came)
    recovery = standalone_config(config.bookie_texts)
    service = await start_autorecovery(inner, store, "/ledgers", recovery, values, BOOKIE_ID, stack)
    return _Storage(env, store, ledgers, None, Bookies(writable_of(watcher)), watcher, service)


def _is_bookies(name: str) -> bool:
    """Whether a bookie reads that setting."""
    key = BOOKIE_CONFIGS.get(name)
    return key is not None and key.has_effect


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
    foundation = Foundation(
        env, storage.store, storage.ledgers, storage.bookies, _data_directory(options)
    )
    if options.admin is not None:
        await ensure_administrator(storage.store, env, _data_directory(options), options.admin)
    if options.processes > 1:
        return await _start_brokers(options, config, storage, foundation, stack)
    await forget_spread(storage.store)
    parts = await start_broker(foundation, config, stack)
    if storage.watcher is not None:
        storage.watcher.subscribe(parts.logs.bookies_changed)
    await _start_metrics(options, config, storage, parts, stack)
    await stack.enter_async_context(running(env.net.run))
    return parts.listen()


async def _start_brokers(
    options: StandaloneOptions,
    config: NodeConfig,
    storage: _Storage,
    foundation: Foundation,
    stack: AsyncExitStack,
) -> tuple[str, int]:
    """This process's, and the others as processes; serves once all do."""
    processes_config = _processes_config(options, config)
    check_ports(processes_config)
    # As `quire broker` has it: brokers ask each other until all have closed their partitions.
    await stack.enter_async_context(running(storage.env.net.run))
    parts = await start_broker(foundation, config, stack, in_cluster=True)
    await _start_metrics(options, config, storage, parts, stack)
    assert storage.server is not None
    assert parts.member is not None
    processes = BrokerProcesses(processes_config, storage.server, parts.member.membership)
    await stack.enter_async_context(running(processes.run))
    address = await parts.serve(stack)
    first = config.broker.node_id
    await parts.member.settle(storage.store, range(first, first + options.processes))
    stack.callback(processes.ask_to_end)
    stack.callback(parts.member.controller.abdicate)
    return address


async def _start_metrics(
    options: StandaloneOptions,
    config: NodeConfig,
    storage: _Storage,
    broker: BrokerParts,
    stack: AsyncExitStack,
) -> None:
    pages = pages_config(config.bookie_values)
    if pages == PagesConfig() and options.metrics is None:
        return  # no setting of theirs is set, so none can be wrong
    from quire.tools.admin.credentials import read_credentials  # and with it the server of pages

    credentials = read_credentials(pages)
    if storage.local is None:
        pages = PagesConfig()
    wanted = options.metrics or pages.admin
    if wanted is None and pages.metrics is None:
        return
    # prometheus_client is slow to import, and often not wanted
    from quire.metrics.bookie import bookie_collector
    from quire.tools.admin.broker import serve_broker_pages
    from quire.tools.admin.broker_pages import BrokerPages
    from quire.tools.admin.serve import AdminParts, serve_admin
    from quire.tools.admin.token_note import token_note

    metrics = _metrics(storage, broker)
    broker_pages = BrokerPages(broker.logs, broker.cleaner, broker.groups)
    if storage.local is None:
        assert wanted is not None
        credentials = stack.enter_context(
            token_note(_data_directory(options), credentials, storage.env.rng)
        )
        serve = partial(
            serve_broker_pages,
            *(broker.broker.node_id, broker.logs, storage.store, storage.env, metrics),
            *(broker_pages, credentials, wanted),
        )
        await stack.enter_async_context(running(serve))
        return
    bookie, bookie_settings = storage.local
    metrics.register(bookie_collector(bookie, bookie_settings, storage.env.clock))
    if pages.metrics is not None and pages.metrics != wanted:
        plain = partial(metrics.serve, *pages.metrics, credentials.check_metrics, credentials.tls)
        await stack.enter_async_context(running(plain))
    if wanted is None:
        return
    parts = AdminParts(
        bookie,
        bookie_settings,
        config.bookie_values,
        storage.store,
        storage.ledgers,
        storage.env,
        metrics,
        _data_directory(options),
        broker=broker_pages,
        credentials=credentials,
    )

    await stack.enter_async_context(running(partial(serve_admin, parts, *wanted)))


def _metrics(storage: _Storage, broker: BrokerParts) -> Metrics:
    """What is shown wherever the bookies are."""
    # As in `_start_metrics`.
    from quire.metrics.broker import partition_collector, request_collector
    from quire.metrics.cleaner import cleaner_collector
    from quire.metrics.client import ledger_client_collector
    from quire.metrics.coordinators import load_times_collector
    from quire.metrics.process import disk_collector, loop_collector, process_collector
    from quire.metrics.quotas import quota_collector
    from quire.metrics.telemetry import telemetry_collector
    from quire.metrics.tls import tls_collector
    from quire.metrics.transactions import register_transactions
    from runtime.metrics import Metrics

    metrics = Metrics()
    metrics.register(process_collector())
    metrics.register(loop_collector(storage.env.turn.watch))
    if isinstance(storage.env.disk, RealDisk):
        metrics.register(disk_collector(storage.env.disk))
    ledgers = storage.ledgers
    metrics.register(ledger_client_collector(ledgers.statistics, storage.env.clock, ledgers.cache))
    metrics.register(request_collector(broker.dispatcher))
    metrics.register(partition_collector(broker.logs))
    register_transactions(metrics, broker, storage.env.clock)
    metrics.register(load_times_collector("group", broker.groups.base.load_times))
    metrics.register(quota_collector(broker.quotas, broker.server))
    metrics.register(telemetry_collector(broker.telemetry))
    if broker.tls is not None:
        metrics.register(tls_collector(broker.tls))
    if broker.cleaner is not None:
        metrics.register(cleaner_collector(broker.cleaner, storage.env.clock))
    if storage.recovery is not None:
        from quire.metrics.autorecovery import autorecovery_collector

        metrics.register(autorecovery_collector(storage.recovery, storage.env.clock))
    return metrics
