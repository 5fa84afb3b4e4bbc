"""TLS of a server's pages, as BookKeeper's settings say: `pages_tls`.

The stores are PEM, PKCS12 or JKS, told apart by what is in them. With a trust store only who shows
a certificate that it vouches for is answered. Files that change are read again, as those of
listeners are (runtime/renewed_tls.py).
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding

from broker.security.tls.stores import (
    StoreError,
    certificates_of_pem,
    key_of_pem,
    key_of_store,
    trusted_of_store,
)
from runtime.config import ConfigError
from runtime.key_files import read_key_file
from runtime.renewed_tls import RenewedTls
from runtime.tls_context import server_context_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.server.pages_config import PagesConfig

T = TypeVar("T")
KEY_STORE, TRUST_STORE = "httpServerKeyStorePath", "httpServerTrustStorePath"
_PASSWORD = "httpServerKeyStorePassword"
_PEM = b"-----BEGIN"


def pages_tls(config: PagesConfig) -> RenewedTls:
    """ConfigError."""
    paths = [path for path in (config.key_store, config.trust_store) if path]
    return RenewedTls("http_tls", partial(_context, config), paths, config.tls_check_ms)


def _context(config: PagesConfig) -> ssl.SSLContext:
    """ConfigError."""
    path, password = config.key_store, config.key_store_password
    if not path:
        raise ConfigError(KEY_STORE, f"{KEY_STORE}: must be set for httpServerTlsEnable")
    data = _file(KEY_STORE, path, is_secret=True)
    if data.lstrip().startswith(_PEM):
        key = _made(KEY_STORE, lambda: key_of_pem(data, data, password))
    elif password:
        secret = password
        key = _made(KEY_STORE, lambda: key_of_store(data, secret, None))
    else:
        raise ConfigError(_PASSWORD, f"{_PASSWORD}: must be set for a JKS or PKCS12 store")
    trusted = []
    if config.trust_store:
        store = _file(TRUST_STORE, config.trust_store, is_secret=False)
        is_pem = store.lstrip().startswith(_PEM)
        found = _made(
            TRUST_STORE,
            lambda: (
                certificates_of_pem(store)
                if is_pem
                else trusted_of_store(store, config.trust_store_password)
            ),
        )
        trusted = [one.public_bytes(Encoding.DER) for one in found]
    verify = ssl.CERT_REQUIRED if trusted else ssl.CERT_NONE
    try:
        return server_context_of(key.chain_pem(), key.key_pem(), trusted, verify)
    except ssl.SSLError as error:
        raise ConfigError(KEY_STORE, f"{KEY_STORE}: OpenSSL does not take it: {error}") from None


def _file(setting: str, path: str, *, is_secret: bool) -> bytes:
    try:
        return read_key_file(path, is_secret=is_secret)
    except OSError as error:
        raise ConfigError(setting, f"{setting}: {error}") from None


def _made(setting: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except StoreError as error:
        raise ConfigError(setting, f"{setting}: {error}") from None
