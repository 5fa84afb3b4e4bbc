"""clientAuthProviderFactoryClass: how our client shows a bookie who it is.

BookKeeper's SASLClientProviderFactory is known, with DIGEST-MD5: user and password are `username`
and `password` of the JAAS file's section `BookKeeper` (`Auditor` for auto-recovery). No Kerberos.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runtime.config import ConfigError, ConfigKey, ConfigType
from runtime.jaas import JAAS_PATH_SETTING, digest_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

SASL_PROVIDER = "SASLClientProviderFactory"
CLIENT_SECTION, AUDITOR_SECTION = "saslJaasClientSectionName", "saslJaasAuditorSectionName"
#: The JAAS file's own name is a bookie's setting, which a client's file may have as well.
AUTH_KEYS = (
    ConfigKey(
        "clientAuthProviderFactoryClass",
        ConfigType.STRING,
        None,
        "SASLClientProviderFactory, with or without package; else nothing is shown.",
    ),
    ConfigKey(CLIENT_SECTION, ConfigType.STRING, "BookKeeper", "Of the JAAS file."),
    ConfigKey(AUDITOR_SECTION, ConfigType.STRING, "Auditor", "The same, for auto-recovery."),
)


@dataclass(slots=True, frozen=True)
class SaslLogin:
    user: str
    password: str = field(repr=False)


def sasl_login(values: Mapping[str, ConfigValue], *, is_auditor: bool = False) -> SaslLogin | None:
    """None: no AUTH is sent. ConfigError, also for a provider that is not known here."""
    name = "clientAuthProviderFactoryClass"
    wanted = values.get(name)
    if not wanted:
        return None
    if str(wanted).rpartition(".")[2] != SASL_PROVIDER:
        raise ConfigError(name, f"{name}: {wanted} is not known here, {SASL_PROVIDER} is")
    found: dict[str, Any] = {key.name: key.parse_default() for key in AUTH_KEYS}
    found |= {name: value for name, value in values.items() if value is not None}
    section = found[AUDITOR_SECTION if is_auditor else CLIENT_SECTION]
    options = digest_options(found.get(JAAS_PATH_SETTING), section)
    for key in ("username", "password"):
        if not options.get(key):
            raise ConfigError(
                JAAS_PATH_SETTING, f"{found[JAAS_PATH_SETTING]}: section {section}: no {key}"
            )
    return SaslLogin(options["username"], options["password"])
