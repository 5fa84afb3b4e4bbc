"""Certificates that are made here, by `cryptography`: an authority, and what it signs."""

import dataclasses
import datetime
import ipaddress
import os
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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

    def made(
        self, subject, key=None, *, hosts=("localhost", "127.0.0.1"), days=(-1, 30), usage=None
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

    def _built(self, subject, key, *extensions, days=(-1, 30)):
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
