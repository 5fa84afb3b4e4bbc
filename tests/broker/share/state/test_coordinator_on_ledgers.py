"""The share coordinator on real parts: catalog, log manager, ledgers, a bookie with its files."""

from __future__ import annotations

import contextlib

import trio

from broker.cluster.catalog import TopicCatalog
from broker.cluster.internal_topics import making_of
from broker.cluster.registry import ConfigRegistry
from broker.log.life.chain import Chain
from broker.log.manager import LogManager
from broker.log.settings import LogSettings
from broker.share.ports import ShareKey, StateBatch
from broker.share.state.config import ShareStateConfig
from broker.share.state.coordinator import ShareStateCoordinator
from broker.share.state.keys import coordinator_key
from broker.share.state.share_state_core import Write
from tests.broker.groups.test_coordinator_on_ledgers import Call, storage
from wire.kafka.errors import ErrorCode as E

TOPIC = "__share_group_state"


@contextlib.asynccontextmanager
async def broker(env, store, ledgers):
    """One life of a broker. At its end nothing is closed: it is killed."""
    async with trio.open_nursery() as nursery:
        registry = ConfigRegistry(store, {})
        await registry.load()
        catalog = TopicCatalog(
            store, env, registry, initial_partition_document=lambda: Chain().to_bytes()
        )
        await catalog.load()
        if catalog.get("t") is None:
            await catalog.create("t", 2, {})
        logs = LogManager(catalog, store, ledgers, env, LogSettings())
        await nursery.start(logs.run)
        config = ShareStateConfig(
            state_topic_num_partitions=1, snapshot_update_records_per_snapshot=3
        )
        making = making_of(TOPIC, registry.broker)
        coordinator = ShareStateCoordinator(env, config, making.configs, catalog, logs)
        await nursery.start(coordinator.run)
        key = ShareKey("g", catalog.get("t").id, 0)
        await coordinator.ensure_ready(coordinator_key(key))
        yield coordinator, logs, key
        nursery.cancel_scope.cancel()


async def ask(request, *arguments):
    done = Call()
    for _ in request(*arguments, done) or ():
        pass
    return await done.wait()


async def test_each_life_knows_what_the_last_acknowledged(tmp_path):
    """Another broker takes over at each write, in the middle of updates and of snapshots, while the
    log is pruned; the one before is never told."""
    with trio.fail_after(100):
        async with storage(tmp_path) as parts, contextlib.AsyncExitStack() as lives:
            for life in range(10):
                coordinator, logs, key = await lives.enter_async_context(broker(*parts))
                if life == 0:
                    assert (await ask(coordinator.initialize, key, 1, 0)).error is E.NONE
                state = await ask(coordinator.read, key, life)
                expected = (StateBatch(0, life - 1, 2, 1),) if life else ()
                assert (state.error, state.batches) == (E.NONE, expected)
                write = Write(1, life, -1, life + 1, [StateBatch(life, life, 2, 1)])
                assert (await ask(coordinator.write, key, write)).error is E.NONE
                redundant = coordinator.base.shards()[0].redundancy.redundant_offset()
                await coordinator.prune()
                assert logs.get(TOPIC, 0).log_start_offset == redundant
                # One that nobody answers: stored or not, it changes nothing that was acknowledged.
                for _ in coordinator.write(key, write, lambda state: None):
                    pass
            assert redundant > 5, "some of the beginning is gone"


async def test_who_was_deposed_tells_nothing(tmp_path):
    with trio.fail_after(100):
        async with storage(tmp_path) as parts, broker(*parts) as (old, _, key):
            await ask(old.initialize, key, 1, 0)
            await ask(old.read, key, 1)
            async with broker(*parts) as (new, _, _):
                write = Write(1, 1, -1, 1, [StateBatch(0, 9, 2, 1)])
                assert (await ask(new.write, key, write)).error is E.NONE
                told = await ask(old.read, key, 1)
                assert told.error is E.NOT_COORDINATOR
