"""One Fetch of tens of megabytes, as fetch.max.bytes lets a client ask for. A turn is measured by
the thread's processor time, as in tests/broker/test_loop_turns.py."""

import socket
import time

import pytest
import trio
import trio.testing

from runtime.loop_watch import LIMIT_SECONDS, watch_of_run
from tests.broker.conftest import fetch_request, make_batch
from wire.kafka.headers import encode_request

pytestmark = pytest.mark.turns

BATCHES = 60
ANSWER_BYTES = 40_000_000
ROUNDS = 3


def ask(address, request):
    """In a thread, so that the loop's time is the server's."""
    with socket.create_connection(address, timeout=20) as one:
        one.sendall(request)
        received = 0
        while received < ANSWER_BYTES:
            received += len(one.recv(1 << 20))


@pytest.mark.xfail(
    strict=True,
    reason="all of an answer's batches are copied in one turn: 17 ms for 40 MB, 65 the first time",
)
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
        await trio.to_thread.run_sync(ask, server.address, request)
        longest.append(watch.histogram.max_seconds)
    print(f"{[f'{seconds * 1000:.1f} ms' for seconds in longest]}")
    assert min(longest) < LIMIT_SECONDS
