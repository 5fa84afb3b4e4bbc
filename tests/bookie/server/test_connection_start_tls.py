"""START_TLS on a bookie's port: what Java clients do before they say anything else."""

import ssl

import pytest
import trio

from bookie.server.config import server_config
from bookie.server.connection import BookieConnection
from runtime.config import ConfigError
from runtime.receive import ReceiveChunks
from wire.bookkeeper import v3
from wire.bookkeeper.requests import (
    AddRequest,
    BookieInfoRequest,
    ReadLacRequest,
    StartTlsRequest,
)
from wire.bookkeeper.responses import BookieInfoResponse, StartTlsResponse
from wire.bookkeeper.status import Status


def _config(values):
    return server_config(values, lambda _: "127.0.0.1")


async def _ask(stream, request):
    await stream.send_all(b"".join(v3.encode_request(request)))
    return await _answer(stream)


async def _answer(stream):
    """One, though more may have come with it."""
    data = bytearray()
    with trio.fail_after(10):
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            wanted = 4 if len(data) < 4 else 4 + int.from_bytes(data[:4], "big")
            chunk = await stream.receive_some(wanted - len(data))
            if not chunk:
                return None
            data += chunk
    return v3.decode_response(bytes(data[4:]))


async def test_a_connection_becomes_tls(serve, tls_settings):
    _, port = await serve(tls=_config(tls_settings).tls)
    client = ssl.create_default_context(cafile=tls_settings["tlsTrustStore"])
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    answer = await _ask(stream, StartTlsRequest(7))
    assert answer == StartTlsResponse(Status.EOK, 7)
    secure = trio.SSLStream(stream, client, server_hostname="localhost", https_compatible=True)
    assert await _ask(secure, BookieInfoRequest(3, 8)) == BookieInfoResponse(
        Status.EOK, 1000, 500, 8
    )
    # Once is enough.
    assert (await _ask(secure, StartTlsRequest(9))).status is Status.EBADREQ
    assert (await _ask(secure, BookieInfoRequest(1, 10))).total_space_bytes == 1000
    await secure.aclose()


async def test_without_certificates_it_is_refused(serve):
    _, port = await serve()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        assert await _ask(stream, StartTlsRequest(7)) == StartTlsResponse(Status.EBADREQ, 7)
        assert (await _ask(stream, BookieInfoRequest(1, 8))).status is Status.EOK


async def test_who_does_not_wait_for_the_answer_is_cut_off(serve, tls_settings):
    _, port = await serve(tls=_config(tls_settings).tls)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        frames = [*v3.encode_request(StartTlsRequest(7)), *v3.encode_request(BookieInfoRequest(1))]
        await stream.send_all(b"".join(frames))
        assert await _answer(stream) == StartTlsResponse(Status.EOK, 7)
        with trio.fail_after(5):
            assert not await stream.receive_some()


async def test_nothing_is_served_between_it_and_its_answer(serve, tls_settings):
    """Two reads from the socket in one turn: what the second one brings is no request any more."""
    server, _ = await serve(tls=_config(tls_settings).tls)
    peer = Peer(server._processor)
    peer.receive(StartTlsRequest(1))
    peer.receive(ReadLacRequest(6, 2))
    assert peer.is_closed
    assert peer.connection.in_flight == 0


class Peer:
    """A transport without a socket; what is written is lost."""

    peer = "peer"
    unsent_bytes = 0

    def __init__(self, processor):
        self.is_closed = False
        self.connection = BookieConnection(self, processor, ReceiveChunks(), 1 << 20)

    def receive(self, request):
        data = b"".join(v3.encode_request(request))
        self.connection.receive_buffer()[: len(data)] = data
        self.connection.received(len(data))

    def write(self, _):
        pass

    def close(self):
        self.is_closed = True


async def test_it_is_refused_while_other_requests_are_under_way(serve, tls_settings):
    """Their answers would be sent after it, to a peer that expects TLS."""
    _, port = await serve(tls=_config(tls_settings).tls)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        key = bytes(20)
        entry = b"".join(number.to_bytes(8, "big", signed=True) for number in (5, 0, -1, 0))
        add = AddRequest(5, 0, key, (entry,), transaction_id=1)
        requests = (add, ReadLacRequest(6, 2), StartTlsRequest(3))
        frames = [part for request in requests for part in v3.encode_request(request)]
        await stream.send_all(b"".join(frames))
        answers = {}
        for _ in range(3):
            answer = await _answer(stream)
            answers[answer.transaction_id] = answer.status
        assert answers == {1: Status.EOK, 2: Status.ENOLEDGER, 3: Status.EBADREQ}
        assert await _ask(stream, StartTlsRequest(4)) == StartTlsResponse(Status.EOK, 4)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"tlsKeyStoreType": "JKS"}, "tlsKeyStoreType"),
        ({"tlsKeyStore": None}, "tlsKeyStore"),
        ({"tlsCertificatePath": "/nowhere"}, "nowhere"),
        ({"tlsTrustStore": None, "tlsClientAuthentication": True}, "trust"),
        ({"tlsKeyStorePasswordPath": "/no/password"}, "password"),
    ],
)
def test_settings_that_do_not_work(tls_settings, change, name):
    with pytest.raises(ConfigError, match=name):
        _config({**tls_settings, **change})


def test_no_tls_unless_it_is_asked_for(tls_settings):
    assert _config({**tls_settings, "tlsProviderFactoryClass": None}).tls is None
