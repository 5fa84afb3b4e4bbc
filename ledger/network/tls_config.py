"""TLS to bookies, as a Java client's with PEM files (ClientConfiguration.java)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.config import ConfigError, ConfigType
from runtime.settings import of_values, setting
from runtime.tls_context import client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from runtime.config import ConfigValue

STRING, BOOLEAN = ConfigType.STRING, ConfigType.BOOLEAN
_TRUST_PATH = "clientTrustStore"
_KEY_TYPE, _TRUST_TYPE = "clientKeyStoreType", "clientTrustStoreType"


@dataclass(slots=True, frozen=True)
class ClientTlsSettings:
    """As they are set. Two more are a bookie's, which a client's file may have as well:
    tlsProviderFactoryClass and tlsCertificatePath."""

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


def tls_context(values: Mapping[str, ConfigValue]) -> ssl.SSLContext | None:
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
    certificate = values.get("tlsCertificatePath")
    try:
        password = None
        if settings.key_password_path:
            with open(settings.key_password_path, encoding="utf-8") as file:
                password = file.read().strip()
        return client_context(
            trust_path=settings.trust_path,
            # A certificate without a client's key is a bookie's in the same file.
            certificate_path=str(certificate) if certificate and settings.key_path else None,
            key_path=settings.key_path,
            key_password=password,
            checks_hostname=settings.checks_hostname,
        )
    except OSError as error:
        raise ConfigError(_TRUST_PATH, f"TLS: {error}") from error
