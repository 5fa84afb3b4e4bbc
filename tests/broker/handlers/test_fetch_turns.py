"""One Fetch of tens of megabytes, as fetch.max.bytes lets a client ask for: it is given some of
them. A turn is measured by the thread's processor time, as in tests/broker/test_loop_turns.py."""

import socket
import struct
import time

import pytest
import trio
import trio.testing

from broker.api import ANSWER_BYTES_MAX
from runtime.loop_watch import LIMIT_SECONDS, watch_of_run
from tests.broker.conftest import fetch_request, make_batch
from tests.turns import check_turn
from wire.kafka.headers import encode_request

pytestmark = pytest.mark.turns

BATCHES = 60
ROUNDS = 3


def ask(address, request):
    """In a thread, so that the loop's time is the server's. How long the answer was."""
    with socket.create_connection(address, timeout=20) as one:
        one.sendall(request)
        answer = one.makefile("rb")
        (length,) = struct.unpack(">i", answer.read(4))
        return len(answer.read(length))


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
