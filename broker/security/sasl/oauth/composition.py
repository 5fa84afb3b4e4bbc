"""OAUTHBEARER as a listener's settings say: `OAuthParts`.

Without a source of keys, or with one that cannot be, the start ends: a token that nobody could
check would have to be believed, or refused for ever. Kafka's own classes may be named where Kafka
wants them; others would check something else than this does.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from broker.cluster.config_oauth import CALLBACK_CLASS, VALIDATOR_CLASS
from broker.security.sasl.oauth.key_source import KeySource, KeyTimes
from broker.security.sasl.oauth.keys_core import JWKS_BYTES_MAX, JwksError, load_libraries
from broker.security.sasl.oauth.mechanism import OAUTHBEARER, OAuthMechanism
from broker.security.sasl.oauth.token_core import TokenRules
from runtime.config import ConfigError
from runtime.documents import DocumentError, DocumentUrl, fetch, parse_url
from runtime.jaas import parse_jaas_entry
from runtime.logs import kv
from runtime.running import running
from runtime.tls_context import client_context

if TYPE_CHECKING:
    import ssl
    from contextlib import AsyncExitStack

    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_listener import ListenerSettings
    from runtime.env import Clock

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PREFIX = "sasl.oauthbearer."
_JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
_LOOPBACK_HTTP = "quire.sasl.oauthbearer.jwks.allow.loopback.http"
_JAAS = "sasl.jaas.config"
_MODULE = "OAuthBearerLoginModule"
_TRUST_OPTION = "ssl.truststore.location"
_TRUST_TYPE_OPTION = "ssl.truststore.type"
#: Kafka's classes that do what this does, by the settings that name them.
_CLASSES = {
    CALLBACK_CLASS: ("OAuthBearerValidatorCallbackHandler",),
    VALIDATOR_CLASS: ("DefaultJwtValidator", "BrokerJwtValidator"),
}
_PACKAGE = "org.apache.kafka.common.security.oauthbearer."


class OAuthParts:
    """`make` is for `SaslServices.makers`; `start` reads the keys of what was made."""

    def __init__(self, broker: BrokerConfig, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        #: With the listener and the setting's full name, for errors.
        self._sources: list[tuple[KeySource, DocumentUrl, str, str]] = []

    def make(self, settings: ListenerSettings) -> OAuthMechanism:
        """ConfigError."""
        load_libraries()
        _check_classes(settings)
        url, name = _url(settings, self._broker)
        tls = _tls(settings) if url.scheme == "https" else None
        source = KeySource(
            str(url),
            partial(fetch, url, tls, bytes_max=JWKS_BYTES_MAX),
            self._clock,
            _times(settings, self._broker),
        )
        self._sources.append((source, url, settings.listener, name))
        return OAuthMechanism(source, _rules(settings, self._broker), self._clock)

    async def start(self, stack: AsyncExitStack) -> None:
        """ConfigError if a file has no keys."""
        for source, url, listener, name in self._sources:
            if url.is_file:
                try:
                    await source.load()
                except (DocumentError, JwksError) as error:
                    raise ConfigError(name, f"{name}: listener {listener}: {error}") from error
            elif not await source.try_load():
                logger.warning("nobody_can_log_in", kv(listener=listener, mechanism=OAUTHBEARER))
            await stack.enter_async_context(running(source.run, needs_start=False))


def _value(settings: ListenerSettings, name: str, of_broker: T) -> T:
    """The mechanism's or the listener's own, or the broker's. ConfigError."""
    if settings.find(name, OAUTHBEARER) is None:
        return of_broker
    return cast("T", settings.value(name, OAUTHBEARER))


def _times(settings: ListenerSettings, broker: BrokerConfig) -> KeyTimes:
    """ConfigError."""
    begin = f"{_PREFIX}jwks.endpoint."
    return KeyTimes(
        _value(settings, begin + "refresh.ms", broker.sasl_oauthbearer_jwks_endpoint_refresh_ms),
        _value(
            settings,
            begin + "retry.backoff.ms",
            broker.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        ),
        _value(
            settings,
            begin + "retry.backoff.max.ms",
            broker.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        ),
    )


def _rules(settings: ListenerSettings, broker: BrokerConfig) -> TokenRules:
    """ConfigError."""
    sub = _value(settings, _PREFIX + "sub.claim.name", broker.sasl_oauthbearer_sub_claim_name)
    scope = _value(settings, _PREFIX + "scope.claim.name", broker.sasl_oauthbearer_scope_claim_name)
    issuer = _value(settings, _PREFIX + "expected.issuer", broker.sasl_oauthbearer_expected_issuer)
    audience = _value(
        settings, _PREFIX + "expected.audience", broker.sasl_oauthbearer_expected_audience
    )
    skew = _value(
        settings, _PREFIX + "clock.skew.seconds", broker.sasl_oauthbearer_clock_skew_seconds
    )
    for name, claim in (("sub.claim.name", sub), ("scope.claim.name", scope)):
        if not claim:
            name = _PREFIX + name
            raise ConfigError(name, f"{name}: empty for listener {settings.listener}")
    return TokenRules(issuer or None, frozenset(audience), skew, sub, scope)


def _url(settings: ListenerSettings, broker: BrokerConfig) -> tuple[DocumentUrl, str]:
    """(it, the full name by which it is set). ConfigError."""
    text = _value(settings, _JWKS_URL, broker.sasl_oauthbearer_jwks_endpoint_url)
    found = settings.find(_JWKS_URL, OAUTHBEARER)
    if found is None or not text:
        name = f"listener.name.{settings.listener.lower()}.{OAUTHBEARER.lower()}.{_JWKS_URL}"
        raise ConfigError(
            name,
            f"{name}: listener {settings.listener} has {OAUTHBEARER}, and no keys by which to"
            " check its tokens",
        )
    is_http_allowed = _value(
        settings, _LOOPBACK_HTTP, broker.quire_sasl_oauthbearer_jwks_allow_loopback_http
    )
    try:
        return parse_url(text, allows_loopback_http=is_http_allowed), found[0]
    except ValueError as error:
        words = f"{found[0]}: listener {settings.listener}: {error}"
        raise ConfigError(found[0], words) from None


def _tls(settings: ListenerSettings) -> ssl.SSLContext:
    """The authorities that are believed: of the login module's options, as in Kafka, else the
    system's. ConfigError."""
    options, name = _options(settings)
    kind = options.get(_TRUST_TYPE_OPTION, "PEM")
    path = options.get(_TRUST_OPTION)
    if path is not None and kind.upper() != "PEM":
        raise ConfigError(name, f"{name}: {_TRUST_TYPE_OPTION}: only PEM is served")
    try:
        return client_context(trust_path=path)
    except OSError as error:
        raise ConfigError(name, f"{name}: {_TRUST_OPTION}: {error}") from error


def _options(settings: ListenerSettings) -> tuple[dict[str, str], str]:
    """Of the login module, if there is one, and the setting's name. ConfigError."""
    found = settings.find(_JAAS, OAUTHBEARER)
    if found is None:
        return {}, _JAAS
    name, text = found
    module = parse_jaas_entry(text, name)
    if module.name.rpartition(".")[2] != _MODULE:
        raise ConfigError(name, f"{name}: {module.name} is not {_MODULE}")
    others = sorted(set(module.options) - {_TRUST_OPTION, _TRUST_TYPE_OPTION})
    if others:
        raise ConfigError(name, f"{name}: the option {others[0]} is not served")
    return module.options, name


def _check_classes(settings: ListenerSettings) -> None:
    """ConfigError; of the login module, too, whose options nothing else may need."""
    _options(settings)
    for name, served in _CLASSES.items():
        found = settings.find(name, OAUTHBEARER)
        if found is None:
            continue
        package, _, simple = found[1].strip().rpartition(".")
        if simple not in served or not f"{package}.".startswith(_PACKAGE):
            raise ConfigError(
                found[0], f"{found[0]}: {found[1].strip()} is not served; {served[0]} is"
            )
