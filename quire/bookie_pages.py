"""The pages of a bookie that is a process: the administration (httpServer...) and the metrics port
(prometheusStatsHttp...), as bookie/server/pages_config.py says. A bookie without them loads and
runs nothing of this.

Its administration sees the cluster: it follows the registrations and asks the other bookies. Its
sanity check writes to this bookie and no other, as BookKeeper's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from bookie.server.pages_config import pages_config
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from quire.metrics.bookie import bookie_collector
from quire.metrics.client import ledger_client_collector
from quire.metrics.process import disk_collector, loop_collector, process_collector
from quire.tools.admin.context import Cluster
from quire.tools.admin.credentials import PageCredentials, read_credentials
from quire.tools.admin.serve import AdminParts, serve_admin
from runtime.logs import kv
from runtime.metrics import Metrics
from runtime.real_disk import RealDisk
from runtime.running import running
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from bookie.bookie import Bookie
    from bookie.config import BookieConfig
    from metadata.store import MetadataStore
    from runtime.config import ConfigValue
    from runtime.env import Env

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ServedBookie:
    """A bookie that runs, registered, and what is around it."""

    bookie: Bookie
    config: BookieConfig
    #: By BookKeeper's names, parsed; only what was set.
    values: Mapping[str, ConfigValue]
    store: MetadataStore
    ledgers_root: str
    env: Env


async def start_pages(served: ServedBookie, stack: AsyncExitStack) -> None:
    """Opens what the configuration asks for. OSError if an address cannot be bound; ConfigError."""
    config = pages_config(served.values)
    credentials = read_credentials(config)
    env = served.env
    metrics = Metrics()
    metrics.register(process_collector())
    metrics.register(loop_collector(env.turn.watch))
    if isinstance(env.disk, RealDisk):
        metrics.register(disk_collector(env.disk))
    metrics.register(bookie_collector(served.bookie, served.config, env.clock))
    if config.admin is not None:
        await _start_admin(served, metrics, credentials, config.admin, stack)
    if config.metrics is not None:
        serve = partial(metrics.serve, *config.metrics, credentials.check_metrics, credentials.tls)
        address = await stack.enter_async_context(running(serve))
        assert isinstance(address, tuple)
        logger.info("metrics_listening", kv(host=address[0], port=address[1]))


async def _start_admin(
    served: ServedBookie,
    metrics: Metrics,
    credentials: PageCredentials,
    wanted: tuple[str, int],
    stack: AsyncExitStack,
) -> None:
    bookie, env, own_id = served.bookie, served.env, served.config.bookie_id
    watcher = BookieWatcher(served.store, served.ledgers_root)
    await stack.enter_async_context(running(watcher.run))
    bookies = NetworkBookieClient.following(env, watcher)
    await stack.enter_async_context(running(bookies.run))
    ledgers = LedgerClient(
        served.store,
        bookies,
        env,
        LedgerClientConfig(ledgers_root=served.ledgers_root),
        placement=RandomPlacement(lambda: [] if bookie.is_read_only else [own_id], env.rng),
    )
    await stack.enter_async_context(running(ledgers.run))
    metrics.register(ledger_client_collector(ledgers.statistics, env.clock))
    parts = AdminParts(
        bookie,
        served.config,
        served.values,
        served.store,
        ledgers,
        env,
        metrics,
        served.config.ledger_directory,
        served.ledgers_root,
        Cluster(watcher, bookies),
        credentials=credentials,
    )
    address = await stack.enter_async_context(running(partial(serve_admin, parts, *wanted)))
    assert isinstance(address, tuple)
    logger.info("http_listening", kv(host=address[0], port=address[1]))
