"""What START_TLS offers, by the names in bk_server.conf (TLSContextFactory.java)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtime.config import ConfigError, ConfigType, at_least
from runtime.renewed_tls import RenewedTls
from runtime.settings import of_values, setting
from runtime.tls_context import server_context
from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from runtime.config import ConfigValue

STRING, BOOLEAN = ConfigType.STRING, ConfigType.BOOLEAN
_CERTIFICATE, _KEY = "tlsCertificatePath", "tlsKeyStore"
_KEY_TYPE, _TRUST_TYPE = "tlsKeyStoreType", "tlsTrustStoreType"


@dataclass(slots=True, frozen=True)
class TlsSettings:
    """As they are set."""

    provider: str | None = setting(
        "tlsProviderFactoryClass", STRING, doc="Any name offers START_TLS."
    )
    certificate_path: str | None = setting(_CERTIFICATE, STRING, doc="The certificates, PEM.")
    key_path: str | None = setting(_KEY, STRING, doc="The private key, PEM.")
    key_type: str = setting(_KEY_TYPE, STRING, "PEM", doc="Only PEM.")
    key_password_path: str | None = setting(
        "tlsKeyStorePasswordPath", STRING, doc="File with the key's password."
    )
    trust_path: str | None = setting(
        "tlsTrustStore", STRING, doc="Who signs clients' certificates, PEM."
    )
    trust_type: str = setting(_TRUST_TYPE, STRING, "PEM", doc="Only PEM.")
    needs_client_certificate: bool = setting(
        "tlsClientAuthentication", BOOLEAN, "false", doc="Clients need one."
    )
    #: In seconds. A client's file may have it as well.
    refresh_seconds: int = setting(
        "tlsCertFilesRefreshDurationSeconds",
        ConfigType.LONG,
        "0",
        at_least(0),
        doc="How often the files are looked at, and read again if they changed; 0: never.",
    )


def renewed_tls(values: Mapping[str, ConfigValue]) -> RenewedTls | None:
    """`values`: parsed, only what is set. None: no TLS. ConfigError."""
    settings = of_values(TlsSettings, values)
    if not settings.provider:
        return None
    for name in ("tlsEnabledProtocols", "tlsEnabledCipherSuites"):
        if values.get(name):
            raise ConfigError(name, f"{name}: cannot be chosen here; Python's defaults are served")
    for name, kind in ((_KEY_TYPE, settings.key_type), (_TRUST_TYPE, settings.trust_type)):
        if kind.upper() != "PEM":
            raise ConfigError(name, f"{name}: {kind} is not served, PEM is")
    certificate, key = settings.certificate_path, settings.key_path
    if not certificate or not key:
        name = _KEY if certificate else _CERTIFICATE
        raise ConfigError(name, f"{name}: must be set for TLS")
    paths = (certificate, key, settings.key_password_path, settings.trust_path)
    return RenewedTls(
        "server_tls",
        partial(_context, settings, certificate, key),
        [path for path in paths if path],
        settings.refresh_seconds * 1000,
    )


def _context(settings: TlsSettings, certificate: str, key: str) -> ssl.SSLContext:
    """ConfigError."""
    try:
        password = None
        if settings.key_password_path:
            with open(settings.key_password_path, encoding="utf-8") as file:
                password = file.read().strip()
        return server_context(
            certificate_path=certificate,
            key_path=key,
            key_password=password,
            trust_path=settings.trust_path,
            needs_client_certificate=settings.needs_client_certificate,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(_CERTIFICATE, f"TLS: {error}") from error
