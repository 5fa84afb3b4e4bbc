"""How a client of ours gets into a secured cluster, by the names that Java's clients have for it.

Served are security.protocol, ssl.truststore.*, ssl.keystore.*, ssl.key.password,
ssl.endpoint.identification.algorithm, and of SASL the mechanisms PLAIN and SCRAM by sasl.mechanism
and sasl.jaas.config. Another name of ssl.* or sasl.* is refused, as somebody relies on it; the rest
of a client's settings is passed over. No error has a password in it.

For clients that block: commands (quire/tools/groups) and Spark's driver (pyspark_quire). How a
broker gets in at another one: sasl/outgoing.py.
"""

from __future__ import annotations

import secrets
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from broker.cluster.peer_login import LoginRefusedError
from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.outgoing import MODULES, Account, authenticated, handshaken
from broker.security.sasl.scram.client_core import ScramClient
from broker.security.sasl.scram.hashes import BY_NAME
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
from wire.dataclass import dataclass
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from cryptography import x509

    Ask = Callable[[Any, int], Any]

T = TypeVar("T")
_PROTOCOL, _MECHANISM, _JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_STORES = tuple(
    f"ssl.{store}.{what}"
    for store in ("truststore", "keystore")
    for what in ("location", "type", "password")
)
_ALGORITHM = "ssl.endpoint.identification.algorithm"
_SERVED = frozenset(
    {
        *(_PROTOCOL, _MECHANISM, _JAAS, _ALGORITHM, *_STORES, "ssl.key.password"),
        *("ssl.truststore.certificates", "ssl.keystore.key", "ssl.keystore.certificate.chain"),
    }
)
_REFUSED = ("ssl.", "sasl.", "security.")
_TYPES = ("PEM", "PKCS12", "JKS")
_PEM = b"-----BEGIN"


@dataclass(slots=True, frozen=True)
class ClientSecurity:
    """`context`: None without TLS; `account`: None without a login."""

    context: ssl.SSLContext | None = None
    account: Account | None = None
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        if self.account is None:
            return f"a client without a login ({self.protocol})"
        return f"{self.account.user!r} by {self.account.mechanism} ({self.protocol})"

    def secured(self, connection: socket.socket, host: str) -> socket.socket:
        """OSError."""
        if self.context is None:
            return connection
        return self.context.wrap_socket(connection, server_hostname=host)

    def log_in(self, ask: Ask) -> None:
        """LoginRefusedError, and whatever `ask` raises."""
        account = self.account
        if account is None:
            return
        handshaken(ask(SaslHandshakeRequest(mechanism=account.mechanism), 1), account)

        def send(token: bytes) -> bytes:
            answer = ask(SaslAuthenticateRequest(auth_bytes=token), 2)
            return authenticated(answer, account)

        kind = BY_NAME.get(account.mechanism)
        if kind is None:
            send(account.plain_token())
            return
        try:
            client = ScramClient(kind, account.user, secrets.token_hex(24))
            salting = client.salting(send(client.first()))
            salted = kind.salted(account.password.encode(), salting.salt, salting.iterations)
            client.check(send(client.final(salted)))
        except AuthenticationFailedError as error:
            raise LoginRefusedError(f"{error}, for {account.principal}") from None


def security_of(texts: Mapping[str, str]) -> ClientSecurity:
    """ConfigError names the setting."""
    for name in texts:
        if name.startswith(_REFUSED) and name not in _SERVED:
            raise ConfigError(name, f"{name} is not served by a client that is not Java's")
    protocol = texts.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            _PROTOCOL, f"{_PROTOCOL}={protocol}: expected one of {', '.join(_PROTOCOLS)}"
        )
    context = _context(texts) if protocol.endswith("SSL") else None
    account = _account(texts) if protocol.startswith("SASL") else None
    return ClientSecurity(context, account, protocol)


def _account(texts: Mapping[str, str]) -> Account:
    mechanism = texts.get(_MECHANISM, "GSSAPI")
    wanted = MODULES.get(mechanism)
    if wanted is None:
        raise ConfigError(
            _MECHANISM,
            f"{_MECHANISM}={mechanism} is not served, {', '.join(sorted(MODULES))} are",
        )
    if _JAAS not in texts:
        raise ConfigError(_JAAS, f"{_JAAS} must be set for {mechanism}")
    module = parse_jaas_entry(texts[_JAAS], _JAAS)
    if module.name.rpartition(".")[2] != wanted:
        raise ConfigError(_JAAS, f"{_JAAS}: {module.name} is not {wanted}, which {mechanism} needs")
    user, password = module.options.get("username", ""), module.options.get("password", "")
    if not user or not password:
        raise ConfigError(_JAAS, f"{_JAAS}: must have a username and a password")
    if unknown := sorted(module.options.keys() - {"username", "password"}):
        raise ConfigError(_JAAS, f"{_JAAS}: {wanted} has no option {unknown[0]} here")
    return Account(mechanism, user, password)


def _context(texts: Mapping[str, str]) -> ssl.SSLContext:
    trusted = _trusted(texts)
    checks = texts.get(_ALGORITHM, "https") != ""
    pair = _key(texts)
    if trusted and pair is not None:
        der = [_der(one) for one in trusted]
        return client_context_of(der, *pair, checks_hostname=checks)
    context = ssl.create_default_context()
    context.check_hostname = checks
    if trusted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = checks
        context.load_verify_locations(cadata=b"".join(_der(one) for one in trusted))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if pair is not None:
        name = "ssl.truststore.location"
        raise ConfigError(name, f"{name} must be set where ssl.keystore is")
    return context


def _trusted(texts: Mapping[str, str]) -> tuple[x509.Certificate, ...]:
    """Empty: the system's authorities."""
    name = "ssl.truststore.certificates"
    if text := texts.get(name):
        return _made(name, lambda: certificates_of_pem(text.encode()))
    name, password = "ssl.truststore.location", texts.get("ssl.truststore.password")
    path = texts.get(name)
    if not path:
        return ()
    data = _file(name, path, is_secret=False)
    if _is_pem(texts, "ssl.truststore.type", data):
        return _made(name, lambda: certificates_of_pem(data))
    return _made(name, lambda: trusted_of_store(data, password))


def _key(texts: Mapping[str, str]) -> tuple[bytes, bytes] | None:
    """(chain, key) in PEM; None: the client shows no certificate."""
    secret = texts.get("ssl.key.password")
    name = "ssl.keystore.key"
    if (key := texts.get(name)) and (chain := texts.get("ssl.keystore.certificate.chain")):
        found = _made(name, lambda: key_of_pem(key.encode(), chain.encode(), secret))
        return found.chain_pem(), found.key_pem()
    name = "ssl.keystore.location"
    path = texts.get(name)
    if not path:
        return None
    data = _file(name, path, is_secret=True)
    if _is_pem(texts, "ssl.keystore.type", data):
        found = _made(name, lambda: key_of_pem(data, data, secret))
    else:
        password = texts.get("ssl.keystore.password", "")
        found = _made(name, lambda: key_of_store(data, password, secret))
    return found.chain_pem(), found.key_pem()


def _is_pem(texts: Mapping[str, str], name: str, data: bytes) -> bool:
    """By the type, and without one by the file: nothing else begins so."""
    found = texts.get(name)
    if found is not None and found not in _TYPES:
        raise ConfigError(name, f"{name}={found}: expected one of {', '.join(_TYPES)}")
    return found == "PEM" or (found is None and _PEM in data)


def _der(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def _file(name: str, path: str, *, is_secret: bool) -> bytes:
    try:
        return read_key_file(path, is_secret=is_secret)
    except OSError as error:
        raise ConfigError(name, f"{name}: {error}") from None


def _made(name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except StoreError as error:
        raise ConfigError(name, f"{name}: {error}") from None
