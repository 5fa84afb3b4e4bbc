"""A bookie's TLS: new files are for new connections, without a restart."""

import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.server.config import server_config
from wire.bookkeeper import v3
from wire.bookkeeper.requests import BookieInfoRequest, StartTlsRequest

REFRESH = "tlsCertFilesRefreshDurationSeconds"


@pytest.fixture
def own_files(tls_settings, tmp_path):
    """Settings whose files are this test's own."""
    made = {**tls_settings, REFRESH: 1}
    for name in ("tlsCertificatePath", "tlsKeyStore", "tlsTrustStore"):
        made[name] = shutil.copy(tls_settings[name], str(tmp_path / f"{name}.pem"))
    return made


def renew(settings):
    """Another key and certificate, where the old ones were."""
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-keyout", settings["tlsKeyStore"], "-out", settings["tlsCertificatePath"],
        "-days", "2", "-subj", "/CN=renewed",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert(Path(settings["tlsCertificatePath"]).read_text())


async def ask(stream, request):
    await stream.send_all(b"".join(v3.encode_request(request)))
    data = b""
    with trio.fail_after(10):
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = await stream.receive_some(4096)
            assert more
            data += more
    return v3.decode_response(data[4:])


@asynccontextmanager
async def connected(port):
    """A connection over TLS, and the bookie's certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await ask(stream, StartTlsRequest(1))
        secure = trio.SSLStream(stream, context, https_compatible=True)
        await secure.do_handshake()
        yield secure, secure.getpeercert(binary_form=True)


async def certificate_of(port):
    async with connected(port) as (_, certificate):
        return certificate


async def test_a_new_certificate_is_for_new_connections(serve, own_files, caplog):
    caplog.set_level("INFO")
    _, port = await serve(tls=server_config(own_files, lambda _: "127.0.0.1").tls)
    async with connected(port) as (before, old):
        new = renew(own_files)
        assert new != old
        with trio.fail_after(20):
            while await certificate_of(port) == old:
                await trio.sleep(0.1)
        assert await certificate_of(port) == new
        assert (await ask(before, BookieInfoRequest(3, 2))).total_space_bytes == 1000
    assert "server_tls_reloaded" in caplog.text


async def test_files_that_do_not_load_change_nothing(serve, own_files, caplog):
    _, port = await serve(tls=server_config(own_files, lambda _: "127.0.0.1").tls)
    old = await certificate_of(port)
    await trio.Path(own_files["tlsKeyStore"]).write_text("no key")
    with trio.fail_after(20):
        while "server_tls_not_reloaded" not in caplog.text:
            await trio.sleep(0.1)
    assert await certificate_of(port) == old
