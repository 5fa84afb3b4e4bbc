"""A broker whole, at a clean stop: what is done first, and what is not waited for."""

from types import SimpleNamespace

import pytest
import trio

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load
from broker.cluster.durability import Bookies
from broker.log.partition import State
from broker.node.foundation import Foundation
from broker.node.parts import start_broker
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore, MemoryTree
from runtime.running import running, serve_until_cancelled
from tests.ledger.bookie_configs import small_bookie
from wire.kafka.messages import CreateTopicsRequest
from wire.kafka.messages.topics import CreatableTopic

WAIT_SECONDS = 60
PARTITIONS = 4


async def test_a_request_that_takes_long_does_not_delay_a_stop(client, nursery):
    server = client.server
    asked, answer = trio.Event(), trio.Event()

    async def hang(*_given, **_options):
        asked.set()
        await answer.wait()

    server.parts["TopicCatalog"].create = hang
    topic = CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    with trio.fail_after(WAIT_SECONDS):
        await asked.wait()
    server.scope.cancel()
    with trio.move_on_after(WAIT_SECONDS):
        await server.stopped.wait()
    is_stopped = server.stopped.is_set()
    answer.set()
    assert is_stopped
    assert await client.is_closed(), "without an answer"


async def test_groups_are_let_go_before_the_partitions_are_closed(client):
    """Members look for another coordinator at once: closing may take many seconds."""
    parts = client.server.parts
    await client.produce("t", [b"x"])
    log = parts["LogManager"].get("t", 0)
    seen = []
    log.watch(lambda: seen.append((log.state, parts["GroupCoordinator"].base.is_running)))
    await client.server.stop()
    assert seen[-1] == (State.OFFLINE, False)


@pytest.fixture
async def start(network_env, nursery, tmp_path):
    """start(node id) -> a broker of one cluster; all on one bookie and one metadata tree."""
    env, tree = network_env, MemoryTree()
    bookie = Bookie(small_bookie(tmp_path, "b1"), env)
    await nursery.start(bookie.run)

    async def start(node_id):
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
            config = load("", own, BOOKIE_CONFIGS)
            writable = Bookies(lambda: ["b1"])
            foundation = Foundation(env, store, ledgers, writable, str(tmp_path))
            broker.parts = await start_broker(foundation, config, stack, in_cluster=True)
            return await broker.parts.serve(stack)

        async def run(*, task_status):
            with broker.scope:
                await serve_until_cancelled(serve, task_status)
            broker.stopped.set()

        await nursery.start(run)
        return broker

    return start


async def test_others_have_the_partitions_before_anything_is_stopped(start, wait_until):
    """Their producers find the new leaders; else they wait until the old one's session ends."""
    one, two = await start(1), await start(2)
    for broker in (one, two):
        members = broker.parts.member.membership
        await wait_until(lambda members=members: len(members.live) == 2, WAIT_SECONDS)
    await one.parts.logs._catalog.create("t", PARTITIONS, {}, 1)

    def led(broker):
        return [log for log in broker.parts.logs.all() if log.state is State.ONLINE]

    await wait_until(lambda: led(one) and len(led(one) + led(two)) == PARTITIONS, WAIT_SECONDS)
    ends = []
    for log in led(one):

        def look(log=log):
            if log.state is State.OFFLINE:
                ends.append(one.parts.dispatcher.is_stopped)

        log.watch(look)
    count = len(led(one))
    one.scope.cancel()
    with trio.fail_after(WAIT_SECONDS):
        await one.stopped.wait()
    assert ends == [False] * count
    await wait_until(lambda: len(led(two)) == PARTITIONS, WAIT_SECONDS)
    two.scope.cancel()
    await two.stopped.wait()
