"""clientAuthProviderFactoryClass: how our client shows a bookie who it is.

BookKeeper's SASLClientProviderFactory is known, with DIGEST-MD5: user and password are `username`
and `password` of the JAAS file's section `BookKeeper` (`Auditor` for auto-recovery). No Kerberos.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from runtime.config import ConfigError, ConfigType
from runtime.jaas import JAAS_PATH_SETTING, digest_options
from runtime.settings import of_values, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

SASL_PROVIDER = "SASLClientProviderFactory"
STRING = ConfigType.STRING
_PROVIDER = "clientAuthProviderFactoryClass"


@dataclass(slots=True, frozen=True)
class SaslSettings:
    """As they are set. The JAAS file's own name is a bookie's setting, which a client's file may
    have as well."""

    provider: str | None = setting(
        _PROVIDER,
        STRING,
        doc="SASLClientProviderFactory, with or without package; else nothing is shown.",
    )
    client_section: str = setting(
        "saslJaasClientSectionName", STRING, "BookKeeper", doc="Of the JAAS file."
    )
    auditor_section: str = setting(
        "saslJaasAuditorSectionName", STRING, "Auditor", doc="The same, for auto-recovery."
    )


@dataclass(slots=True, frozen=True)
class SaslLogin:
    user: str
    password: str = field(repr=False)


def sasl_login(values: Mapping[str, ConfigValue], *, is_auditor: bool = False) -> SaslLogin | None:
    """None: no AUTH is sent. ConfigError, also for a provider that is not known here."""
    settings = of_values(SaslSettings, values)
    if not settings.provider:
        return None
    if settings.provider.rpartition(".")[2] != SASL_PROVIDER:
        raise ConfigError(
            _PROVIDER, f"{_PROVIDER}: {settings.provider} is not known here, {SASL_PROVIDER} is"
        )
    section = settings.auditor_section if is_auditor else settings.client_section
    path = values.get(JAAS_PATH_SETTING)
    options = digest_options(None if path is None else str(path), section)
    for key in ("username", "password"):
        if not options.get(key):
            raise ConfigError(JAAS_PATH_SETTING, f"{path}: section {section}: no {key}")
    return SaslLogin(options["username"], options["password"])
