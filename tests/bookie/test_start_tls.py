"""START_TLS on a bookie's port: what Java clients do before they say anything else."""

import ssl
import subprocess

import pytest
import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.server.config import server_config
from bookie.server.server import BookieServer, BookieServerSettings
from runtime.config import ConfigError
from runtime.env import real_env
from wire.bookkeeper import v3
from wire.bookkeeper.requests import BookieInfoRequest, StartTlsRequest
from wire.bookkeeper.responses import BookieInfoResponse, StartTlsResponse
from wire.bookkeeper.status import Status

MIB = 1 << 20


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """As in bk_server.conf."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return {
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": True,
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsCertificatePath": certificate,
        "tlsKeyStore": key,
        "tlsTrustStore": certificate,
    }


def _config(values):
    return server_config(values, lambda _: "127.0.0.1")


@pytest.fixture
async def start(nursery, tmp_path):
    """start(ssl context) -> the port of a bookie."""

    async def start(tls):
        env = real_env()
        nursery.start_soon(env.turn.serve)
        await nursery.start(env.poller.run)
        await nursery.start(env.net.run)
        bookie = Bookie(
            BookieConfig(
                bookie_id="b",
                instance_id="",
                journal_directory=str(tmp_path / "journal"),
                ledger_directory=str(tmp_path / "ledgers"),
                journal_size_bytes=8 * MIB,
                journal_group_size_max_bytes=MIB,
                write_cache_size_bytes=16 * MIB,
            ),
            env,
        )
        await nursery.start(bookie.run)
        server = BookieServer(
            bookie, env, BookieServerSettings(port=0, tls=tls), lambda: (1000, 500)
        )
        return (await nursery.start(server.run))[1]

    return start


async def _ask(stream, request):
    await stream.send_all(b"".join(v3.encode_request(request)))
    return await _answer(stream)


async def _answer(stream):
    data = bytearray()
    with trio.fail_after(10):
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            chunk = await stream.receive_some()
            if not chunk:
                return None
            data += chunk
    return v3.decode_response(bytes(data[4:]))


async def test_a_connection_becomes_tls(start, settings):
    port = await start(_config(settings).tls)
    client = ssl.create_default_context(cafile=settings["tlsTrustStore"])
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


async def test_without_certificates_it_is_refused(start):
    port = await start(None)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        assert await _ask(stream, StartTlsRequest(7)) == StartTlsResponse(Status.EBADREQ, 7)
        assert (await _ask(stream, BookieInfoRequest(1, 8))).status is Status.EOK


async def test_who_does_not_wait_for_the_answer_is_cut_off(start, settings):
    port = await start(_config(settings).tls)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        frames = [*v3.encode_request(StartTlsRequest(7)), *v3.encode_request(BookieInfoRequest(1))]
        await stream.send_all(b"".join(frames))
        assert await _answer(stream) == StartTlsResponse(Status.EOK, 7)
        with trio.fail_after(5):
            assert not await stream.receive_some()


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
def test_settings_that_do_not_work(settings, change, name):
    with pytest.raises(ConfigError, match=name):
        _config({**settings, **change})


def test_no_tls_unless_it_is_asked_for(settings):
    assert _config({**settings, "tlsProviderFactoryClass": None}).tls is None
