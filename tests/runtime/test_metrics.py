"""The metrics endpoint, asked with the standard library's HTTP client and promtool."""

import gzip
import http.client
import shutil
import subprocess
from collections import Counter

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import (
    SAMPLES_PER_TURN,
    Metrics,
    counter,
    counters,
    gauge,
    gauges,
    sliced_counters,
    sliced_gauges,
    summary,
)


def families():
    yield counter("requests", "Requests.", 7)
    yield gauge("connections", "Open connections.", 3)
    yield counters("bytes_in", "Bytes in.", ["topic"], [(['quo"te\n'], 5), (["b"], 1 << 60)])
    yield gauges("log_size_bytes", "Size.", ["topic", "partition"], [(["a", "0"], 1.5)])
    yield summary("sync_seconds", "Syncs.", 10, 0.25)


@pytest.fixture
async def address(nursery):
    metrics = Metrics()
    metrics.register(families)
    return await nursery.start(metrics.serve, "127.0.0.1", 0)


async def get(address, path="/metrics", method="GET", headers=None):
    """(status, headers, body)"""

    def ask():
        connection = http.client.HTTPConnection(*address, timeout=10)
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), body

    return await trio.to_thread.run_sync(ask)


async def test_families_are_what_collectors_gave(address):
    status, headers, body = await get(address)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert samples == {
        ("requests_total",): 7,
        ("connections",): 3,
        ("bytes_in_total", ("topic", 'quo"te\n')): 5,
        ("bytes_in_total", ("topic", "b")): 1 << 60,
        ("log_size_bytes", ("partition", "0"), ("topic", "a")): 1.5,
        ("sync_seconds_count",): 10,
        ("sync_seconds_sum",): 0.25,
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_finds_nothing(address):
    _, _, body = await get(address)
    result = await trio.to_thread.run_sync(
        lambda: subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True)
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


async def test_gzip_head_and_refusals(address):
    plain = (await get(address))[2]
    status, headers, body = await get(address, headers={"Accept-Encoding": "br, gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == plain
    status, headers, body = await get(address, method="HEAD")
    assert (status, int(headers["Content-Length"]), body) == (200, len(plain), b"")
    assert (await get(address, "/health"))[2] == b"ok\n"
    assert (await get(address, "/other"))[0] == 404
    assert (await get(address, method="POST"))[0] == 405


async def test_odd_requests_end(address):
    for data in (b"\x00\x01\r\n\r\n", b"GET /metrics\r\n\r\n", b"A" * 100_000, b"GET / HT"):
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            try:
                await stream.send_all(data)
                await stream.send_eof()
                with trio.fail_after(5):
                    while await stream.receive_some(1000):
                        pass
            except trio.BrokenResourceError:
                assert len(data) > 16 * 1024  # cut off while it was still sending
    assert (await get(address, "/health"))[0] == 200


async def test_a_failing_collector_is_said_and_survived(nursery, caplog):
    metrics = Metrics()
    metrics.register(lambda: 1 / 0)
    address = await nursery.start(metrics.serve, "127.0.0.1", 0)
    assert (await get(address))[0] == 500
    assert "metrics failed" in caplog.text


async def test_others_have_the_loop_while_very_many_samples_are_read(nursery):
    """As many turns of the loop as there are slices; and all of it is told."""
    count = 4 * SAMPLES_PER_TURN
    metrics = Metrics()
    metrics.register(lambda: sliced_gauges("size", "Size.", ("n",), samples()))
    metrics.register(lambda: sliced_counters("seen", "Seen.", ("n",), samples()))
    read_in = Counter()
    turns = 0

    def samples():
        for number in range(count):
            read_in[turns] += 1
            yield (str(number),), number

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(others)
    text = (await metrics.render()).decode()
    nursery.cancel_scope.cancel()
    assert read_in.total() == 2 * count
    assert max(read_in.values()) <= 2 * SAMPLES_PER_TURN, "of tasks in a pass any is first"
    for name in ("size", "seen_total"):
        assert text.count(f"\n{name}{{") == count
