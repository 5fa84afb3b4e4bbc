"""Brokers of one cluster in this process, on one bookie and one metadata tree."""

from types import SimpleNamespace

import pytest
import trio

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load
from broker.cluster.durability import Bookies
from broker.node.foundation import Foundation
from broker.node.parts import start_broker
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore, MemoryTree
from runtime.running import running, serve_until_cancelled
from tests.ledger.bookie_configs import small_bookie


@pytest.fixture
async def start(network_env, nursery, tmp_path):
    """start(node id, **settings) -> a broker of one cluster; all on one bookie and one metadata
    tree. `super_users="x"` is super.users."""
    env, tree = network_env, MemoryTree()
    bookie = Bookie(small_bookie(tmp_path, "b1"), env)
    await nursery.start(bookie.run)

    async def start(node_id, **settings):
        broker = SimpleNamespace(scope=trio.CancelScope(), stopped=trio.Event())

        async def serve(stack):
            store = MemoryStore(tree)
            await stack.enter_async_context(running(store.run))
            placement = RandomPlacement(lambda: ["b1"], env.rng)
            bookies = LocalBookieClient({"b1": bookie})
            ledgers = LedgerClient(store, bookies, env, placement=placement)
            await ledgers.manager.ensure_layout()
            await stack.enter_async_context(running(ledgers.run))
            own = {"node.id": str(node_id), "listeners": "PLAINTEXT://127.0.0.1:0"}
            own |= {name.replace("_", "."): text for name, text in settings.items()}
            config = load("", own, BOOKIE_CONFIGS)
            writable = Bookies(lambda: ["b1"])
            foundation = Foundation(env, store, ledgers, writable, str(tmp_path))
            broker.parts = await start_broker(foundation, config, stack, in_cluster=True)
            return await broker.parts.serve(stack)

        async def run(*, task_status):
            with broker.scope:
                await serve_until_cancelled(serve, task_status)
            broker.stopped.set()

        broker.address = await nursery.start(run)
        return broker

    return start
