"""What is exported: a real bookie's and a real dispatcher's figures, and names promtool accepts."""

import math
import random
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from broker.api import Api
from broker.dispatch import Dispatcher
from broker.log.append.producer_store import Room
from broker.log.locks.lock_table_core import LockTable
from broker.log.locks.partition_locks import LockCounts
from broker.log.partition import State
from ledger.statistics import LedgerStatistics
from quire.metrics.bookie import bookie_collector
from quire.metrics.broker import partition_collector, request_collector
from quire.metrics.client import ledger_client_collector
from quire.metrics.latency import RecentLatencies, java_summary, quantile
from quire.metrics.process import disk_collector, loop_collector, process_collector
from runtime.env import Env, RealClock
from runtime.histogram import LatencyHistogram
from runtime.loop_watch import watch_of_run
from runtime.metrics import Metrics
from runtime.real_disk import RealDisk
from runtime.turn import Turn
from wire.bookkeeper.status import Status
from wire.kafka.api_keys import ApiKey


def figures(text):
    """Sample values by name and labels' values, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def check_with_promtool(text):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    result = await trio.to_thread.run_sync(
        lambda: subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    )
    assert (result.returncode, result.stderr) == (0, b"")


async def test_a_bookie_that_was_written_to(tmp_path, nursery):
    disk = RealDisk()
    turn = Turn()
    env = Env(clock=RealClock(), rng=random.Random(1), net=None, disk=disk, turn=turn)
    config = BookieConfig(
        bookie_id="b1",
        instance_id="",
        journal_directory=str(tmp_path / "journal"),
        ledger_directory=str(tmp_path / "ledgers"),
        journal_size_bytes=16 << 20,
    )
    bookie = Bookie(config, env)
    turn.watch = watch_of_run()
    turn.watch.start()
    nursery.start_soon(turn.serve)
    await nursery.start(bookie.run)
    statuses = []
    written = trio.Event()

    def done(status):
        statuses.append(status)
        if len(statuses) == 10:
            written.set()

    for entry_id in range(10):
        head = b"".join(n.to_bytes(8, "big", signed=True) for n in (7, entry_id, -1, 0))
        bookie.add_entry(7, entry_id, bytes(20), [head, bytes(1000)], 0, done)
    with trio.fail_after(10):
        await written.wait()
    assert set(statuses) == {Status.EOK}

    metrics = Metrics()
    metrics.register(process_collector())
    metrics.register(loop_collector(turn.watch))
    metrics.register(disk_collector(disk))
    metrics.register(bookie_collector(bookie, config, env.clock))
    text = await metrics.render()
    values = figures(text)
    assert values["bookie_journal_JOURNAL_ADD_ENTRY_count", "true"] >= 10
    assert values["bookie_journal_JOURNAL_SYNC_count", "true"] >= 1
    assert 0 < values["bookie_journal_JOURNAL_SYNC", "0.99", "true"] < 10_000
    assert values["quire_bookie_journal_add_seconds_bucket", "+Inf"] >= 10
    assert values["bookie_journal_JOURNAL_WRITE_BYTES",] > 10_000
    assert values["bookie_write_cache_count",] == 10
    assert values["bookie_ledgers_count",] == 1
    assert values["quire_loop_turn_seconds_bucket", "+Inf"] >= 10
    assert values["process_resident_memory_bytes",] > 1e6
    syncs = disk.statistics()
    assert syncs.syncs_inline + syncs.syncs_threaded > 0
    assert values["quire_disk_syncs_total", "loop"] == syncs.syncs_inline
    await check_with_promtool(text)
    nursery.cancel_scope.cancel()


async def test_requests_and_partitions():
    apis = [
        Api(key, 0, 0, lambda request: None)
        for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS)
    ]
    async with trio.open_nursery() as nursery:
        dispatcher = Dispatcher(apis, nursery, Turn())
    dispatcher.counts[ApiKey.PRODUCE][:] = [5, 0]
    dispatcher.counts[ApiKey.LIST_OFFSETS][:] = [3, 2]
    # Only the attributes that PartitionLog shows to everybody.
    held = [
        SimpleNamespace(
            topic=SimpleNamespace(name=topic),
            partition=partition,
            size_bytes=100 * partition,
            log_start_offset=1,
            log_end_offset=9,
            bytes_in=1000,
            batches_in=4,
            state=state,
            locks=SimpleNamespace(table=LockTable(1024, -1)),
        )
        for topic, partition, state in (
            ("a", 0, State.ONLINE),
            ("a", 1, State.LOADING),
            ('we"ird', 2, State.ONLINE),
        )
    ]
    metrics = Metrics()
    metrics.register(request_collector(dispatcher))
    room = Room(100)
    room.count, room.refused_count = 7, 3
    counts = LockCounts(accepted=6, conflicts=5, malformed=1)
    checks = SimpleNamespace(inline_count=50, delayed_count=4, threaded_count=2, lock_counts=counts)
    logs = SimpleNamespace(all=lambda: iter(held), producers_room=room, checks=checks)
    metrics.register(partition_collector(logs))
    text = await metrics.render()
    values = figures(text)
    expected = {
        ("kafka_network_requestmetrics_requests_total", "Produce"): 5,
        ("kafka_network_requestmetrics_requests_total", "ListOffsets"): 3,
        ("quire_request_failures_total", "ListOffsets"): 2,
        ("kafka_server_brokertopicmetrics_totalproducerequests_total",): 5,
        ("kafka_server_brokertopicmetrics_totalfetchrequests_total",): 0,
        ("kafka_server_brokertopicmetrics_bytesin_total", "a"): 2000,
        ("kafka_log_log_size", "2", 'we"ird'): 200,
        ("kafka_log_log_logstartoffset", "0", "a"): 1,
        ("kafka_log_log_logendoffset", "1", "a"): 9,
        ("kafka_controller_kafkacontroller_globaltopiccount",): 2,
        ("kafka_controller_kafkacontroller_offlinepartitionscount",): 1,
        ("kafka_server_replicamanager_leadercount",): 2,
        ("kafka_server_replicamanager_produceridcount",): 7,
        ("quire_producers_refused_total",): 3,
        ("quire_batches_checked_total", "inline"): 50,
        ("quire_batches_checked_total", "worker"): 2,
        ("quire_locks_records_total", "accepted"): 6,
        ("quire_locks_records_total", "conflict"): 5,
        ("quire_locks_records_total", "malformed"): 1,
        ("quire_locks_table_bytes",): 3 * 8,
        ("kafka_server_socketservermetrics_connection_count",): 0,
    }
    assert expected.items() <= values.items()
    await check_with_promtool(text)


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


def test_quantiles_are_of_what_happened_lately():
    clock, histogram = Clock(), LatencyHistogram()
    recent = RecentLatencies(clock)
    assert sum(recent.counts("x", histogram)) == 0
    histogram.record(0.004, 99)
    histogram.record(2.0)
    assert quantile(recent.counts("x", histogram), 0.5, histogram.max_seconds) == 0.005
    assert quantile(recent.counts("x", histogram), 1.0, histogram.max_seconds) == 2.0
    for _ in range(3):  # windows pass
        clock.now += 60
        recent.counts("x", histogram)
    assert sum(recent.counts("x", histogram)) == 0
    histogram.record(0.0002, 10)
    assert quantile(recent.counts("x", histogram), 1.0, histogram.max_seconds) == 0.00025
    clock.now += 3600  # nobody asked for long: all since then
    assert sum(recent.counts("x", histogram)) == 10
    assert math.isnan(quantile([0, 0], 0.5, 1.0))


async def test_a_summary_is_as_bookkeeper_writes_it():
    histogram = LatencyHistogram()
    histogram.record(0.002, 4)
    metrics = Metrics()
    family = java_summary("bookie_x", "X.", histogram, RecentLatencies(Clock()), failures=2)
    metrics.register(lambda: [family])
    values = figures(await metrics.render())
    assert values["bookie_x", "0.5", "true"] == 2.0  # milliseconds
    assert values["bookie_x_count", "true"] == 4
    assert values["bookie_x_sum", "true"] == 8.0
    assert values["bookie_x_count", "false"] == 2


async def test_the_ledger_client():
    now = LedgerStatistics(adds=7, add_failures=1, reads=3, ensemble_changes=2)
    now.create.latency.record(0.003)
    now.open.failures = 4
    metrics = Metrics()
    metrics.register(ledger_client_collector(now, Clock()))
    text = await metrics.render()
    values = figures(text)
    assert values["bookkeeper_client_ADD_ENTRY_count", "true"] == 7
    assert values["bookkeeper_client_ADD_ENTRY_count", "false"] == 1
    assert values["bookkeeper_client_LEDGER_CREATE_count", "true"] == 1
    assert values["bookkeeper_client_LEDGER_OPEN_count", "false"] == 4
    assert values["bookkeeper_client_NUM_ENSEMBLE_CHANGE",] == 2
    await check_with_promtool(text)
