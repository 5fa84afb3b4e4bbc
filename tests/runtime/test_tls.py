"""The TLS layer: over sockets against Python's ssl, and over pipes of our own cut anywhere."""

import socket
import ssl
import subprocess
from contextlib import suppress
from functools import partial

import outcome
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime import tls as tls_module
from runtime.poller import Poller
from runtime.real_net import RealNet
from runtime.spread import Spread
from runtime.timers import Timers
from runtime.tls import (
    ENCRYPTED_BYTES_MAX,
    HANDSHAKE_CLOSED,
    PIECE_BYTES,
    UNREAD_ANSWERS_BYTES_MAX,
    Tls,
    TlsTransport,
    tls_factory,
    upgrade,
)
from runtime.tls_context import client_context, server_context
from runtime.turn import SPENT_UNITS, Turn


def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """An authority, and by it a server's and a client's certificates: {name: path}."""
    folder = tmp_path_factory.mktemp("pem")
    paths = {}

    def path(name):
        paths[name] = str(folder / f"{name}.pem")
        return paths[name]

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        "req", "-x509", *curve, "-keyout", path("ca-key"), "-out", path("ca"),
        "-subj", "/CN=authority", "-days", "2",
    )  # fmt: skip
    for name in ("server", "client"):
        request, extensions = str(folder / "request"), folder / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl(
            "req", *curve, "-keyout", path(f"{name}-key"), "-out", request, "-subj", f"/CN={name}"
        )
        _openssl(
            "x509", "-req", "-in", request, "-CA", paths["ca"], "-CAkey", paths["ca-key"],
            "-CAcreateserial", "-out", path(name), "-days", "2", "-extfile", str(extensions),
        )  # fmt: skip
    return paths


def _server(pem, **options):
    return server_context(certificate_path=pem["server"], key_path=pem["server-key"], **options)


class Keeper:
    """Keeps what came; `is_echo` sends it back."""

    def __init__(self, transport, *, is_echo=False, buffer_bytes=4096):
        self.transport = transport
        self.is_echo = is_echo
        self.buffer = bytearray(buffer_bytes)
        self.got = bytearray()
        self.is_closed = False
        self.drains = 0

    def receive_buffer(self):
        return memoryview(self.buffer)

    def received(self, count):
        data = bytes(self.buffer[:count])
        self.got += data
        if self.is_echo:
            self.transport.write([data])

    def drained(self):
        self.drains += 1

    def closed(self):
        assert not self.is_closed
        self.is_closed = True


class Pipe:
    """A transport whose bytes a test carries over, in pieces as it likes."""

    peer = "pipe"

    def __init__(self):
        self.connection = None
        self.output = bytearray()
        self.is_paused = False
        self.is_closing = False

    @property
    def unsent_bytes(self):
        return len(self.output)

    @property
    def is_blocked(self):
        return bool(self.output)

    def attach(self, connection):
        self.connection = connection

    def write(self, buffers):
        assert not self.is_closing
        for buffer in buffers:
            self.output += buffer

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def close(self):
        self.is_closing = True

    def feed(self, data):
        """As a driver does; what it would not read is given back."""
        view = memoryview(data)
        while view and not self.is_paused:
            buffer = self.connection.receive_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            self.connection.received(count)
            view = view[count:]
        return bytes(view)


class Pair:
    """A client and a server on two pipes, in a world without a loop."""

    def __init__(self, client, server, *, checks="localhost", echo=True, units=0, aside=None):
        """`units`: what a handshake of the server costs its turn."""
        self.turn = Turn()
        self.timers = Timers()
        self.pipes = Pipe(), Pipe()
        self.layers = [
            TlsTransport(
                pipe,
                Tls(
                    context,
                    self.turn,
                    self.timers,
                    handshakes=Spread(self.turn, units) if units else None,
                    aside=aside,
                ),
                server_side=is_server,
                server_hostname=None if is_server else checks,
            )
            for pipe, context, is_server in zip(
                self.pipes, (client, server), (False, True), strict=True
            )
        ]
        self.ends = [
            Keeper(self.layers[0]),
            Keeper(self.layers[1], is_echo=echo),
        ]
        for pipe, layer, end in zip(self.pipes, self.layers, self.ends, strict=True):
            pipe.attach(layer)
            layer.attach(end)
        self.left = [b"", b""]
        self.turn.run()

    def carry(self, size):
        """`size` bytes each way; whether anything moved."""
        moved = False
        for index in (0, 1):
            source, target = self.pipes[index], self.pipes[1 - index]
            data = self.left[index] + bytes(source.output[:size])
            moved |= bool(source.output)
            del source.output[:size]
            self.turn.begin()
            if not target.is_closing:
                rest = target.feed(data)
                moved |= len(rest) < len(data)
                self.left[index] = rest
            if not source.output and not source.is_closing:
                source.connection.drained()
            self.turn.run()
        return moved

    def settle(self, size=1 << 20):
        while self.carry(size):
            pass


@pytest.fixture(scope="module")
def contexts(pem):
    return client_context(trust_path=pem["ca"]), _server(pem)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(st.binary(max_size=400), max_size=12),
    large=st.integers(0, 70_000),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=20),
)
def test_whatever_is_cut_wherever_arrives_in_order(contexts, pieces, large, cuts):
    async def run():
        pair = Pair(*contexts)
        data = b"".join(pieces) + bytes(large)
        pair.layers[0].write([*pieces, bytes(large)])
        pair.turn.run()
        position = 0
        while pair.carry(cuts[position % len(cuts)]):
            position += 1
            if position > 3 * len(cuts):
                pair.settle(16 << 10)
        assert pair.ends[1].got == data
        assert pair.ends[0].got == data
        assert pair.layers[0].unsent_bytes == 0

    trio.run(run)


async def test_a_pause_holds_back_and_a_resume_goes_on(contexts):
    pair = Pair(*contexts, echo=False)
    pair.settle()
    server = pair.layers[1]
    server.pause_reading()
    data = bytes(range(256)) * 2000
    pair.layers[0].write([data])
    pair.turn.run()
    pair.settle()
    assert pair.pipes[1].is_paused
    assert not pair.ends[1].got
    server.resume_reading()
    pair.turn.run()
    pair.settle()
    assert pair.ends[1].got == data


async def test_a_pause_in_the_middle_of_what_was_decrypted(contexts):
    """One record holds much more than the connection wants."""
    pair = Pair(*contexts, echo=False)
    end = pair.ends[1]
    end.buffer = bytearray(100)
    received = end.received

    def pausing(count):
        received(count)
        end.transport.pause_reading()

    end.received = pausing
    pair.layers[0].write([bytes(1000)])
    pair.turn.run()
    pair.settle()
    for taken in range(100, 1001, 100):
        assert len(end.got) == taken
        pair.layers[1].resume_reading()
        pair.turn.run()
        pair.settle()
    assert len(end.got) == 1000


async def test_a_slow_peer_costs_a_limited_amount_of_ciphertext(contexts):
    pair = Pair(*contexts, echo=False)
    pair.settle()
    data = bytes(8 << 20)
    pair.layers[0].write([data] * 4)
    pair.turn.run()
    assert len(pair.pipes[0].output) < (2 << 20) + (1 << 16)
    assert pair.layers[0].unsent_bytes > 32 << 20
    pair.settle()
    assert len(pair.ends[1].got) == 32 << 20
    assert pair.ends[0].drains >= 1
    assert pair.layers[0].unsent_bytes == 0


async def test_what_is_encrypted_counts_and_in_a_spent_turn_it_comes_later(contexts, nursery):
    pair = Pair(*contexts, echo=False)
    pair.settle()
    data = bytes(range(256)) * 1000
    pair.turn.begin()
    pair.layers[0].write([data])
    pair.turn.run()
    assert pair.turn.spent_units == len(data) >> 10
    pair.settle()
    pair.turn.begin()
    pair.turn.spent_units = SPENT_UNITS + 1
    pair.layers[0].write([data])
    pair.turn.run()
    assert not pair.pipes[0].output
    nursery.start_soon(pair.turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    pair.settle()
    assert pair.ends[1].got == data * 2


async def test_handshakes_wait_for_a_turn_with_room_and_nothing_is_read_meanwhile(
    contexts, nursery
):
    pair = Pair(*contexts, units=SPENT_UNITS + 1)
    server, pipe = pair.layers[1], pair.pipes[1]
    hello = bytes(pair.pipes[0].output)
    pair.pipes[0].output.clear()
    pair.turn.begin()
    pair.turn.spent_units = SPENT_UNITS + 1
    pipe.feed(hello)
    pair.turn.run()
    assert pipe.is_paused
    assert not pipe.output
    nursery.start_soon(pair.turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    assert pipe.output
    assert not pipe.is_paused
    pair.layers[0].write([b"hello"])
    for _ in range(10):
        await trio.testing.wait_all_tasks_blocked()
        pair.carry(1 << 20)
    assert server.is_established
    assert pair.ends[0].got == b"hello"


class Held:
    """An `Aside` whose calls are made when a test says so; `is_begun`: a thread is at them."""

    def __init__(self, *, is_begun=True):
        self.calls = []
        self.is_begun = is_begun

    def add(self, call, told):
        self.calls.append((call, told))
        return len(self.calls)

    def forget(self, number):
        if not self.is_begun:
            self.calls.clear()
        return not self.is_begun

    def finish(self):
        call, told = self.calls.pop(0)
        told(outcome.capture(call))


@pytest.fixture
async def held(contexts, monkeypatch):
    """A pair whose server has been told something, and makes the step aside."""
    monkeypatch.setattr(tls_module, "HANDSHAKE_INLINE_BYTES", 0)
    held = Held()
    pair = Pair(*contexts, units=1, aside=held)
    pair.layers[0].write([b"hello"])
    pair.carry(1 << 20)
    assert len(held.calls) == 1
    return pair, held


async def test_steps_of_a_handshake_that_are_made_aside(held):
    pair, held = held
    server, pipe = pair.layers[1], pair.pipes[1]
    while held.calls:
        assert pipe.is_paused
        server.pause_reading()
        server.resume_reading()
        pair.settle()
        assert pipe.is_paused, "nothing is read meanwhile, whatever the connection wants"
        held.finish()
        pair.settle()
    assert server.is_established
    assert not pipe.is_paused
    assert pair.ends[0].got == b"hello"


async def test_the_peer_leaves_while_a_step_is_made_aside(held):
    pair, held = held
    reasons = []
    pair.layers[1].on_failed = reasons.append
    pair.layers[1].closed()
    assert reasons == [HANDSHAKE_CLOSED]
    held.finish()
    pair.turn.run()
    assert not pair.pipes[1].output
    assert pair.ends[1].is_closed


async def test_a_close_that_is_asked_for_while_a_step_is_made_aside(held):
    pair, held = held
    pair.layers[1].close()
    pair.turn.run()
    assert not pair.pipes[1].is_closing, "what the step uses is not touched"
    held.finish()
    pair.turn.run()
    assert pair.pipes[1].is_closing


async def test_who_leaves_before_a_thread_has_begun_is_forgotten(held):
    pair, held = held
    held.is_begun = False
    pair.layers[1].closed()
    assert not held.calls
    assert pair.ends[1].is_closed


async def test_a_close_before_a_thread_has_begun_waits_for_none(held):
    pair, held = held
    held.is_begun = False
    pair.layers[1].close()
    pair.turn.run()
    assert not held.calls
    assert pair.pipes[1].is_closing


async def test_nonsense_that_is_looked_at_aside(contexts, monkeypatch):
    monkeypatch.setattr(tls_module, "HANDSHAKE_INLINE_BYTES", 0)
    held = Held()
    pair = Pair(*contexts, units=1, aside=held)
    reasons = []
    pair.layers[1].on_failed = reasons.append
    pair.pipes[1].feed(b"\x16\x03\x01\x00\x04\xff\xff\xff\xff")
    held.finish()
    pair.turn.run()
    assert len(reasons) == 1
    assert pair.pipes[1].is_closing


async def test_one_that_leaves_while_it_waits_for_its_handshake(contexts, nursery):
    pair = Pair(*contexts, units=SPENT_UNITS + 1)
    reasons = []
    pair.layers[1].on_failed = reasons.append
    pair.turn.begin()
    pair.turn.spent_units = SPENT_UNITS + 1
    pair.pipes[1].feed(bytes(pair.pipes[0].output))
    pair.turn.run()
    pair.pipes[1].connection.closed()
    nursery.start_soon(pair.turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    assert reasons == [HANDSHAKE_CLOSED]
    assert not pair.pipes[1].output


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "plain bytes where TLS is spoken"),
        (b"\0\0\0\x10", "plain bytes where TLS is spoken"),
        (b"\x16\x03\x01\x00\x05hello", "SSL"),
    ],
)
async def test_a_handshake_that_fails_is_told_once(contexts, said, reason):
    pair = Pair(*contexts)
    reasons = []
    pair.layers[1].on_failed = reasons.append
    pair.turn.begin()
    pair.pipes[1].feed(said)
    pair.turn.run()
    pair.pipes[1].connection.closed()
    (told,) = reasons
    assert reason in told


async def test_a_close_sends_all_and_says_goodbye(contexts, nursery):
    """In as many turns as it takes."""
    pair = Pair(*contexts, echo=False)
    pair.settle()
    data = bytes(3 << 20)
    pair.layers[0].write([data, b"end"])
    pair.layers[0].close()
    pair.layers[0].close()
    pair.layers[0].write([b"too late"])
    pair.turn.run()
    assert len(pair.pipes[0].output) < ENCRYPTED_BYTES_MAX + PIECE_BYTES * 2
    pair.settle()
    nursery.start_soon(pair.turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    assert pair.pipes[0].is_closing
    pair.settle()
    assert pair.ends[1].got == data + b"end"
    assert pair.pipes[1].is_closing  # the goodbye was understood
    for pipe, end in zip(pair.pipes, pair.ends, strict=True):
        pipe.connection.closed()
        assert end.is_closed


async def test_a_close_waits_for_nobody_who_reads_nothing(contexts, nursery):
    pair = Pair(*contexts, echo=False)
    pair.settle()
    pair.layers[0].write([bytes(9 << 20)])
    pair.layers[0].close()
    pair.turn.run()
    nursery.start_soon(pair.turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    assert pair.pipes[0].is_closing
    assert len(pair.pipes[0].output) < ENCRYPTED_BYTES_MAX + PIECE_BYTES * 2
    pair.pipes[0].connection.closed()
    assert pair.layers[0].unsent_bytes == len(pair.pipes[0].output)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0"]
)
async def test_garbage_ends_it_with_an_alert_at_most(contexts, garbage):
    pair = Pair(*contexts)
    pair.pipes[1].output.clear()
    pair.turn.begin()
    pair.pipes[1].feed(garbage * 40)
    pair.turn.run()
    assert pair.pipes[1].is_closing
    pair.pipes[1].connection.closed()
    assert pair.ends[1].is_closed
    assert not pair.ends[1].got


async def test_a_damaged_record_is_not_delivered(contexts):
    pair = Pair(*contexts, echo=False)
    pair.settle()
    pair.layers[0].write([b"x" * 100])
    pair.turn.run()
    pair.pipes[0].output[40] ^= 1
    pair.layers[1].write([b"on its way"])  # must not be encrypted any more
    pair.settle()
    assert pair.pipes[1].is_closing
    assert not pair.ends[1].got


async def test_who_is_not_believed_does_not_get_in(pem, contexts):
    client, _ = contexts
    wrong_name = Pair(*contexts, checks="elsewhere")
    wrong_name.settle()
    assert all(pipe.is_closing for pipe in wrong_name.pipes)
    mutual = _server(pem, trust_path=pem["ca"], needs_client_certificate=True)
    nameless = Pair(client, mutual)
    nameless.layers[0].write([b"secret"])
    nameless.settle()
    assert nameless.pipes[1].is_closing
    assert not nameless.ends[1].got
    named = client_context(
        trust_path=pem["ca"], certificate_path=pem["client"], key_path=pem["client-key"]
    )
    pair = Pair(named, mutual)
    pair.layers[0].write([b"hello"])
    pair.turn.run()
    pair.settle()
    assert pair.ends[0].got == b"hello"
    subject = dict(item for (item,) in pair.layers[1].peer_certificate["subject"])
    assert subject["commonName"] == "client"


def test_files_that_cannot_be_used(pem, tmp_path):
    with pytest.raises(OSError, match="nothing"):
        server_context(certificate_path=str(tmp_path / "nothing.pem"), key_path=pem["server-key"])
    with pytest.raises(OSError, match="client-key"):
        server_context(certificate_path=pem["server"], key_path=pem["client-key"])
    with pytest.raises(ValueError, match="trust"):
        _server(pem, needs_client_certificate=True)
    with pytest.raises(OSError, match="nobody"):
        client_context(trust_path=str(tmp_path / "nobody"))


# -- over sockets, with Python's own TLS at the other end ----------------------------------------


@pytest.fixture
async def world(nursery):
    turn = Turn()
    poller = Poller(turn)
    net = RealNet(poller)
    timers = Timers()
    nursery.start_soon(turn.serve)
    await nursery.start(timers.run)
    await nursery.start(poller.run)
    await nursery.start(net.run)
    return net, turn, timers


async def _exchange(stream, data):
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        while len(got) < len(data):
            got += await stream.receive_some(1 << 16)
    return bytes(got)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_pythons_client_on_our_server(world, contexts, version):
    net, turn, timers = world
    tls = Tls(contexts[1], turn, timers)

    def make(transport):
        return Keeper(transport, is_echo=True)

    listener = net.listen("127.0.0.1", 0, tls_factory(make, tls, server_side=True))
    client = ssl.create_default_context()
    client.load_verify_locations(cadata=_pem(contexts))
    client.minimum_version = client.maximum_version = version
    data = bytes(range(256)) * 20_000
    with trio.fail_after(20):
        stream = await trio.open_tcp_stream("127.0.0.1", listener.address[1])
        secure = trio.SSLStream(stream, client, server_hostname="localhost")
        assert await _exchange(secure, data) == data
        assert (
            secure.version()
            == {
                ssl.TLSVersion.TLSv1_2: "TLSv1.2",
                ssl.TLSVersion.TLSv1_3: "TLSv1.3",
            }[version]
        )
        await secure.aclose()
        await _until(lambda: net.connection_count == 0)


def _pem(contexts):
    return "".join(map(ssl.DER_cert_to_PEM_cert, contexts[0].get_ca_certs(True)))


async def _until(condition):
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.01)


async def test_a_close_behind_a_long_answer_sends_all_of_it(world, contexts):
    """It leaves in parts: what waits for its turn is not what the peer does not take."""
    net, turn, timers = world
    tls = Tls(contexts[1], turn, timers)
    data = bytes(3 << 20)

    class Farewell(Keeper):
        def received(self, count):
            self.transport.write([data])
            self.transport.close()

    listener = net.listen("127.0.0.1", 0, tls_factory(Farewell, tls, server_side=True))
    client = ssl.create_default_context()
    client.load_verify_locations(cadata=_pem(contexts))

    def read():
        got = 0
        with (
            socket.create_connection(listener.address) as raw,
            client.wrap_socket(
                raw, server_hostname="localhost", suppress_ragged_eofs=False
            ) as secure,
        ):
            secure.sendall(b"x")
            while some := secure.recv(1 << 20):
                got += len(some)
        return got

    found = []

    async def read_all():
        found.append(await trio.to_thread.run_sync(read))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(6):  # they wait for each other
                nursery.start_soon(read_all)
    assert found == [len(data)] * 6


async def test_our_client_on_pythons_server(world, pem, contexts, nursery):
    net, turn, timers = world
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    async def serve(stream):
        secure = trio.SSLStream(stream, _server(pem), server_side=True, https_compatible=True)
        async for chunk in secure:
            await secure.send_all(chunk)
        await secure.aclose()

    nursery.start_soon(trio.serve_listeners, serve, listeners)
    tls = Tls(contexts[0], turn, timers)
    made = []

    def make(transport):
        made.append(Keeper(transport))
        return made[-1]

    factory = tls_factory(make, tls, server_side=False, server_hostname="localhost")
    await net.connect("127.0.0.1", port, factory)
    data = bytes(range(256)) * 4_000
    made[0].transport.write([data])
    await _until(lambda: made[0].got == data)
    made[0].transport.close()
    await _until(lambda: made[0].is_closed)
    nursery.cancel_scope.cancel()


async def test_a_peer_that_never_shakes_hands_is_let_go(world, contexts):
    net, turn, timers = world
    tls = Tls(contexts[1], turn, timers, handshake_timeout_ms=100)
    listener = net.listen("127.0.0.1", 0, tls_factory(Keeper, tls, server_side=True))
    with trio.fail_after(5):
        stream = await trio.open_tcp_stream("127.0.0.1", listener.address[1])
        async with stream:
            assert await stream.receive_some() == b""


class Unread:
    """A transport whose peer does not read: what it is to send stays."""

    def __init__(self, below):
        self.below = below
        self.unsent_bytes = 2 * ENCRYPTED_BYTES_MAX

    def write(self, buffers):
        self.unsent_bytes += sum(map(len, buffers))

    def __getattr__(self, name):
        return getattr(self.below, name)


@pytest.mark.parametrize("reads", [True, False])
async def test_who_asks_for_new_keys_and_reads_nothing_is_given_up(world, contexts, nursery, reads):
    """OpenSSL's client sends a KeyUpdate that wants one back for each K (RFC 8446, 4.6.3)."""
    net, turn, timers = world
    layers = []

    def make(transport):
        layers.append(TlsTransport(transport, Tls(contexts[1], turn, timers), server_side=True))
        layers[0].attach(Keeper(layers[0]))
        return layers[0]

    listener = net.listen("127.0.0.1", 0, make)
    command = ["openssl", "s_client", "-tls1_3", "-connect", f"127.0.0.1:{listener.address[1]}"]
    with trio.fail_after(30):
        start = partial(trio.run_process, stdin=subprocess.PIPE, check=False)
        pipes = partial(start, capture_stdout=True, capture_stderr=True)
        client = await nursery.start(partial(pipes, command))
        await _until(lambda: layers and layers[0].is_established)
        if not reads:
            layers[0]._below = Unread(layers[0]._below)
        for _ in range(700):
            with suppress(trio.BrokenResourceError):
                await client.stdin.send_all(b"K\n")
            await trio.sleep(0.003)
        if reads:
            assert layers[0].is_established
            client.kill()
        await _until(lambda: net.connection_count == 0)
    if not reads:
        answers = layers[0]._below.unsent_bytes - 2 * ENCRYPTED_BYTES_MAX
        assert answers <= UNREAD_ANSWERS_BYTES_MAX + 1000


async def test_an_upgrade_of_a_plain_connection(world, contexts):
    net, turn, timers = world
    tls = Tls(contexts[1], turn, timers)

    class Upgrading(Keeper):
        def received(self, count):
            plain = not isinstance(self.transport, TlsTransport)
            if plain:
                self.transport.write([b"go"])
                self.transport = upgrade(self.transport, self, tls)
            else:
                super().received(count)

    def make(transport):
        return Upgrading(transport, is_echo=True)

    listener = net.listen("127.0.0.1", 0, make)
    with trio.fail_after(10):
        stream = await trio.open_tcp_stream("127.0.0.1", listener.address[1])
        await stream.send_all(b"STARTTLS")
        assert await stream.receive_some() == b"go"
        secure = trio.SSLStream(stream, contexts[0], server_hostname="localhost")
        assert await _exchange(secure, bytes(100_000)) == bytes(100_000)
        await secure.aclose()
