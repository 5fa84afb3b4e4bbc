"""SSLContexts of PEM files, for servers and clients. TLS 1.2 and up, no renegotiation."""

from __future__ import annotations

import ssl


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
