"""Certificates that are made here, by `cryptography`: an authority, and what it signs."""

import dataclasses
import datetime
import ipaddress
import os
import ssl
import tempfile
from functools import cache

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.node import security as broker_security
from broker.security.tls.composition import tls_server
from tests.broker.conftest import Client, _close_at_the_end

DAY = datetime.timedelta(days=1)
#: As they would be said in a file's order: the most general first.
WORDS = {"O": NameOID.ORGANIZATION_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
         "CN": NameOID.COMMON_NAME}  # fmt: skip


@cache
def rsa_key(bits=2048):
    return rsa.generate_private_key(65537, bits)


def name_of(text):
    parts = (part.split("=") for part in text.split(","))
    return x509.Name([x509.NameAttribute(WORDS[word], value) for word, value in parts])


@dataclasses.dataclass
class Made:
    key: object
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def key_pem(self):
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def chain_pem(self):
        pem = Encoding.PEM
        return self.certificate.public_bytes(pem) + self.authority.public_bytes(pem)

    @property
    def pem(self):
        return self.key_pem + self.chain_pem


class Authority:
    def __init__(self, name="CN=authority"):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = name_of(name)
        self.certificate = self._built(
            self.name, self.key, x509.BasicConstraints(ca=True, path_length=None)
        )

    @property
    def pem(self):
        return self.certificate.public_bytes(Encoding.PEM)

    def authority(self, name):
        """One that this one vouches for."""
        below = Authority(name)
        below.certificate = self._built(
            below.name, below.key, x509.BasicConstraints(ca=True, path_length=None)
        )
        return below

    def made(
        self, subject, key=None, *, hosts=("localhost", "127.0.0.1"), days=(-1, 90), usage=None
    ):
        """`days`: from when until when it is valid, from now. `usage`: its extended key usage."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts
        ]
        extensions = [x509.SubjectAlternativeName(names)] if names else []
        if usage is not None:
            extensions.append(x509.ExtendedKeyUsage([usage]))
        name = subject if isinstance(subject, x509.Name) else name_of(subject)
        return Made(key, self._built(name, key, *extensions, days=days), self.certificate)

    def _built(self, subject, key, *extensions, days=(-1, 90)):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())


SERVER_ONLY = ExtendedKeyUsageOID.SERVER_AUTH


@pytest.fixture(scope="session")
def authority():
    return Authority()


@pytest.fixture
def write(tmp_path):
    """write(name, bytes, mode=0o600) -> the path; the file is replaced whole."""

    def write(name, data, mode=0o600):
        path = tmp_path / name
        made = tmp_path / f".{name}"
        made.write_bytes(data)
        os.chmod(made, mode)
        os.replace(made, path)
        return str(path)

    return write


@dataclasses.dataclass
class TlsWorld:
    """A server whose only listener is SSL, or SASL_SSL; `tls` is the listener's TlsServer."""

    server: object
    tls: object
    authority: Authority

    def context(self, made=None, **attributes):
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        for name, value in attributes.items():
            setattr(context, name, value)
        if made is not None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(made.pem)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    async def stream(self, made=None, *, context=None, **attributes):
        """`made`: the client's certificate. After its handshake, as the client sees it."""
        context = context or self.context(made, **attributes)
        below = await trio.open_tcp_stream(*self.server.address)
        self.server.nursery.start_soon(_close_at_the_end, below)
        stream = trio.SSLStream(below, context, server_hostname="localhost")
        await stream.do_handshake()
        return stream

    async def connect(self, made=None, **attributes):
        return Client(self.server, await self.stream(made, **attributes))

    @property
    def principals(self):
        return sorted(
            str(one.info.principal) for one in self.server.parts["Dispatcher"].connections
        )


@pytest.fixture
def start_tls(start_server, authority, write, monkeypatch):
    """start_tls(made, settings) -> a TlsWorld; `made` has a RSA key if none is given."""
    servers = []

    def remembering(*arguments, **keywords):
        servers.append(tls_server(*arguments, **keywords))
        return servers[-1]

    monkeypatch.setattr(broker_security, "tls_server", remembering)

    async def start(made=None, settings=None):
        made = made or authority.made("O=Example,CN=server", rsa_key())
        listener = {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": write("server.pem", made.pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": write("trust.pem", authority.pem, 0o644),
        }
        server = await start_server({**listener, **(settings or {})})
        return TlsWorld(server, servers[-1], authority)

    return start
