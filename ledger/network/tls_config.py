"""TLS to bookies, as a Java client's with PEM files (ClientConfiguration.java)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtime.config import ConfigError, ConfigType
from runtime.renewed_tls import RenewedTls
from runtime.settings import of_values, setting
from runtime.tls_context import client_context
from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from runtime.config import ConfigValue

STRING, BOOLEAN = ConfigType.STRING, ConfigType.BOOLEAN
_TRUST_PATH = "clientTrustStore"
_KEY_TYPE, _TRUST_TYPE = "clientKeyStoreType", "clientTrustStoreType"


@dataclass(slots=True, frozen=True)
class ClientTlsSettings:
    """As they are set. Three more are a bookie's, which a client's file may have as well:
    tlsProviderFactoryClass, tlsCertificatePath and tlsCertFilesRefreshDurationSeconds."""

    trust_path: str | None = setting(
        _TRUST_PATH, STRING, doc="Who signs bookies' certificates, PEM."
    )
    trust_type: str = setting(_TRUST_TYPE, STRING, "PEM", doc="Only PEM.")
    key_path: str | None = setting("clientKeyStore", STRING, doc="The client's private key, PEM.")
    key_type: str = setting(_KEY_TYPE, STRING, "PEM", doc="Only PEM.")
    key_password_path: str | None = setting(
        "clientKeyStorePasswordPath", STRING, doc="File with the key's password."
    )
    checks_hostname: bool = setting(
        "tlsHostnameVerificationEnabled", BOOLEAN, "false", doc="Certificates name the host."
    )


def renewed_tls(values: Mapping[str, ConfigValue]) -> RenewedTls | None:
    """`values`: parsed, only what is set. tlsProviderFactoryClass says that there is TLS, and
    tlsCertificatePath names the client's certificate. ConfigError."""
    if not values.get("tlsProviderFactoryClass"):
        return None
    settings = of_values(ClientTlsSettings, values)
    for name, kind in ((_TRUST_TYPE, settings.trust_type), (_KEY_TYPE, settings.key_type)):
        if kind.upper() != "PEM":
            raise ConfigError(
                name,
                f"{name}: {kind} cannot be read here, PEM can (keytool and openssl pkcs12 convert)",
            )
    if not settings.trust_path:
        raise ConfigError(_TRUST_PATH, f"{_TRUST_PATH}: must be set for TLS")
    # A certificate without a client's key is a bookie's in the same file.
    certificate = values.get("tlsCertificatePath") if settings.key_path else None
    paths = (certificate, settings.key_path, settings.key_password_path, settings.trust_path)
    refresh_seconds = values.get("tlsCertFilesRefreshDurationSeconds")
    return RenewedTls(
        "client_tls",
        partial(_context, settings, None if certificate is None else str(certificate)),
        [str(path) for path in paths if path],
        1000 * refresh_seconds if isinstance(refresh_seconds, int) else 0,
    )


def _context(settings: ClientTlsSettings, certificate: str | None) -> ssl.SSLContext:
    """ConfigError."""
    try:
        password = None
        if settings.key_password_path:
            with open(settings.key_password_path, encoding="utf-8") as file:
                password = file.read().strip()
        return client_context(
            trust_path=settings.trust_path,
            certificate_path=certificate,
            key_path=settings.key_path,
            key_password=password,
            checks_hostname=settings.checks_hostname,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(_TRUST_PATH, f"TLS: {error}") from error
