"""A crowd that connects and says next to nothing (attack 2): what it costs, and who is served."""

import os
import resource
import subprocess
import sys

import pytest
import trio

from wire.kafka.messages import MetadataRequest

CROWD = 10_000
#: A connection's objects here, and what the allocator adds.
BYTES_EACH_MAX = 8 << 10
#: Connects, sends the first bytes of a frame that never comes, says so, and waits to be told.
PROGRAM = f"""
import socket, sys
address = sys.argv[1], int(sys.argv[2])
crowd = []
for number in range({CROWD}):
    crowd.append(socket.create_connection(address))
    if number % 2:
        crowd[-1].sendall(b"\\0\\0\\1"[: 1 + number % 3])
print("here", flush=True)
sys.stdin.read()
"""


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture
async def crowd():
    """crowd(server): all are connected when it returns; they leave at the end."""
    processes = []

    async def come(server):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < CROWD + 1000:
            pytest.skip("not so many descriptors")
        host, port = server.address
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", PROGRAM, host, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        with trio.fail_after(60):
            assert await process.stdout.receive_some(10) == b"here\n"

    yield come
    for process in processes:
        process.kill()
        await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()


async def test_10000_half_open_connections_leave_others_served(start_server, crowd, wait_until):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    connections = server.parts["Dispatcher"].connections
    before = resident_bytes()
    await crowd(server)
    await wait_until(lambda: len(connections) == CROWD + 1, 30)
    taken = resident_bytes() - before
    assert taken < CROWD * BYTES_EACH_MAX, f"{taken >> 20} MiB"
    with trio.fail_after(5):
        for _ in range(100):
            assert (await client.produce("t", [b"x"])).error_code == 0
        late = await server.connect()
        assert (await late.call(MetadataRequest())).brokers


async def test_at_max_connections_a_crowd_costs_no_more_than_that(start_server, crowd, wait_until):
    """It stands in the backlog; and once it is gone others come in."""
    server = await start_server({"max.connections": "100"})
    client = await server.connect()
    await client.create_topic("t")
    connections = server.parts["Dispatcher"].connections
    with trio.move_on_after(3):
        await crowd(server)  # the system takes no more than the backlog
    assert len(connections) == 100
    with trio.fail_after(5):
        for _ in range(100):
            assert (await client.produce("t", [b"x"])).error_code == 0
