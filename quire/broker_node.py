"""`quire broker --config server.properties`: a broker on the bookies of a BookKeeper cluster.

The cluster's metadata, its ledgers' and ours, is in the ZooKeeper of `metadataServiceUri`; ledgers
go to the bookies that are registered there, ours or Java's. How many copies an entry gets is each
topic's `quire.ledger.ensemble.size`, `.write.quorum` and `.ack.quorum`.
"""

from __future__ import annotations

import os
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from bookie.server.pages_config import pages_config
from broker.cluster.config_file import NodeConfig, load
from broker.cluster.durability import Bookies
from broker.node.foundation import Foundation
from broker.node.parts import note_settings, start_broker
from joined.metadata_service import metadata_store
from joined.node_configs import NODE_CONFIGS
from joined.placement import start_placement, writable_of
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.config_definitions import client_config, network_config, placement_config
from ledger.network.client import NetworkBookieClient
from metadata.remote import RemoteStore
from quire.role_defaults import ENTRY_CACHE, fields_by
from quire.tools.admin.credentials import PageCredentials, read_credentials
from runtime.env import real_env
from runtime.real_disk import RealDisk
from runtime.running import running, serve_until_cancelled
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    import trio

    from broker.node.parts import BrokerParts
    from metadata.store import MetadataStore
    from runtime.env import Env


@dataclass(slots=True, frozen=True)
class BrokerOptions:
    """`properties` is the text of server.properties; `overrides` win over it."""

    properties: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)
    #: Where Prometheus asks, if it may.
    metrics: tuple[str, int] | None = None
    #: What clients are told that their data are in; None: the working directory.
    data_directory: str | None = None
    #: Another process of ours started it, and ends it.
    is_child: bool = False


async def run(options: BrokerOptions, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
    """Serves until cancelled; `started` with the bound address. ConfigError, PropertiesError,
    MetadataError; OSError if the address is in use."""
    config = load(options.properties, options.overrides, NODE_CONFIGS)
    note_settings(config)
    placement_config(config.bookie_values)  # what cannot be is refused before anything starts

    async def start(stack: AsyncExitStack) -> tuple[str, int]:
        return await _start(options, config, stack)

    await serve_until_cancelled(start, task_status)


async def _start(
    options: BrokerOptions, config: NodeConfig, stack: AsyncExitStack
) -> tuple[str, int]:
    env = real_env()
    await stack.enter_async_context(running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(running(env.poller.run))
    await stack.enter_async_context(running(env.net.run))
    store, root = metadata_store(config.bookie_values, env, name=f"broker-{config.broker.node_id}")
    await stack.enter_async_context(running(store.run))
    watcher = BookieWatcher(store, root)
    await stack.enter_async_context(running(watcher.run))
    values = config.bookie_values
    bookies = NetworkBookieClient.following(env, watcher, network_config(values))
    await stack.enter_async_context(running(bookies.run))
    placement = await start_placement(placement_config(values), watcher, bookies, env, stack)
    ledgers = LedgerClient(
        store,
        bookies,
        env,
        # The partition's own window is the smaller one; sealing a ledger may exceed it.
        client_config(
            values,
            LedgerClientConfig(
                ledgers_root=root,
                window_entries_max=1 << 20,
                window_bytes_max=1 << 40,
                **fields_by(LedgerClientConfig, ENTRY_CACHE),
            ),
        ),
        placement=placement,
    )
    watcher.on_arrival(ledgers.health.came)
    await ledgers.manager.ensure_layout()
    await stack.enter_async_context(running(ledgers.run))
    directory = options.data_directory or os.getcwd()
    foundation = Foundation(
        *(env, store, ledgers, Bookies(writable_of(watcher)), directory),
        # One of a standalone server's processes: the first one's broker rules. It registers last,
        # so another that ruled until then would give all it leads away.
        may_be_controller=not (options.is_child and isinstance(store, RemoteStore)),
    )
    parts = await start_broker(foundation, config, stack, in_cluster=True)
    watcher.subscribe(parts.logs.bookies_changed)
    credentials = read_credentials(pages_config(values))
    await _start_metrics(options, credentials, env, store, ledgers, parts, stack)
    return await parts.serve(stack)


async def _start_metrics(
    options: BrokerOptions,
    credentials: PageCredentials,
    env: Env,
    store: MetadataStore,
    ledgers: LedgerClient,
    parts: BrokerParts,
    stack: AsyncExitStack,
) -> None:
    if options.metrics is None:
        return
    # prometheus_client is slow to import, and often not wanted
    from quire.metrics.broker import partition_collector, request_collector
    from quire.metrics.cleaner import cleaner_collector
    from quire.metrics.client import ledger_client_collector
    from quire.metrics.coordinators import load_times_collector
    from quire.metrics.process import disk_collector, loop_collector, process_collector
    from quire.metrics.quotas import quota_collector
    from quire.metrics.telemetry import telemetry_collector
    from quire.metrics.tls import tls_collector
    from quire.metrics.transactions import register_transactions
    from quire.tools.admin.broker import serve_broker_pages
    from quire.tools.admin.broker_pages import BrokerPages
    from runtime.metrics import Metrics

    metrics = Metrics()
    metrics.register(process_collector())
    metrics.register(loop_collector(env.turn.watch))
    if isinstance(env.disk, RealDisk):
        metrics.register(disk_collector(env.disk))
    metrics.register(ledger_client_collector(ledgers.statistics, env.clock, ledgers.cache))
    metrics.register(request_collector(parts.dispatcher))
    metrics.register(partition_collector(parts.logs))
    register_transactions(metrics, parts, env.clock)
    metrics.register(load_times_collector("group", parts.groups.base.load_times))
    metrics.register(quota_collector(parts.quotas, parts.server))
    metrics.register(telemetry_collector(parts.telemetry))
    if parts.tls is not None:
        metrics.register(tls_collector(parts.tls))
    if parts.cleaner is not None:
        metrics.register(cleaner_collector(parts.cleaner, env.clock))
    pages = partial(
        serve_broker_pages,
        *(parts.broker.node_id, parts.logs, store, env, metrics),
        *(BrokerPages(parts.logs, parts.cleaner, parts.groups), credentials, options.metrics),
    )
    await stack.enter_async_context(running(pages))
