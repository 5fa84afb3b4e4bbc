"""SSLContexts of PEM files or bytes, for servers and clients. TLS 1.2 and up, no renegotiation."""

from __future__ import annotations

import os
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def server_context(
    *,
    certificate_path: str,
    key_path: str,
    key_password: str | None = None,
    trust_path: str | None = None,
    needs_client_certificate: bool = False,
) -> ssl.SSLContext:
    """`trust_path`: the authorities whose clients are believed. OSError (ssl.SSLError among them)
    that names the files; ValueError if client certificates are needed and nobody is believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context)
    _load_chain(context, certificate_path, key_path, key_password)
    if trust_path is not None:
        _load_trust(context, trust_path)
    elif needs_client_certificate:
        raise ValueError("client certificates are asked for, and no trust store is given")
    if needs_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def server_context_of(
    chain_pem: bytes,
    key_pem: bytes,
    trusted_der: Sequence[bytes] = (),
    verify_mode: ssl.VerifyMode = ssl.CERT_NONE,
) -> ssl.SSLContext:
    """The same of what is in memory. `key_pem` is not encrypted. ssl.SSLError if key and chain do
    not fit, or OpenSSL takes them for too weak."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context)
    # OpenSSL reads chains from files only; this one is on no disk, and of this process alone.
    with _memory_file(chain_pem) as chain, _memory_file(key_pem) as key:
        context.load_cert_chain(chain, key, password="")
    if trusted_der:
        context.load_verify_locations(cadata=b"".join(trusted_der))
        # As with Java, each of them is believed, whether or not it is an authority's own.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = verify_mode
    return context


def client_context_of(
    trusted_der: Sequence[bytes], chain_pem: bytes, key_pem: bytes, *, checks_hostname: bool
) -> ssl.SSLContext:
    """A client's, with its own certificate for servers that ask for one. ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _prepare(context)
    context.check_hostname = checks_hostname
    with _memory_file(chain_pem) as chain, _memory_file(key_pem) as key:
        context.load_cert_chain(chain, key, password="")
    context.load_verify_locations(cadata=b"".join(trusted_der))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


@contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def client_context(
    *,
    trust_path: str | None,
    certificate_path: str | None = None,
    key_path: str | None = None,
    key_password: str | None = None,
    checks_hostname: bool = True,
) -> ssl.SSLContext:
    """`trust_path`: None for the authorities that this system believes. The certificate is the
    client's own, where the server asks for one. OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _prepare(context)
    context.check_hostname = checks_hostname
    if trust_path is None:
        context.load_default_certs()
    else:
        _load_trust(context, trust_path)
    if certificate_path is not None:
        _load_chain(context, certificate_path, key_path or certificate_path, key_password)
    return context


def _prepare(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION


def _load_chain(
    context: ssl.SSLContext, certificate_path: str, key_path: str, key_password: str | None
) -> None:
    try:
        # Without a password OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate_path, key_path, password=key_password or "")
    except OSError as error:
        raise OSError(f"certificate {certificate_path} with key {key_path}: {error}") from error


def _load_trust(context: ssl.SSLContext, trust_path: str) -> None:
    try:
        context.load_verify_locations(trust_path)
    except OSError as error:
        raise OSError(f"trust store {trust_path}: {error}") from error
