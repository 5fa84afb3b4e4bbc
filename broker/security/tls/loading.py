"""A listener's TLS as its settings say: files are read, and an SSLContext is made (`load`).

It blocks for as long as reading and unlocking a few files takes (0.1 s for a PKCS12 store), so
while the broker runs it is for a worker thread. What goes together is as in Kafka's
`DefaultSslEngineFactory`; a listener without a key, and one that asks for certificates and
believes nobody, end the start, where Kafka's fails each client or believes Java's own authorities.
"""

from __future__ import annotations

import ssl
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding

from broker.security.tls.stores import (
    KeyMaterial,
    StoreError,
    certificates_of_pem,
    key_of_pem,
    key_of_store,
    trusted_of_store,
)
from broker.security.tls.suites import TLS_1_2, openssl_suites, versions
from runtime.key_files import FileMark, mark_of, read_key_file
from runtime.tls_context import client_context_of, server_context_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography import x509

    from broker.cluster.config_listener import ListenerSettings
    from broker.cluster.config_ssl import TlsSettings

T = TypeVar("T")
_VERSIONS = {TLS_1_2: ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
PEM = "PEM"
_KEY_STORE, _TRUST_STORE = "ssl.keystore.location", "ssl.truststore.location"
_KEY, _CHAIN = "ssl.keystore.key", "ssl.keystore.certificate.chain"
_KEY_STORE_PASSWORD, _TRUST_STORE_PASSWORD = "ssl.keystore.password", "ssl.truststore.password"
_AUTHORITIES, _CLIENT_AUTH = "ssl.truststore.certificates", "ssl.client.auth"
_PEM_BEGINS = b"-----BEGIN"


@dataclass(slots=True, frozen=True)
class LoadedTls:
    """`settings`, `files`: what it was made of, the files as they were before they were read."""

    settings: TlsSettings = field(repr=False)
    context: ssl.SSLContext = field(repr=False)
    #: As which this broker connects to others, if it meets them at this listener; None: there is
    #: nobody whom it would believe.
    client: ssl.SSLContext | None = field(repr=False)
    certificate: x509.Certificate
    handshake_units: int
    files: dict[str, FileMark | None]

    @property
    def expires_ms(self) -> int:
        return int(self.certificate.not_valid_after_utc.timestamp() * 1000)


def load(settings: ListenerSettings, *, has_sasl: bool) -> LoadedTls:
    """ConfigError. `has_sasl`: of a SASL_SSL listener, which asks for certificates only if that is
    said of the listener (KIP-684)."""
    tls = settings.tls()
    files = {
        path: mark_of(path) for path in (tls.keystore_location, tls.truststore_location) if path
    }
    key, trusted = _key(settings, tls), _trusted(settings, tls)
    auth = _client_auth(settings, tls, has_sasl=has_sasl)
    if auth != "none" and not trusted:
        raise settings.error(
            _CLIENT_AUTH, f"{auth}, and there is no {_TRUST_STORE}: nobody is believed"
        )
    try:
        openssl = openssl_suites(tls.cipher_suites)
        spoken = versions(tls.protocol, tls.enabled_protocols, tls.cipher_suites)
    except ValueError as error:
        raise settings.error("ssl.cipher.suites", error) from None
    pair = (key.chain_pem(), key.key_pem())
    believed = [one.public_bytes(Encoding.DER) for one in trusted]
    client = None
    try:
        context = server_context_of(*pair, believed, _VERIFY[auth])
        if believed:
            checks = tls.endpoint_identification_algorithm != ""
            client = client_context_of(believed, *pair, checks_hostname=checks)
        for one in (context, client):
            if one is not None:
                one.minimum_version = _VERSIONS[spoken[0]]
                one.maximum_version = _VERSIONS[spoken[-1]]
                if openssl is not None:
                    one.set_ciphers(openssl)
    except ssl.SSLError as error:
        raise settings.error(_KEY_STORE, f"OpenSSL does not take it: {error}") from None
    return LoadedTls(tls, context, client, key.certificate, key.handshake_units, files)


def _client_auth(settings: ListenerSettings, tls: TlsSettings, *, has_sasl: bool) -> str:
    found = settings.find(_CLIENT_AUTH)
    is_of_listener = found is not None and found[0] != _CLIENT_AUTH
    return tls.client_auth if is_of_listener or not has_sasl else "none"


def _key(settings: ListenerSettings, tls: TlsSettings) -> KeyMaterial:
    key, chain, path = tls.keystore_key, tls.keystore_certificate_chain, tls.keystore_location
    password, error = tls.keystore_password, settings.error
    is_pem = tls.keystore_type == PEM
    if key or chain:
        if not key or not chain:
            raise error(_CHAIN if key else _KEY, f"must be set: {_KEY} and {_CHAIN} go together")
        if not is_pem:
            raise error(_KEY, "is for ssl.keystore.type=PEM")
        if path:
            raise error(_KEY, f"and {_KEY_STORE} are set: one of them")
        pair = (key.encode(), chain.encode())
        return _made(settings, _KEY, lambda: key_of_pem(*pair, tls.key_password))
    if not path:
        raise error(_KEY_STORE, "must be set: TLS needs a key")
    if is_pem and password:
        raise error(_KEY_STORE_PASSWORD, "is not for PEM; ssl.key.password is")
    if not is_pem and not password:
        raise error(_KEY_STORE_PASSWORD, "must be set for a JKS or PKCS12 store")
    data = _file(settings, _KEY_STORE, path, is_secret=True)
    if is_pem or not password:
        return _made(settings, _KEY_STORE, lambda: key_of_pem(data, data, tls.key_password))
    if data.startswith(_PEM_BEGINS):
        raise error(_KEY_STORE, f"{path} is PEM: ssl.keystore.type must say so")
    return _made(settings, _KEY_STORE, lambda: key_of_store(data, password, tls.key_password))


def _trusted(settings: ListenerSettings, tls: TlsSettings) -> tuple[x509.Certificate, ...]:
    """Empty: nobody is believed."""
    text, path, password = (
        tls.truststore_certificates,
        tls.truststore_location,
        tls.truststore_password,
    )
    is_pem, error = tls.truststore_type == PEM, settings.error
    if is_pem and password:
        raise error(_TRUST_STORE_PASSWORD, "is not for PEM")
    if text:
        if not is_pem:
            raise error(_AUTHORITIES, "is for ssl.truststore.type=PEM")
        if path:
            raise error(_AUTHORITIES, f"and {_TRUST_STORE} are set: one of them")
        return _made(settings, _AUTHORITIES, lambda: certificates_of_pem(text.encode()))
    if not path:
        if password:
            raise error(_TRUST_STORE_PASSWORD, f"is set, and {_TRUST_STORE} is not")
        return ()
    data = _file(settings, _TRUST_STORE, path, is_secret=False)
    if is_pem:
        return _made(settings, _TRUST_STORE, lambda: certificates_of_pem(data))
    if data.startswith(_PEM_BEGINS):
        raise error(_TRUST_STORE, f"{path} is PEM: ssl.truststore.type must say so")
    return _made(settings, _TRUST_STORE, lambda: trusted_of_store(data, password))


def _made(settings: ListenerSettings, name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except StoreError as error:
        raise settings.error(name, error) from None


def _file(settings: ListenerSettings, name: str, path: str, *, is_secret: bool) -> bytes:
    try:
        return read_key_file(path, is_secret=is_secret)
    except OSError as error:
        raise settings.error(name, error) from None
