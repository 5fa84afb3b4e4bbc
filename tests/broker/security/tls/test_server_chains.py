"""Long chains of certificates, and a new handshake in the middle (attack 10): what they meet, and
what they take of the loop."""

import contextlib
import logging
import socket
import ssl
import subprocess
import time
from functools import partial

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.serialization import Encoding

from runtime.loop_watch import watch_of_run
from runtime.tls import HANDSHAKE_BYTES_MAX
from tests.broker.security.tls.conftest import Authority, Made
from tests.turns import check_turn
from wire.kafka.headers import encode_request
from wire.kafka.messages import ApiVersionsRequest

HELLO = ApiVersionsRequest("tests", "1")
#: As tests/broker/security/tls/test_server_turns.py has it, of one handshake.
TURN_SECONDS_MAX = 0.01
#: Of authorities, in 16 KiB; and what they may take of the loop.
FITTING_COUNT = 35
CHAIN_TURN_SECONDS_MAX = 0.005
ROUNDS = 3
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Chain(Made):
    """A client's certificate below so many authorities, each made by the one before it."""

    def __init__(self, root, count):
        self.above = []
        signer = root
        for number in range(count):
            signer = signer.authority(f"CN=authority {number}")
            self.above.insert(0, signer.certificate)
        made = signer.made("CN=deep")
        super().__init__(made.key, made.certificate, made.authority)

    @property
    def chain_pem(self):
        pems = [one.public_bytes(Encoding.PEM) for one in (self.certificate, *self.above)]
        return b"".join(pems)


@pytest.fixture
def refused(caplog):
    caplog.set_level(logging.INFO)

    def reasons():
        return [one.args["reason"] for one in caplog.records if one.getMessage() == "tls_refused"]

    return reasons


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [1, 10])
async def test_a_chain_as_long_as_java_has_them_is_let_in(start_tls, authority, version, count):
    world = await start_tls(settings={"ssl.client.auth": "required"})
    limits = {"minimum_version": version, "maximum_version": version}
    client = await world.connect(Chain(authority, count), **limits)
    assert (await client.call(HELLO, 3)).error_code == 0
    assert world.principals == ["User:CN=deep"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("whose", ["ours", "a stranger's"])
@pytest.mark.parametrize("count", [100, 200])
async def test_a_chain_without_end_is_refused_before_it_is_read(
    start_tls, authority, refused, wait_until, version, whose, count
):
    """Even if the authority that is believed is at its end. OpenSSL would read, and check, up to a
    hundred of them at once."""
    root = authority if whose == "ours" else Authority("CN=other")
    world = await start_tls(settings={"ssl.client.auth": "required"})
    context = world.context(Chain(root, count), minimum_version=version, maximum_version=version)
    watch = watch_of_run()
    watch.clock = time.thread_time
    longest = []
    for number in range(1, ROUNDS + 1):
        await trio.testing.wait_all_tasks_blocked()
        watch.histogram.max_seconds = 0.0
        await trio.to_thread.run_sync(show, world.server.address, context)
        await wait_until(lambda number=number: len(refused()) == number)
        longest.append(watch.histogram.max_seconds)
    assert set(refused()) == {f"a handshake of more than {HANDSHAKE_BYTES_MAX} bytes"}
    assert world.tls.handshakes_count == 0
    check_turn(min(longest), TURN_SECONDS_MAX)
    client = await world.connect(authority.made("CN=alice"))
    assert (await client.call(HELLO, 3)).error_code == 0


@pytest.mark.turns
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("whose", ["ours", "a stranger's"])
async def test_a_chain_that_just_fits_is_checked_beside_the_loop(
    start_tls, authority, refused, wait_until, version, whose
):
    """Each authority's public key checks the next one's signature: 6 ms, which a thread takes."""
    is_ours = whose == "ours"
    root = authority if is_ours else Authority("CN=other")
    world = await start_tls(settings={"ssl.client.auth": "required"})
    context = world.context(
        Chain(root, FITTING_COUNT), minimum_version=version, maximum_version=version
    )
    watch = watch_of_run()
    watch.clock = time.thread_time
    longest = []
    for number in range(1, ROUNDS + 1):
        await trio.testing.wait_all_tasks_blocked()
        watch.histogram.max_seconds = 0.0
        await trio.to_thread.run_sync(greet, world.server.address, context)
        await wait_until(
            lambda number=number: world.tls.handshakes_count + len(refused()) == number
        )
        longest.append(watch.histogram.max_seconds)
    print(f"{version.name}, {whose}: {[f'{seconds * 1000:.1f} ms' for seconds in longest]}")
    assert world.tls.handshakes_count == (ROUNDS if is_ours else 0)
    assert all("certificate verify failed" in reason for reason in refused())
    check_turn(min(longest), CHAIN_TURN_SECONDS_MAX)


def show(address, context):
    """In a thread of its own, so that the loop's time is the server's. The server goes away in the
    middle of it."""
    below = socket.create_connection(address, timeout=20)
    with (
        contextlib.suppress(OSError),
        context.wrap_socket(below, server_hostname="localhost") as one,
    ):
        one.recv(1)


def greet(address, context):
    """In a thread, too; stays until it has an answer, or is refused."""
    below = socket.create_connection(address, timeout=20)
    with (
        contextlib.suppress(OSError),
        context.wrap_socket(below, server_hostname="localhost") as one,
    ):
        one.sendall(encode_request(HELLO, 3, 1, "tests"))
        one.recv(4)


async def test_what_follows_a_handshake_at_once_is_served(start_tls, requests):
    """In the same packets, and more of it than a handshake may have: a client of TLS 1.3 is done
    before the server."""
    world = await start_tls()
    client = await world.connect()
    await client.create_topic("t", 1)
    frame = client.frame(requests.produce(("t", 0, [b"x" * 2 * HANDSHAKE_BYTES_MAX])), 9)

    def run():
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = world.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(world.server.address, timeout=20) as below:
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
                below.sendall(outgoing.read())
                incoming.write(below.recv(1 << 16))
            tls.write(frame)
            below.sendall(outgoing.read())
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    return tls.read(4)
                incoming.write(below.recv(1 << 16))

    assert int.from_bytes(await trio.to_thread.run_sync(run)) > 0
    assert (await (await world.connect()).fetch("t", 0)).high_watermark == 1


async def test_a_handshake_anew_is_refused(start_tls, nursery, wait_until):
    """Of TLS 1.2; there is none in 1.3. OpenSSL's client asks for one by R."""
    world = await start_tls()
    host, port = world.server.address
    command = ["openssl", "s_client", "-tls1_2", "-connect", f"{host}:{port}"]
    with trio.fail_after(30):
        start = partial(trio.run_process, stdin=subprocess.PIPE, check=False)
        pipes = partial(start, capture_stdout=True, capture_stderr=True)
        client = await nursery.start(partial(pipes, command))
        await wait_until(lambda: world.tls.handshakes_count == 1)
        await client.stdin.send_all(b"R\n")
        assert await client.wait() != 0
    await wait_until(lambda: not world.principals)
    assert world.tls.handshakes_count == 1
