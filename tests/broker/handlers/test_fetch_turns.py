"""One Fetch of tens of megabytes, as fetch.max.bytes lets a client ask for: it is given some of
them; and hundreds, of very many tiny batches, which come together. A turn is measured by the
thread's processor time, as in tests/broker/test_loop_turns.py."""

import gc
import socket
import struct
import time

import pytest
import trio
import trio.testing

from broker.api import ANSWER_BYTES_MAX
from quire.role import GC_THRESHOLDS
from runtime.loop_watch import LIMIT_SECONDS, watch_of_run
from tests.broker.conftest import fetch_request, make_batch
from tests.turns import check_turn
from wire.kafka.headers import encode_request

pytestmark = pytest.mark.turns

BATCHES = 60
ROUNDS = 3
TINY_BATCHES, PIPELINED = 1000, 200


def ask(address, request, count=1):
    """In a thread, so that the loop's time is the server's. How long the last answer was."""
    with socket.create_connection(address, timeout=20) as one:
        one.sendall(request * count)
        answer = one.makefile("rb")
        for _ in range(count):
            (length,) = struct.unpack(">i", answer.read(4))
            length = len(answer.read(length))
        return length


@pytest.fixture
def servers_collector():
    """Cycles are looked for as rarely as a server does."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def test_a_fetch_of_40_megabytes_does_not_hold_the_loop(start_server):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("a")
    for _ in range(BATCHES):
        await client.produce("a", make_batch([b"x" * 900_000]))
    body = fetch_request(("a", 0, 0), max_bytes=1 << 30, partition_max_bytes=1 << 30)
    request = encode_request(body, 12, 1, "tests")
    watch = watch_of_run()
    watch.clock = time.thread_time
    longest = []
    for _ in range(ROUNDS):
        await trio.testing.wait_all_tasks_blocked()
        watch.histogram.max_seconds = 0.0
        length = await trio.to_thread.run_sync(ask, server.address, request)
        assert ANSWER_BYTES_MAX // 2 < length < ANSWER_BYTES_MAX + 10_000
        longest.append(watch.histogram.max_seconds)
    print(f"{[f'{seconds * 1000:.1f} ms' for seconds in longest]}")
    check_turn(min(longest), LIMIT_SECONDS)


async def test_pipelined_fetches_of_tiny_batches_do_not_hold_the_loop(
    start_server, servers_collector
):
    """They were charged by their bytes, and one turn had all of them: 340 ms."""
    server = await start_server()
    client = await server.connect()
    await client.create_topic("a")
    for _ in range(TINY_BATCHES):
        await client.produce("a", make_batch([b"x"]))
    body = fetch_request(("a", 0, 0), max_bytes=1 << 20, partition_max_bytes=1 << 20)
    request = encode_request(body, 12, 1, "tests")
    watch = watch_of_run()
    watch.clock = time.thread_time
    longest = []
    for _ in range(ROUNDS):
        await trio.testing.wait_all_tasks_blocked()
        watch.histogram.max_seconds = 0.0
        await trio.to_thread.run_sync(ask, server.address, request, PIPELINED)
        longest.append(watch.histogram.max_seconds)
    print(f"{[f'{seconds * 1000:.1f} ms' for seconds in longest]}")
    # A turn ends with what spends it, and what it sends comes on top.
    check_turn(min(longest), 3 * LIMIT_SECONDS)
