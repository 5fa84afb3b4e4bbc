"""The placement that the settings ask for, with what it has to know of bookies kept current."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.config_definitions import Policy
from ledger.placement import RandomPlacement, SpreadPlacement
from ledger.placement.candidates import CandidateSource
from ledger.placement.topology import DefaultTopology, ScriptTopology, TableTopology
from runtime.running import running

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AsyncExitStack

    from ledger.bookie_client import BookieClient
    from ledger.bookie_watcher import BookieWatcher
    from ledger.config_definitions import PlacementConfig
    from ledger.placement import Placement
    from ledger.placement.topology import Topology
    from runtime.env import Env


async def start_placement(
    config: PlacementConfig,
    watcher: BookieWatcher,
    bookies: BookieClient,
    env: Env,
    stack: AsyncExitStack,
) -> Placement:
    """`watcher` and `bookies` run already."""
    if config.policy is Policy.RANDOM:
        return RandomPlacement(lambda: sorted(watcher.writable), env.rng)
    source = CandidateSource(
        watcher,
        topology_of(config),
        bookies if config.rules.is_weighted else None,
        info_interval_seconds=config.info_interval_seconds,
        info_retry_seconds=config.info_retry_seconds,
    )
    await stack.enter_async_context(running(source.run))
    return SpreadPlacement(source.snapshot, env.rng, config.rules)


def writable_of(watcher: BookieWatcher) -> Callable[[], Collection[str]]:
    """Who takes writes now. A broker asks for every produce with acks=all."""
    return lambda: watcher.writable


def topology_of(config: PlacementConfig) -> Topology:
    if config.script_path is not None:
        return ScriptTopology(config.script_path)
    if config.table_path is not None:
        return TableTopology(config.table_path)
    return DefaultTopology()
