"""The coordinator on real parts: catalog, log manager, ledgers and a bookie with its files."""

from __future__ import annotations

import contextlib

import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from broker.cluster.catalog import TopicCatalog
from broker.cluster.registry import ConfigRegistry
from broker.coordinator import partition as coordinator_partition
from broker.groups.classic.types import JoinInput, SyncInput
from broker.groups.config import GroupConfig
from broker.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.groups.offsets.offsets_core import CommittedOffset
from broker.log.life.chain import Chain
from broker.log.manager import LogManager
from broker.log.settings import LogSettings
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from runtime.env import real_env
from runtime.turn import SPENT_UNITS
from wire.kafka.errors import ErrorCode
from wire.kafka.records.compression import Compression


class Call:
    """A callback that can be waited for."""

    def __init__(self):
        self.came = trio.Event()

    def __call__(self, *result):
        assert not self.came.is_set()
        self.result = result
        self.came.set()

    async def wait(self):
        with trio.fail_after(10):
            await self.came.wait()
        return self.result if len(self.result) > 1 else self.result[0]


@contextlib.asynccontextmanager
async def storage(directory):
    """A bookie, its client, and a metadata store."""
    env = real_env()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.turn.serve)
        store = MemoryStore()
        await nursery.start(store.run)
        config = BookieConfig(
            bookie_id="b1",
            instance_id="",
            journal_directory=f"{directory}/journal",
            ledger_directory=f"{directory}/ledgers",
            journal_size_bytes=16 << 20,
            write_cache_size_bytes=32 << 20,
        )
        bookie = Bookie(config, env)
        await nursery.start(bookie.run)
        ledgers = LedgerClient(
            store,
            LocalBookieClient({"b1": bookie}),
            env,
            LedgerClientConfig(window_entries_max=1 << 20, window_bytes_max=1 << 40),
            placement=RandomPlacement(lambda: ["b1"], env.rng),
        )
        await nursery.start(ledgers.run)
        yield env, store, ledgers
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def broker(env, store, ledgers, settings=None, compression=Compression.ZSTD):
    """One life of a broker: its coordinator."""
    async with trio.open_nursery() as nursery:
        registry = ConfigRegistry(store, {})
        await registry.load()
        catalog = TopicCatalog(
            store, env, registry, initial_partition_document=lambda: Chain().to_bytes()
        )
        await catalog.load()
        logs = LogManager(catalog, store, ledgers, env, settings or LogSettings())
        await nursery.start(logs.run)
        config = GroupConfig(
            offsets_topic_num_partitions=4,
            group_initial_rebalance_delay_ms=0,
            offsets_topic_compression_codec=compression,
        )
        coordinator = GroupCoordinator(env, config, catalog, logs)
        await nursery.start(coordinator.run)
        yield coordinator
        nursery.cancel_scope.cancel()


async def commit(coordinator, group, member, generation, offset):
    done = Call()
    value = CommittedOffset(offset, 1, "here", coordinator.timers.wall_ms())
    coordinator.commit(group, member, None, generation, [("t", 0, value)], done)
    return await done.wait()


async def committed(coordinator, group):
    done = Call()
    coordinator.fetch(group, True, done)
    error, table = await done.wait()
    assert error is ErrorCode.NONE
    return table.get("t", 0)


async def test_groups_live_in_ledgers_and_outlive_their_broker(tmp_path):
    with trio.fail_after(60):
        async with storage(tmp_path) as parts:
            async with broker(*parts) as coordinator:
                await coordinator.ensure_ready("g")
                joined = Call()
                request = JoinInput(
                    "", "m-1", None, "c", "/h", 30_000, 30_000, "consumer",
                    (("range", b"meta"),), requires_known_member_id=False,
                )  # fmt: skip
                assert coordinator.join("g", request, joined) is ErrorCode.NONE
                assert (await joined.wait()).leader_id == "m-1"
                synced = Call()
                assignment = {"m-1": b"all of it"}
                coordinator.sync("g", SyncInput("m-1", None, 1, None, None, assignment), synced)
                assert (await synced.wait()).assignment == b"all of it"
                for offset in range(50):
                    assert await commit(coordinator, "g", "m-1", 1, offset) is ErrorCode.NONE
                await coordinator.ensure_ready("simple")
                assert await commit(coordinator, "simple", "", -1, 7) is ErrorCode.NONE
            async with broker(*parts) as coordinator:
                assert coordinator.topic.exists
                assert coordinator.topic.name == OFFSETS_TOPIC
                for group in ("g", "simple"):
                    await coordinator.ensure_ready(group)
                assert (await committed(coordinator, "g")).offset == 49
                assert (await committed(coordinator, "simple")).metadata == "here"
                assert coordinator.heartbeat("g", "m-1", None, 1) is ErrorCode.NONE
                again = Call()
                coordinator.sync("g", SyncInput("m-1", None, 1, "consumer", "range"), again)
                assert (await again.wait()).assignment == b"all of it"
                assert await commit(coordinator, "g", "m-1", 1, 99) is ErrorCode.NONE
                assert (await committed(coordinator, "g")).offset == 99


async def test_records_that_span_several_entries_are_loaded(tmp_path):
    """A batch larger than an entry may be: it is read in several parts. (The simulation's worlds of
    short queues, where a group was never loaded again.)"""
    settings = LogSettings(entry_bytes_target=100, entry_bytes_max=100)
    with trio.fail_after(60):
        async with storage(tmp_path) as parts:
            for life in range(2):
                async with broker(*parts, settings) as coordinator:
                    await coordinator.ensure_ready("g")
                    if life == 0:
                        done = Call()
                        metadata = "".join(f"{number:x}" for number in range(300))
                        value = CommittedOffset(7, 1, metadata, coordinator.timers.wall_ms())
                        coordinator.commit("g", "", None, -1, [("t", 0, value)], done)
                        assert await done.wait() is ErrorCode.NONE
                    assert (await committed(coordinator, "g")).metadata == metadata


async def test_who_was_deposed_gives_no_member_its_assignment_again(tmp_path):
    """It does not know, and has offsets that are not the group's last. A member that led its
    commits to the new coordinator comes back when that is gone. (Two owners in the simulation.)"""
    request = JoinInput(
        "", "m-1", None, "c", "/h", 30_000, 30_000, "consumer",
        (("range", b"meta"),), requires_known_member_id=False,
    )  # fmt: skip
    with trio.fail_after(60):
        async with storage(tmp_path) as parts, broker(*parts) as old:
            await old.ensure_ready("g")
            joined, synced, again = Call(), Call(), Call()
            old.join("g", request, joined)
            await joined.wait()
            old.sync("g", SyncInput("m-1", None, 1, None, None, {"m-1": b"all"}), synced)
            assert (await synced.wait()).assignment == b"all"
            assert await commit(old, "g", "m-1", 1, 24) is ErrorCode.NONE
            async with broker(*parts) as new:
                await new.ensure_ready("g")
                assert await commit(new, "g", "m-1", 1, 26) is ErrorCode.NONE
            assert old.heartbeat("g", "m-1", None, 1) is ErrorCode.NONE, "it does not know"
            old.sync("g", SyncInput("m-1", None, 1, None, None), again)
            assert (await again.wait()).error is ErrorCode.NOT_COORDINATOR


async def test_a_commit_of_any_size_is_batches_of_bounded_size_a_turn_each(tmp_path, monkeypatch):
    """A group id of 32,000 characters stands in each record: 250 partitions are 8 MB, which held
    the loop for 22 ms in one piece."""
    group = "g" * 32_000
    sizes = []
    build_batch = coordinator_partition.build_batch

    def built(*arguments, **settings):
        batch = build_batch(*arguments, **settings)
        sizes.append(len(batch))
        return batch

    turns = []
    flush = coordinator_partition.CoordinatorPartition._flush

    def flushed(partition):
        before = len(sizes)
        flush(partition)
        turns.append(len(sizes) - before)

    monkeypatch.setattr(coordinator_partition, "build_batch", built)
    monkeypatch.setattr(coordinator_partition.CoordinatorPartition, "_flush", flushed)
    with trio.fail_after(60):
        async with storage(tmp_path) as parts:
            async with broker(*parts, compression=Compression.NONE) as coordinator:
                await coordinator.ensure_ready(group)
                now_ms = coordinator.timers.wall_ms()
                offsets = [("t", at, CommittedOffset(at, 1, "", now_ms)) for at in range(250)]
                done = Call()
                coordinator.commit(group, "", None, -1, offsets, done)
                assert await done.wait() is ErrorCode.NONE
            async with broker(*parts) as coordinator:
                await coordinator.ensure_ready(group)
                done = Call()
                coordinator.fetch(group, True, done)
                _, table = await done.wait()
                assert [table.get("t", at).offset for at in range(250)] == [*range(250)]
    assert sum(sizes) > 8_000_000
    assert max(sizes) < 600_000
    assert max(turns) == 1


async def test_what_many_groups_commit_at_once_is_built_in_as_many_turns_as_it_takes(
    tmp_path, monkeypatch
):
    built, put_off = [], []
    flush = coordinator_partition.CoordinatorPartition._flush

    def flushed(partition):
        turn, before = partition._env.turn, partition.batch_count
        spent = turn.spent_units
        flush(partition)
        (put_off if partition.batch_count == before else built).append(spent)

    monkeypatch.setattr(coordinator_partition.CoordinatorPartition, "_flush", flushed)
    with trio.fail_after(60):
        async with storage(tmp_path) as parts, broker(*parts) as coordinator:
            groups = [f"{number}" + "g" * 30_000 for number in range(16)]
            for group in groups:
                await coordinator.ensure_ready(group)
            now_ms = coordinator.timers.wall_ms()
            offsets = [("t", at, CommittedOffset(at, 1, "", now_ms)) for at in range(40)]
            calls = [Call() for _ in groups]
            for group, call in zip(groups, calls, strict=True):
                coordinator.commit(group, "", None, -1, offsets, call)
            assert {await call.wait() for call in calls} == {ErrorCode.NONE}
    assert max(built) <= SPENT_UNITS
    assert put_off, "the fourth partition of the first turn"
