"""Our client's START_TLS with a bookie of ours: both protocol versions, and who is refused."""

import shutil
import struct
import subprocess

import pytest
import trio
from crc32c import crc32c

from bookie.server.auth import CertificateRoles
from ledger.config_definitions import network_config
from ledger.network.client import NetworkBookieClient
from ledger.network.config import NetworkConfig
from runtime.tls_context import client_context, server_context
from wire.bookkeeper.status import Status

MIB = 1 << 20
KEY = b"k" * 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """make(name, subject) -> (certificate, key) that sign themselves."""
    folder = tmp_path_factory.mktemp("tls")

    def make(name, subject):
        certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate,
                "-days", "2", "-subj", subject, "-addext", "subjectAltName=IP:127.0.0.1",
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        return certificate, key

    return {name: make(name, subject) for name, subject in (
        ("bookie", "/CN=bookie"), ("writer", "/OU=0:writers/CN=writer"), ("other", "/CN=other")
    )}  # fmt: skip


def entry(ledger_id, entry_id, payload):
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return [header + struct.pack(">I", crc32c(payload, crc32c(header))), payload]


@pytest.fixture
async def connect(serve, network_env, nursery):
    """connect(server's context, client's, auth=None) -> a client that reaches the bookie `b`."""

    async def connect(server_tls, client_tls, auth=None):
        _, port = await serve(tls=server_tls, auth=auth)
        network = NetworkConfig(tls=client_tls, add_timeout_ms=2000, read_timeout_ms=2000)
        client = NetworkBookieClient(network_env, lambda _: ("127.0.0.1", port), network)
        await nursery.start(client.run)
        return client

    yield connect
    nursery.cancel_scope.cancel()


async def answers(client, wait_for_add):
    """Of a v2 add and read, and of a question of v3."""
    added = await wait_for_add(client)
    found, _ = await client.read_entry("b", 1, 0)
    return added, found, (await client.bookie_info("b")).status


@pytest.fixture
def ask():
    async def add(client):
        told, done = [], trio.Event()

        def answered(status):
            told.append(status)
            done.set()

        client.add_entry("b", 1, 0, KEY, entry(1, 0, b"x" * 100_000), 0, answered)
        with trio.fail_after(10):
            await done.wait()
        return told[0]

    return lambda client: answers(client, add)


def server_of(files, trusted=None):
    certificate, key = files["bookie"]
    return server_context(
        certificate_path=certificate,
        key_path=key,
        trust_path=files[trusted][0] if trusted else None,
        needs_client_certificate=trusted is not None,
    )


def client_of(files, name=None, *, trust="bookie", checks_hostname=True):
    certificate, key = files[name] if name else (None, None)
    return client_context(
        trust_path=files[trust][0],
        certificate_path=certificate,
        key_path=key,
        checks_hostname=checks_hostname,
    )


async def test_both_versions_go_encrypted(files, connect, ask):
    client = await connect(server_of(files), client_of(files))
    assert await ask(client) == (Status.EOK, Status.EOK, Status.EOK)


async def test_a_bookie_without_tls_is_not_spoken_to(files, connect, ask, caplog):
    client = await connect(None, client_of(files))
    caplog.set_level("INFO")
    assert await ask(client) == (Status.EIO, Status.EIO, Status.EIO)
    assert "bookie_unreachable" in caplog.text


async def test_a_bookie_that_is_not_believed(files, connect, ask):
    client = await connect(server_of(files), client_of(files, trust="other"))
    assert await ask(client) == (Status.EIO, Status.EIO, Status.EIO)


async def test_files_that_change_are_for_new_connections(files, connect, ask, tmp_path):
    trusted = tmp_path / "trusted.pem"
    shutil.copy(files["other"][0], trusted)
    values = {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "clientTrustStore": str(trusted),
        "tlsCertFilesRefreshDurationSeconds": 1,
    }
    client = await connect(server_of(files), network_config(values).tls)
    assert await ask(client) == (Status.EIO, Status.EIO, Status.EIO)
    shutil.copy(files["bookie"][0], trusted)
    with trio.fail_after(20):
        while await ask(client) != (Status.EOK, Status.EOK, Status.EOK):
            await trio.sleep(0.2)


async def test_a_client_that_is_not_believed(files, connect, ask):
    client = await connect(server_of(files, "writer"), client_of(files, "other"))
    assert await ask(client) == (Status.EIO, Status.EIO, Status.EIO)


async def test_roles(files, connect, ask):
    roles = CertificateRoles(frozenset({"writers"}))
    client = await connect(server_of(files, "writer"), client_of(files, "writer"), roles)
    assert await ask(client) == (Status.EOK, Status.EOK, Status.EOK)


@pytest.mark.parametrize("name", ["clear", "without role"])
async def test_without_a_role_every_request_is_refused(files, connect, ask, name):
    """In the clear, too; and not only the first, which takes a way of its own."""
    roles = CertificateRoles(frozenset({"readers"}))
    tls = None if name == "clear" else client_of(files, "writer")
    client = await connect(server_of(files, "writer"), tls, roles)
    for _ in range(3):
        assert await ask(client) == (Status.EUA, Status.EUA, Status.EUA)
