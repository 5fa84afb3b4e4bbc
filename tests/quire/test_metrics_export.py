"""What is exported: a real bookie's and a real dispatcher's figures, and names promtool accepts."""

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
from broker.log.partition import State
from quire import metrics_export
from runtime.env import Env, RealClock
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
    metrics.register(metrics_export.process_collector())
    metrics.register(metrics_export.disk_collector(disk))
    metrics.register(metrics_export.bookie_collector(bookie))
    text = await metrics.render()
    values = figures(text)
    assert values["bookie_journal_JOURNAL_ADD_ENTRY_count",] >= 10
    assert values["bookie_journal_JOURNAL_SYNC_count",] >= 1
    assert values["bookie_journal_JOURNAL_WRITE_BYTES",] > 10_000
    assert values["bookie_write_cache_count",] == 10
    assert values["bookie_ledgers_count",] == 1
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
        )
        for topic, partition, state in (
            ("a", 0, State.ONLINE),
            ("a", 1, State.LOADING),
            ('we"ird', 2, State.ONLINE),
        )
    ]
    metrics = Metrics()
    metrics.register(metrics_export.request_collector(dispatcher))
    metrics.register(metrics_export.partition_collector(SimpleNamespace(all=lambda: iter(held))))
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
        ("kafka_server_socketservermetrics_connection_count",): 0,
    }
    assert expected.items() <= values.items()
    await check_with_promtool(text)
