"""Steps of handshakes that wait for the thread which makes the long ones, and whose clients leave
meanwhile."""

import contextlib
import socket
import ssl
import struct

import trio

from runtime.tls import HANDSHAKE_INLINE_BYTES
from tests.broker.security.tls.conftest import rsa_key

CLIENTS = 600


def long_hello():
    """A client's first message of 16 KiB: names of protocols that nobody speaks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([f"{number:0250d}" for number in range(58)])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def come_and_go(address, hello):
    for _ in range(CLIENTS):
        one = socket.create_connection(address, timeout=20)
        one.sendall(hello)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()


async def test_nothing_is_kept_for_the_thread_of_who_left(start_tls, authority, wait_until):
    """A step takes the thread milliseconds; a client that comes and goes takes less."""
    world = await start_tls(authority.made("CN=server", rsa_key(4096)))
    hello = long_hello()
    assert len(hello) > HANDSHAKE_INLINE_BYTES
    kept = []
    done = trio.Event()

    async def look():
        while not done.is_set():
            kept.append(world.tls.aside.waiting_count - world.tls.waiting_count)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.to_thread.run_sync(come_and_go, world.server.address, hello)
        done.set()
    await wait_until(lambda: world.tls.waiting_count == 0)
    assert max(kept) <= 0
    assert world.tls.aside.waiting_count == 0


async def test_one_connection_too_many_is_closed_and_takes_nobody_his_place(start_tls, wait_until):
    world = await start_tls(settings={"max.connections.per.ip": "2"})
    first = await world.connect()
    waiting = await trio.open_tcp_stream(*world.server.address)
    await wait_until(lambda: world.tls.waiting_count == 1)
    for _ in range(3):
        one = await trio.open_tcp_stream(*world.server.address)
        with trio.fail_after(5):
            assert await one.receive_some(1) == b""
        await one.aclose()
        assert world.tls.waiting_count == 1
    await waiting.aclose()
    await wait_until(lambda: world.tls.waiting_count == 0)
    await first.aclose()
    await wait_until(lambda: world.principals == [])
    await world.connect()
