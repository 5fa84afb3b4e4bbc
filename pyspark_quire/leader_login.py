"""How the leaders are asked in a secured cluster, by the names that Java's clients have for it, and
Spark's `kafka` source.

Served are security.protocol, sasl.mechanism (PLAIN, SCRAM) and sasl.jaas.config, and
ssl.truststore.*, ssl.keystore.*, ssl.key.password and ssl.endpoint.identification.algorithm, with
stores as PEM, PKCS12 or JKS. Another name of ssl.* or sasl.* is refused, as somebody relies on it;
the rest is of consumers, which we do not have. No error has a password in it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from broker.security.sasl.outgoing import MODULES, Account
from broker.security.tls.stores import (
    StoreError,
    certificates_of_pem,
    key_of_pem,
    key_of_store,
    trusted_of_store,
)
from runtime.config import ConfigError
from runtime.jaas import parse_jaas_entry
from runtime.key_files import read_key_file
from runtime.tls_context import client_context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cryptography import x509

T = TypeVar("T")

_PROTOCOL, _MECHANISM, _JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ALGORITHM = "ssl.endpoint.identification.algorithm"
_SERVED = frozenset(
    {
        *(_PROTOCOL, _MECHANISM, _JAAS, _ALGORITHM, "ssl.key.password"),
        *(
            f"ssl.{store}.{what}"
            for store in ("truststore", "keystore")
            for what in ("location", "type", "password")
        ),
    }
)
_SECURITY = ("ssl.", "sasl.", "security.")
_PEM = b"-----BEGIN"


@dataclass(slots=True, frozen=True)
class Login:
    """`context`: None without TLS; `account`: None without SASL."""

    protocol: str = "PLAINTEXT"
    context: ssl.SSLContext | None = None
    account: Account | None = None

    def __str__(self) -> str:
        if self.account is None:
            return f"a client without a login ({self.protocol})"
        return f"{self.account.user!r} by {self.account.mechanism} ({self.protocol})"


def login_of(given: Mapping[str, str]) -> Login:
    """ConfigError names the option: `kafka.` and the setting."""
    texts = {name.lower(): text for name, text in given.items()}
    for name in sorted(texts):
        if name.startswith(_SECURITY) and name not in _SERVED:
            raise _error(name, "is not served: the leaders are asked without Java's client")
    protocol = texts.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise _error(_PROTOCOL, f"{protocol!r} is none of {', '.join(_PROTOCOLS)}")
    return Login(
        protocol,
        _context(texts) if protocol.endswith("SSL") else None,
        _account(texts) if protocol.startswith("SASL") else None,
    )


def _error(name: str, words: str) -> ConfigError:
    return ConfigError(name, f"kafka.{name}: {words}")


def _account(texts: Mapping[str, str]) -> Account:
    mechanism = texts.get(_MECHANISM, "GSSAPI")
    wanted = MODULES.get(mechanism)
    if wanted is None:
        raise _error(_MECHANISM, f"{mechanism} is not served, {', '.join(sorted(MODULES))} are")
    if _JAAS not in texts:
        raise _error(_JAAS, f"must be set for {mechanism}")
    module = parse_jaas_entry(texts[_JAAS], f"kafka.{_JAAS}")
    if module.name.rpartition(".")[2] != wanted:
        raise _error(_JAAS, f"{module.name} is not {wanted}, which {mechanism} needs")
    user, password = module.options.get("username"), module.options.get("password")
    if not user or not password:
        raise _error(_JAAS, "must have a username and a password")
    return Account(mechanism, user, password)


def _context(texts: Mapping[str, str]) -> ssl.SSLContext:
    trusted = [_der(each) for each in _trusted(texts)]
    checks = texts.get(_ALGORITHM, "https") != ""
    pair = _key(texts)
    if pair is not None:
        if not trusted:
            raise _error("ssl.truststore.location", "must be set where ssl.keystore.location is")
        return client_context_of(trusted, *pair, checks_hostname=checks)
    context = ssl.create_default_context()
    if trusted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=b"".join(trusted))
        # As with Java, each of them is believed, whether or not it is an authority's own.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = checks
    return context


def _trusted(texts: Mapping[str, str]) -> tuple[x509.Certificate, ...]:
    """Empty: the system's authorities."""
    name, password = "ssl.truststore.location", texts.get("ssl.truststore.password")
    data = _file(name, texts, is_secret=False)
    if data is None:
        return ()
    if _PEM in data:
        return _made(name, lambda: certificates_of_pem(data))
    return _made(name, lambda: trusted_of_store(data, password))


def _key(texts: Mapping[str, str]) -> tuple[bytes, bytes] | None:
    """(chain, key) in PEM; None: no certificate is shown."""
    name, secret = "ssl.keystore.location", texts.get("ssl.key.password")
    data = _file(name, texts, is_secret=True)
    if data is None:
        return None
    if _PEM in data:
        found = _made(name, lambda: key_of_pem(data, data, secret))
    else:
        password = texts.get("ssl.keystore.password", "")
        found = _made(name, lambda: key_of_store(data, password, secret))
    return found.chain_pem(), found.key_pem()


def _der(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def _file(name: str, texts: Mapping[str, str], *, is_secret: bool) -> bytes | None:
    path = texts.get(name)
    if not path:
        return None
    try:
        return read_key_file(path, is_secret=is_secret)
    except OSError as error:
        raise _error(name, str(error)) from None


def _made(name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except StoreError as error:
        raise _error(name, str(error)) from None
