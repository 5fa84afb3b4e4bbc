"""The pages over https: the stores of the settings, who is let in, what a command says."""

import http.client
import socket
import ssl
from functools import partial

import click
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from bookie.server.pages_config import pages_config
from quire.tools.admin.credentials import read_credentials
from quire.tools.admin.serve import url_of
from quire.tools.bookie.client import CA_VARIABLE, AdminClient
from runtime import http as pages
from runtime.config import ConfigError
from runtime.http import json_response
from tests.broker.security.tls.conftest import Authority

PASSWORD = "store pass"


def p12(made):
    return pkcs12.serialize_key_and_certificates(
        b"x",
        made.key,
        made.certificate,
        [made.authority],
        BestAvailableEncryption(PASSWORD.encode()),
    )


@pytest.fixture
def authority():
    return Authority()


@pytest.fixture
def files(tmp_path, authority):
    """files(name, bytes) -> a path that only its owner may read; it is replaced whole."""

    def write(name, data):
        path, made = tmp_path / name, tmp_path / f".{name}"
        made.write_bytes(data)
        made.chmod(0o600)
        made.replace(path)
        return str(path)

    return write


def settings(**more):
    return pages_config({"httpServerTlsEnable": True, **more})


@pytest.fixture
async def serve(nursery):
    """serve(settings) -> the address of pages that answer with their path."""

    async def handle(request):
        return json_response({"path": request.path, "peer": request.peer})

    async def start(config):
        tls = read_credentials(config).tls
        return await nursery.start(partial(pages.serve, handle, "127.0.0.1", 0, tls=tls))

    return start


def trusting(authority, client=None, files=None):
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if client is not None:
        context.load_cert_chain(files("client.pem", client.pem))
    return context


async def get(address, context):
    def run():
        connection = http.client.HTTPSConnection(*address, timeout=20, context=context)
        try:
            connection.request("GET", "/api/v1/x")
            return connection.getresponse().status
        finally:
            connection.close()

    return await trio.to_thread.run_sync(run)


async def serial_of(address, context):
    """Of the certificate by which a page is answered; None if it is not."""

    def run():
        connection = http.client.HTTPSConnection(*address, timeout=20, context=context)
        try:
            connection.request("GET", "/api/v1/x")
            shown = connection.sock.getpeercert(binary_form=True)
            assert connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return x509.load_der_x509_certificate(shown).serial_number

    return await trio.to_thread.run_sync(run)


async def until(condition):
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
async def test_pages_are_served_from_each_kind_of_store(serve, authority, files, kind):
    made = authority.made("CN=pages", hosts=("127.0.0.1",))
    data = made.pem if kind == "PEM" else p12(made)
    more = {} if kind == "PEM" else {"httpServerKeyStorePassword": PASSWORD}
    config = settings(httpServerKeyStorePath=files("store", data), **more)
    assert PASSWORD not in repr(config)
    address = await serve(config)
    assert await get(address, trusting(authority)) == 200
    with pytest.raises(ssl.SSLError):
        await get(address, ssl.create_default_context())


async def test_who_shows_no_certificate_is_not_answered(serve, authority, files):
    made = authority.made("CN=pages", hosts=("127.0.0.1",))
    config = settings(
        httpServerKeyStorePath=files("store", made.pem),
        httpServerTrustStorePath=files("trust", authority.pem),
    )
    address = await serve(config)
    assert await get(address, trusting(authority, authority.made("CN=client"), files)) == 200
    for context in (
        trusting(authority),
        trusting(authority, Authority("CN=other").made("CN=client"), files),
    ):
        with pytest.raises((OSError, http.client.HTTPException)):
            await get(address, context)


async def test_new_files_are_taken_without_a_restart(serve, authority, files, caplog):
    """Also of whom clients must be; what does not load leaves all as it was, and is told once."""
    first, second = (authority.made("CN=pages", hosts=("127.0.0.1",)) for _ in range(2))
    other = Authority("CN=other")
    config = settings(
        **{"quire.pages.tls.check.ms": 20},
        httpServerKeyStorePath=files("store", first.pem),
        httpServerTrustStorePath=files("trust", authority.pem),
    )
    address = await serve(config)
    by = {one: trusting(authority, one.made("CN=client"), files) for one in (authority, other)}
    caplog.set_level("INFO")

    def told(event):
        return [one for one in caplog.records if one.getMessage() == event]

    assert await serial_of(address, by[authority]) == first.certificate.serial_number
    files("store", second.key_pem + first.chain_pem)
    await until(lambda: told("http_tls_not_reloaded"))
    assert await serial_of(address, by[authority]) == first.certificate.serial_number
    files("store", second.pem)
    await until(lambda: told("http_tls_reloaded"))
    assert await serial_of(address, by[authority]) == second.certificate.serial_number
    assert len(told("http_tls_not_reloaded")) == 1
    assert await serial_of(address, by[other]) is None
    files("trust", other.pem)
    await until(lambda: len(told("http_tls_reloaded")) == 2)
    assert await serial_of(address, by[other]) == second.certificate.serial_number
    assert await serial_of(address, by[authority]) is None


async def test_plain_bytes_and_silence_are_closed_and_others_served(
    serve, authority, files, monkeypatch
):
    monkeypatch.setattr(pages, "REQUEST_TIMEOUT_SECONDS", 0.3)
    made = authority.made("CN=pages", hosts=("127.0.0.1",))
    address = await serve(settings(httpServerKeyStorePath=files("store", made.pem)))

    def rest(data):
        with socket.create_connection(address, 20) as connection:
            connection.sendall(data)
            answer = b""
            try:
                while part := connection.recv(65536):
                    answer += part
            except ConnectionResetError:
                pass
            return answer

    assert b"HTTP/1.1" not in await trio.to_thread.run_sync(rest, b"GET / HTTP/1.1\r\n\r\n")
    assert await trio.to_thread.run_sync(rest, b"") == b""
    monkeypatch.undo()
    assert await get(address, trusting(authority)) == 200


async def test_a_command_asks_by_https(serve, authority, files, monkeypatch):
    made = authority.made("CN=pages", hosts=("127.0.0.1",))
    address = await serve(settings(httpServerKeyStorePath=files("store", made.pem)))
    url = url_of(address, is_tls=True)
    assert url.startswith("https://127.0.0.1:")
    monkeypatch.delenv(CA_VARIABLE, raising=False)
    with pytest.raises(click.ClickException, match=r"does not answer.*certificate verify failed"):
        await trio.to_thread.run_sync(AdminClient(url).get, "x")
    monkeypatch.setenv(CA_VARIABLE, files("ca", authority.pem))
    answer = await trio.to_thread.run_sync(AdminClient(url, "token").get, "x")
    assert answer == {"path": "/api/v1/x", "peer": "127.0.0.1"}
    monkeypatch.setenv(CA_VARIABLE, "/nowhere.pem")
    with pytest.raises(click.UsageError, match=CA_VARIABLE):
        AdminClient(url)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({}, "httpServerKeyStorePath: must be set for httpServerTlsEnable"),
        ({"httpServerKeyStorePath": "/nowhere"}, "httpServerKeyStorePath: .*/nowhere"),
        ({"httpServerKeyStorePath": "empty"}, "httpServerKeyStorePassword: must be set"),
        (
            {"httpServerKeyStorePath": "empty", "httpServerKeyStorePassword": "hidden away"},
            "httpServerKeyStorePath: ",
        ),
        ({"httpServerKeyStorePath": "open"}, "everybody may read it"),
        (
            {"httpServerKeyStorePath": "good", "httpServerTrustStorePath": "/nowhere"},
            "httpServerTrustStorePath: ",
        ),
    ],
)
def test_what_ends_the_start(authority, files, tmp_path, more, match):
    pem = authority.made("CN=pages").pem
    files("good", pem)
    files("empty", b"\x00nothing")
    files("open", pem)
    (tmp_path / "open").chmod(0o644)
    more = {
        name: str(tmp_path / text) if name.endswith("Path") and not text.startswith("/") else text
        for name, text in more.items()
    }
    with pytest.raises(ConfigError, match=match) as raised:
        read_credentials(settings(**more))
    assert "hidden away" not in str(raised.value)


def test_without_it_pages_are_as_they_were():
    assert read_credentials(pages_config({})).tls is None
    assert url_of(("0.0.0.0", 9600)) == "http://127.0.0.1:9600"
