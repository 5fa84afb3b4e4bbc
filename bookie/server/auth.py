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

from runtime.config import ConfigError, ConfigKey, ConfigType, at_least
from runtime.jaas import JAAS_PATH_SETTING, digest_options
from runtime.logs import kv
from wire.bookkeeper.sasl_digest import PLUGIN_NAME, DigestError, DigestServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

AUTH_KEYS = (
    ConfigKey(
        "bookieAuthProviderFactoryClass",
        ConfigType.STRING,
        None,
        "BookieAuthZFactory or SASLBookieAuthProviderFactory; else everybody is welcome.",
    ),
    ConfigKey("authorizedRoles", ConfigType.LIST, "", "Of certificates, separated by commas."),
    ConfigKey(JAAS_PATH_SETTING, ConfigType.STRING, None, "The JAAS file with SASL's users."),
    ConfigKey("saslJaasBookieSectionName", ConfigType.STRING, "Bookie", "Of that file."),
    ConfigKey(
        "saslJaasClientAllowedIds", ConfigType.STRING, ".*bookkeeper.*", "Users, as a pattern."
    ),
    ConfigKey(
        "quire.bookie.auth.timeout.ms",
        ConfigType.INT,
        "10000",
        "For a client to authenticate; a name of ours.",
        at_least(100),
    ),
    ConfigKey(
        "quire.bookie.auth.connections.max",
        ConfigType.INT,
        "1000",
        "That did not authenticate yet; a name of ours.",
        at_least(1),
    ),
)
ROLES_PROVIDER = "BookieAuthZFactory"
SASL_PROVIDER = "SASLBookieAuthProviderFactory"
_ROLES_CODE = "0"
_USER_PREFIX = "user_"
_NONCE_BYTES = 24


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


def auth_provider(found: Mapping[str, Any]) -> AuthProvider | None:
    """Of settings with their defaults; None: nobody is asked. ConfigError, also for a provider that
    is not known here: a bookie that was to ask must not serve everybody."""
    wanted = found["bookieAuthProviderFactoryClass"]
    if not wanted:
        return None
    kind = wanted.rpartition(".")[2]
    if kind == ROLES_PROVIDER:
        return _certificate_roles(found)
    if kind == SASL_PROVIDER:
        return _sasl_digest(found)
    name = "bookieAuthProviderFactoryClass"
    raise ConfigError(
        name, f"{name}: {wanted} is not known here, {ROLES_PROVIDER} and {SASL_PROVIDER} are"
    )


def _certificate_roles(found: Mapping[str, Any]) -> CertificateRoles:
    roles = frozenset(role for role in found["authorizedRoles"] if role)
    if not roles:
        raise ConfigError("authorizedRoles", f"authorizedRoles: must be set with {ROLES_PROVIDER}")
    if not found["tlsProviderFactoryClass"] or not found["tlsClientAuthentication"]:
        name = "bookieAuthProviderFactoryClass"
        raise ConfigError(
            name, f"{name}: {ROLES_PROVIDER} needs TLS and tlsClientAuthentication=true"
        )
    return CertificateRoles(roles)


def _sasl_digest(found: Mapping[str, Any]) -> SaslDigest:
    section = found["saslJaasBookieSectionName"]
    options = digest_options(found[JAAS_PATH_SETTING], section)
    passwords = {
        key.removeprefix(_USER_PREFIX): value
        for key, value in options.items()
        if key.startswith(_USER_PREFIX) and key != _USER_PREFIX
    }
    if not passwords:
        raise ConfigError(
            JAAS_PATH_SETTING, f'section {section}: no user_NAME="password", so nobody is served'
        )
    name = "saslJaasClientAllowedIds"
    try:
        allowed = re.compile(found[name])
    except re.error as error:
        raise ConfigError(name, f"{name}: {error}") from error
    welcome = [user for user in passwords if allowed.fullmatch(user)]
    if not welcome:
        raise ConfigError(
            name, f"{name}: {found[name]} matches none of the users {', '.join(sorted(passwords))}"
        )
    return SaslDigest(passwords, allowed)
