"""Who may ask a bookie anything: bookieAuthProviderFactoryClass (BookieAuthProvider.java).

An `AuthProvider` looks at a connection when its first request comes, and again when START_TLS was
done; till it agrees, all but START_TLS and AUTH is answered EUA (bookie/server/admission.py).
BookKeeper's own two are known:

- BookieAuthZFactory: the client's certificate must have one of authorizedRoles as the first role in
  its organizational unit, as `OU=0:role,other;1:cluster` (CertUtils.java).
- SASLBookieAuthProviderFactory: AUTH has to show a user's password, by DIGEST-MD5. Users are the
  `user_` options of the JAAS file's section `Bookie`; saslJaasClientAllowedIds is a regular
  expression, and what it does not match whole is refused (SaslServerState.java). No Kerberos.
"""

from __future__ import annotations

import base64
import logging
import re
from typing import TYPE_CHECKING, Any, Protocol

from bookie.server.tls_config import TlsSettings
from runtime.config import ConfigError, ConfigType
from runtime.jaas import JAAS_PATH_SETTING, digest_options
from runtime.logs import kv
from runtime.settings import of_values, setting
from wire.bookkeeper.sasl_digest import PLUGIN_NAME, DigestError, DigestServer
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.config import ConfigValue

logger = logging.getLogger(__name__)

STRING = ConfigType.STRING

_PROVIDER = "bookieAuthProviderFactoryClass"
_ALLOWED_USERS = "saslJaasClientAllowedIds"
ROLES_PROVIDER = "BookieAuthZFactory"
SASL_PROVIDER = "SASLBookieAuthProviderFactory"
_ROLES_CODE = "0"
_USER_PREFIX = "user_"
_NONCE_BYTES = 24


@dataclass(slots=True, frozen=True)
class AuthSettings:
    """As they are set."""

    provider: str | None = setting(
        _PROVIDER,
        STRING,
        doc="BookieAuthZFactory or SASLBookieAuthProviderFactory; else everybody is welcome.",
    )
    roles: tuple[str, ...] = setting(
        "authorizedRoles", ConfigType.LIST, "", doc="Of certificates, separated by commas."
    )
    jaas_path: str | None = setting(
        JAAS_PATH_SETTING, STRING, doc="The JAAS file with SASL's users."
    )
    jaas_section: str = setting("saslJaasBookieSectionName", STRING, "Bookie", doc="Of that file.")
    allowed_users: str = setting(
        _ALLOWED_USERS, STRING, ".*bookkeeper.*", doc="Users, as a pattern."
    )


class AuthError(Exception):
    """A step of AUTH that ends the exchange; the words hold no secret."""


class Exchange(Protocol):
    """One connection's AUTH messages."""

    #: Whom it was about, once it is complete.
    user: str | None

    def step(self, payload: bytes) -> bytes:
        """The answer's payload. AuthError: there is nothing more to say."""


class AuthProvider(Protocol):
    """Keeps nothing of a connection."""

    #: AuthMessage's authPluginName, of those who send AUTH.
    plugin_name: str

    def admits(self, peer: str, certificate: Mapping[str, Any] | None) -> bool:
        """`certificate`: as ssl.SSLSocket.getpeercert, verified; None without one."""

    def exchange(self, randbytes: Callable[[int], bytes]) -> Exchange | None:
        """For a connection that sends AUTH; None if AUTH cannot help."""


class CertificateRoles:
    plugin_name = ROLES_PROVIDER

    def __init__(self, roles: frozenset[str]) -> None:
        self._roles = roles

    def admits(self, peer: str, certificate: Mapping[str, Any] | None) -> bool:
        if not certificate:
            logger.info("not_authorized", kv(peer=peer, reason="no certificate"))
            return False
        role = first_role(certificate)
        if role not in self._roles:
            logger.info("not_authorized", kv(peer=peer, reason="no such role", role=role))
            return False
        return True

    def exchange(self, randbytes: Callable[[int], bytes]) -> None:
        return None


class SaslExchange:
    """Nothing, the challenge; the response, rspauth; and not a step more."""

    def __init__(self, digest: DigestServer) -> None:
        self._digest = digest
        self._steps = 0
        self.user: str | None = None

    def step(self, payload: bytes) -> bytes:
        self._steps += 1
        try:
            if self._steps == 1:
                if payload:
                    raise AuthError("DIGEST-MD5 has no initial response, and there is one")
                return self._digest.challenge()
            if self._steps > 2:
                raise AuthError("one response is all that is listened to")
            self.user, answer = self._digest.verify(payload)
        except DigestError as error:
            raise AuthError(str(error)) from error
        return answer


class SaslDigest:
    """Users with passwords."""

    plugin_name = PLUGIN_NAME

    def __init__(self, passwords: Mapping[str, str], allowed: re.Pattern[str]) -> None:
        self._passwords = passwords
        self._allowed = allowed

    def admits(self, peer: str, certificate: Mapping[str, Any] | None) -> bool:
        return False  # only AUTH does

    def exchange(self, randbytes: Callable[[int], bytes]) -> SaslExchange:
        nonce = base64.b64encode(randbytes(_NONCE_BYTES))
        return SaslExchange(DigestServer(self._passwords, nonce, self._is_allowed))

    def _is_allowed(self, user: str) -> bool:
        return self._allowed.fullmatch(user) is not None


def first_role(certificate: Mapping[str, Any]) -> str | None:
    """None if its subject tells of none."""
    for names in certificate.get("subject", ()):
        for kind, text in names:
            if kind == "organizationalUnitName":
                for part in text.split(";"):
                    code, _, roles = part.partition(":")
                    if code.strip() == _ROLES_CODE and roles:
                        return str(roles.split(",")[0].strip())
    return None


def auth_provider(values: Mapping[str, ConfigValue]) -> AuthProvider | None:
    """`values`: parsed, only what is set. None: nobody is asked. ConfigError, also for a provider
    that is not known here: a bookie that was to ask must not serve everybody."""
    settings = of_values(AuthSettings, values)
    if not settings.provider:
        return None
    kind = settings.provider.rpartition(".")[2]
    if kind == ROLES_PROVIDER:
        return _certificate_roles(settings, of_values(TlsSettings, values))
    if kind == SASL_PROVIDER:
        return _sasl_digest(settings)
    raise ConfigError(
        _PROVIDER,
        f"{_PROVIDER}: {settings.provider} is not known here,"
        f" {ROLES_PROVIDER} and {SASL_PROVIDER} are",
    )


def _certificate_roles(settings: AuthSettings, tls: TlsSettings) -> CertificateRoles:
    roles = frozenset(role for role in settings.roles if role)
    if not roles:
        raise ConfigError("authorizedRoles", f"authorizedRoles: must be set with {ROLES_PROVIDER}")
    if not tls.provider or not tls.needs_client_certificate:
        raise ConfigError(
            _PROVIDER, f"{_PROVIDER}: {ROLES_PROVIDER} needs TLS and tlsClientAuthentication=true"
        )
    return CertificateRoles(roles)


def _sasl_digest(settings: AuthSettings) -> SaslDigest:
    section = settings.jaas_section
    options = digest_options(settings.jaas_path, section)
    passwords = {
        key.removeprefix(_USER_PREFIX): value
        for key, value in options.items()
        if key.startswith(_USER_PREFIX) and key != _USER_PREFIX
    }
    if not passwords:
        raise ConfigError(
            JAAS_PATH_SETTING, f'section {section}: no user_NAME="password", so nobody is served'
        )
    name, pattern = _ALLOWED_USERS, settings.allowed_users
    try:
        allowed = re.compile(pattern)
    except re.error as error:
        raise ConfigError(name, f"{name}: {error}") from error
    welcome = [user for user in passwords if allowed.fullmatch(user)]
    if not welcome:
        raise ConfigError(
            name, f"{name}: {pattern} matches none of the users {', '.join(sorted(passwords))}"
        )
    return SaslDigest(passwords, allowed)
