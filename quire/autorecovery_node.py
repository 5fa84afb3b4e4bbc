"""`quire autorecovery --config bk_server.conf`: an auditor and a replication worker as a process.

As BookKeeper's AutoRecoveryMain: any number of them may run, on the bookies' hosts or elsewhere,
together with Java's. One of all is the auditor; all repair.
"""

from __future__ import annotations

import logging
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from bookie.server.config import server_config
from bookie.server.pages_config import pages_config
from joined.metadata_service import metadata_store
from joined.node_configs import NODE_CONFIGS
from joined.placement import start_placement, topology_of
from ledger.autorecovery.config import AUTORECOVERY_CONFIGS, autorecovery_config
from ledger.autorecovery.parts import AutoRecoveryParts
from ledger.autorecovery.service import AutoRecovery
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.config_definitions import client_config, network_config, placement_config
from ledger.network.client import NetworkBookieClient
from ledger.placement.candidates import CandidateSource
from quire.role_defaults import LOST_BOOKIES
from quire.tools.admin.credentials import read_credentials
from runtime.addresses import interface_address
from runtime.config import load_tables
from runtime.env import real_env
from runtime.logs import kv
from runtime.running import running, serve_until_cancelled
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    import trio

    from ledger.autorecovery.config import AutoRecoveryConfig
    from metadata.store import MetadataStore
    from quire.tools.admin.credentials import PageCredentials
    from runtime.config import ConfigValue
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: The «ready» line's address where no pages are served.
NO_ADDRESS = ("none", 0)


@dataclass(slots=True, frozen=True)
class AutoRecoveryOptions:
    """`properties` is the text of bk_server.conf; `overrides` win over it."""

    properties: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)
    #: Where Prometheus asks, if it may.
    metrics: tuple[str, int] | None = None


async def run(
    options: AutoRecoveryOptions, *, task_status: trio.TaskStatus[tuple[str, int]]
) -> None:
    """Until cancelled; `started` with the metrics' address once it stands for election.

    ConfigError, PropertiesError, MetadataError; OSError."""
    tables = [AUTORECOVERY_CONFIGS, NODE_CONFIGS]
    loaded = load_tables(options.properties, options.overrides, tables)
    for note in loaded.notes:
        logger.warning("setting_without_effect", kv(note=note))
    own = AUTORECOVERY_CONFIGS.parse(loaded.texts[0])
    values = NODE_CONFIGS.parse(loaded.texts[1])

    async def start(stack: AsyncExitStack) -> tuple[str, int]:
        return await _start(options, own, values, stack)

    await serve_until_cancelled(start, task_status)


async def _start(
    options: AutoRecoveryOptions,
    own: Mapping[str, ConfigValue],
    values: Mapping[str, ConfigValue],
    stack: AsyncExitStack,
) -> tuple[str, int]:
    env = real_env()
    server = server_config(values, interface_address)
    bookie_id = server.bookie_id or f"{server.advertised_host}:{server.port}"
    await stack.enter_async_context(running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(running(env.poller.run))
    await stack.enter_async_context(running(env.net.run))
    store, root = metadata_store(values, env, name=f"autorecovery of {bookie_id}")
    await stack.enter_async_context(running(store.run))
    config = autorecovery_config(own)
    service = await start_autorecovery(env, store, root, config, values, bookie_id, stack)
    logger.info("autorecovery_started", kv(bookie=bookie_id))
    if options.metrics is None:
        return NO_ADDRESS
    credentials = read_credentials(pages_config(values))
    return await _start_metrics(service, env, options.metrics, credentials, stack)


async def start_autorecovery(
    env: Env,
    store: MetadataStore,
    root: str,
    config: AutoRecoveryConfig,
    values: Mapping[str, ConfigValue],
    bookie_id: str,
    stack: AsyncExitStack,
) -> AutoRecovery:
    """With a watcher, connections and a ledger client of its own: a repair's traffic must not queue
    in front of a broker's in the same process. `env.net` and the store are running ones; `values`
    are the ledger client's settings."""
    watcher = BookieWatcher(store, root)
    await stack.enter_async_context(running(watcher.run))
    bookies = NetworkBookieClient.following(env, watcher, network_config(values, is_auditor=True))
    await stack.enter_async_context(running(bookies.run))
    rules = placement_config(values)
    placement = await start_placement(rules, watcher, bookies, env, stack)
    candidates = CandidateSource(watcher, topology_of(rules))
    await stack.enter_async_context(running(candidates.run))
    client_settings = client_config(values, LedgerClientConfig(ledgers_root=root))
    client = LedgerClient(store, bookies, env, client_settings, placement=placement)
    watcher.on_arrival(client.health.came)
    await client.manager.ensure_layout()
    await stack.enter_async_context(running(client.run))
    parts = AutoRecoveryParts(
        config=config,
        env=env,
        store=store,
        client=client,
        bookies=bookies,
        watcher=watcher,
        placement=placement,
        locations=lambda: {each.bookie: each.location for each in candidates.snapshot()},
        min_racks=rules.rules.min_racks,
        root=root,
    )
    service = AutoRecovery(parts, bookie_id=bookie_id)
    await stack.enter_async_context(running(service.run))
    return service


def standalone_config(texts: Mapping[str, str]) -> AutoRecoveryConfig:
    """As `quire standalone` runs it: `texts` are BookKeeper's settings that the user made. A bookie
    that died is started again at once, so it is waited for unless the user says otherwise."""
    known = {name: text for name, text in texts.items() if name in AUTORECOVERY_CONFIGS}
    return autorecovery_config(AUTORECOVERY_CONFIGS.parse({**LOST_BOOKIES, **known}))


async def _start_metrics(
    service: AutoRecovery,
    env: Env,
    address: tuple[str, int],
    credentials: PageCredentials,
    stack: AsyncExitStack,
) -> tuple[str, int]:
    # prometheus_client is slow to import, and often not wanted
    from quire.metrics.autorecovery import autorecovery_collector
    from quire.metrics.process import loop_collector, process_collector
    from runtime.metrics import Metrics

    metrics = Metrics()
    metrics.register(process_collector())
    metrics.register(loop_collector(env.turn.watch))
    metrics.register(autorecovery_collector(service, env.clock))
    serve = partial(metrics.serve, *address, credentials.check_metrics, credentials.tls)
    bound = await stack.enter_async_context(running(serve))
    assert isinstance(bound, tuple)
    return bound
