"""Who is not admitted to a bookie with SASL: what is answered, how many there may be, how long."""

import re

import pytest
import trio

from bookie.server import admission
from bookie.server.admission import AdmissionLimits
from bookie.server.auth import SaslDigest
from wire.bookkeeper import v2, v3
from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ReadLacRequest,
    ReadRequest,
    StartTlsRequest,
)
from wire.bookkeeper.responses import AuthResponse
from wire.bookkeeper.sasl_digest import DigestClient
from wire.bookkeeper.status import Status

MIB = 1 << 20
KEY = b"k" * 20
PASSWORDS = {"writer": "secret", "guest": "guest"}


@pytest.fixture
def start(serve):
    """start(**AdmissionLimits) -> a running BookieServer; start.port is its port."""

    async def start(**limits):
        auth = SaslDigest(PASSWORDS, re.compile("writer"))
        server, start.port = await serve(auth=auth, admission=AdmissionLimits(**limits))
        return server

    return start


class Client:
    """One connection in one version of the protocol."""

    def __init__(self, stream, codec):
        self.stream, self.codec = stream, codec
        self.data = bytearray()

    async def send(self, *requests):
        frames = [b"".join(self.codec.encode_request(each)) for each in requests]
        await self.stream.send_all(b"".join(frames))

    async def answer(self):
        """None at the end."""
        with trio.fail_after(20):
            while len(self.data) < 4 or len(self.data) < 4 + int.from_bytes(self.data[:4], "big"):
                try:
                    chunk = await self.stream.receive_some()
                except trio.BrokenResourceError:
                    chunk = b""
                if not chunk:
                    return None
                self.data += chunk
        size = int.from_bytes(self.data[:4], "big")
        frame = bytes(self.data[4 : 4 + size])
        del self.data[: 4 + size]
        return self.codec.decode_response(frame)

    async def ask(self, request):
        await self.send(request)
        return await self.answer()

    async def auth(self, payload, plugin="sasl"):
        return await self.ask(AuthRequest(plugin, payload, 7))

    async def log_in(self, user="writer", password="secret"):
        challenge = await self.auth(b"")
        assert challenge.status is Status.EOK
        self.digest = DigestClient(user, password, b"c")
        self.response = self.digest.respond(challenge.payload)
        return await self.auth(self.response)


@pytest.fixture(params=[v2, v3], ids=["v2", "v3"])
def codec(request):
    return request.param


@pytest.fixture
async def connect(start, codec):
    """connect() -> a Client of either version."""
    streams = []

    async def connect():
        stream = await trio.open_tcp_stream("127.0.0.1", start.port)
        streams.append(stream)
        return Client(stream, codec)

    yield connect
    for stream in streams:
        await trio.aclose_forcefully(stream)


def add(entry_id=0, size=10):
    entry = b"".join(value.to_bytes(8, "big", signed=True) for value in (1, entry_id, -1, size))
    return AddRequest(1, entry_id, KEY, [entry + b"\0" * (4 + size)], transaction_id=3)


async def test_nothing_is_served_before_and_all_after(start, connect, codec):
    server = await start()
    client = await connect()
    requests = [add(), ReadRequest(1, 0), BatchReadRequest(1, 0, 10, 1000, transaction_id=1), add()]
    if codec is v3:
        requests[2:3] = [ReadLacRequest(1), BookieInfoRequest(3), ForceLedgerRequest(1)]
    for request in requests:
        assert (await client.ask(request)).status is Status.EUA
    assert server.counts.refused == len(requests)
    answer = await client.log_in()
    client.digest.check(answer.payload)
    for entry_id in range(3):
        assert (await client.ask(add(entry_id))).status is Status.EOK
    assert (await client.ask(ReadRequest(1, 2))).entry is not None
    # Java's client says something more when it is done.
    after = await client.auth(b"")
    assert (after.status, after.plugin_name) == (Status.EOK, "AuthDisabledPlugin")
    assert server.counts.adds == 3


async def test_a_burst_behind_the_last_step_is_served(start, connect):
    await start()
    client = await connect()
    challenge = await client.auth(b"")
    response = DigestClient("writer", "secret", b"c").respond(challenge.payload)
    await client.send(AuthRequest("sasl", response, 1), add(0), add(1))
    answers = [await client.answer() for _ in range(3)]
    assert [each.status for each in answers] == [Status.EOK] * 3
    assert isinstance(answers[0], AuthResponse)


def reasons(caplog):
    return [str(each.args["reason"]) for each in caplog.records if each.msg == "not_authorized"]


async def refused(client, answer, caplog, words):
    """In v3 with EUA; and the connection is closed."""
    if client.codec is v3:
        assert (type(answer), answer.status) == (AuthResponse, Status.EUA)
        answer = await client.answer()
    assert answer is None
    (reason,) = reasons(caplog)
    assert words in reason
    assert "secret" not in reason
    caplog.clear()


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("writer", "wrong", "wrong password"),
        ("nobody", "wrong", "unknown user"),
        ("guest", "guest", "not allowed by saslJaasClientAllowedIds"),
    ],
)
async def test_wrong_passwords(start, connect, caplog, user, password, words):
    await start()
    client = await connect()
    await refused(client, await client.log_in(user, password), caplog, words)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\0\xff garbage", "no directive"),
        (b"", "nonce"),
        (b"x" * 5000, "5000 bytes"),
        (b'username="a",username="b"', "username comes twice"),
    ],
)
async def test_tokens_that_are_garbled(start, connect, caplog, payload, words):
    await start()
    client = await connect()
    await client.auth(b"")
    await refused(client, await client.auth(payload), caplog, words)


async def test_a_token_of_another_connection(start, connect, caplog):
    await start()
    first, second = await connect(), await connect()
    assert (await first.log_in()).status is Status.EOK
    await second.auth(b"")
    await refused(second, await second.auth(first.response), caplog, "nonce")


async def test_other_plugins_and_an_initial_response(start, connect, caplog):
    await start()
    client = await connect()
    await refused(client, await client.auth(b"", "other"), caplog, "other")
    client = await connect()
    await refused(client, await client.auth(b"x"), caplog, "no initial response")


async def test_too_much_before_it_is_admitted(start, connect):
    await start()
    client = await connect()
    size = admission.FRAME_BYTES_MAX
    assert (await client.ask(add(size=size - 1000))).status is Status.EUA
    assert await client.ask(add(size=size)) is None
    client = await connect()
    assert (await client.log_in()).status is Status.EOK
    assert (await client.ask(add(size=size))).status is Status.EOK


async def test_who_does_not_read_is_read_no_further(start, connect):
    """Answers to a connection that is not admitted do not pile up."""
    server = await start(timeout_ms=100_000)
    client = await connect()
    frame = b"".join(client.codec.encode_request(ReadRequest(1, 0)))
    burst = frame * (MIB // len(frame))

    async def send():
        while True:
            await client.stream.send_all(burst)

    # Less than a hundred answers are on their way to be counted.
    answer_bytes_max = 100
    unsent_bytes_max = admission.UNSENT_BYTES_MAX + 100 * answer_bytes_max
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        stuck_count = 0
        with trio.fail_after(60):
            while stuck_count < 20:
                await trio.sleep(0.02)
                for connection in server._connections:
                    unsent_bytes = connection._transport.unsent_bytes
                    assert unsent_bytes < unsent_bytes_max
                    stuck_count = stuck_count + 1 if unsent_bytes else 0
        nursery.cancel_scope.cancel()


async def test_who_takes_too_long_is_closed(start, connect, caplog):
    caplog.set_level("INFO")
    server = await start(timeout_ms=300)
    silent, halfway, fine = await connect(), await connect(), await connect()
    assert (await fine.log_in()).status is Status.EOK
    assert (await halfway.auth(b"")).status is Status.EOK
    assert await silent.answer() is None
    assert await halfway.answer() is None
    assert reasons(caplog) == ["not authenticated in time"] * 2
    assert (await fine.ask(add())).status is Status.EOK
    assert server._processor.door.waiting_count == 0
    assert server._processor.door._exchanges == {}


async def test_too_many_that_wait(start, connect, caplog):
    """The oldest goes, and who authenticates gets through."""
    caplog.set_level("INFO")
    server = await start(connections_max=5)
    crowd = [await connect() for _ in range(20)]
    for client in crowd[:15]:
        assert await client.answer() is None
    assert (await crowd[-1].log_in()).status is Status.EOK
    assert (await (await connect()).log_in()).status is Status.EOK
    assert server._processor.door.waiting_count == 4
    assert reasons(caplog) == ["too many that did not authenticate"] * 15


async def test_who_leaves_is_forgotten(start, connect):
    server = await start()
    for _ in range(3):
        client = await connect()
        await client.auth(b"")
        await client.stream.aclose()
    with trio.fail_after(10):
        while server.connection_count:
            await trio.sleep(0.01)
    assert server._processor.door.waiting_count == 0
    assert server._processor.door._exchanges == {}


async def test_start_tls_may_come_first(start, connect, codec):
    """It is refused, as there is no TLS here, and is not held against the client."""
    if codec is v2:
        return
    await start()
    client = await connect()
    assert (await client.ask(StartTlsRequest(1))).status is Status.EBADREQ
    assert (await client.log_in()).status is Status.EOK
