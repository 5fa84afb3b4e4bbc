"""OAUTHBEARER as the exchange in front of dispatch sees it: one message, and a second to fail by.

A token that is not valid is answered with a status, the client confirms that it has seen it, and
then the login has failed (RFC 7628, 3.2.3; Kafka's `OAuthBearerSaslServer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.security.principal import USER, Principal
from broker.security.sasl.mechanism import AuthenticationFailedError, Login
from broker.security.sasl.oauth.message_core import INVALID_TOKEN, MessageError, parse_message
from broker.security.sasl.oauth.token_core import (
    InvalidTokenError,
    TokenRules,
    UnknownKeyError,
    ValidToken,
    validate,
)

if TYPE_CHECKING:
    from broker.security.sasl.oauth.key_source import KeySource
    from runtime.env import Clock

OAUTHBEARER = "OAUTHBEARER"


class OAuthMechanism:
    name = OAUTHBEARER

    def __init__(self, source: KeySource, rules: TokenRules, clock: Clock) -> None:
        self.source = source
        self._rules = rules
        self._clock = clock

    def begin(self) -> OAuthExchange:
        return OAuthExchange(self)

    def validate(self, token: str) -> ValidToken:
        """InvalidTokenError."""
        try:
            return validate(token, self.source.keys, self._rules, self._clock.time_ms())
        except UnknownKeyError as error:
            self.source.missing(error.kid)
            raise


class OAuthExchange:
    def __init__(self, mechanism: OAuthMechanism) -> None:
        self._mechanism = mechanism
        self._refused: InvalidTokenError | None = None
        self.login: Login | None = None

    def step(self, token: bytes) -> bytes:
        if self._refused is not None:
            raise AuthenticationFailedError(str(self._refused), self._refused.name)
        try:
            message = parse_message(token)
        except MessageError as error:
            raise AuthenticationFailedError(str(error)) from None
        try:
            valid = self._mechanism.validate(message.token)
        except InvalidTokenError as error:
            self._refused = error
            return INVALID_TOKEN
        if message.authorization not in ("", valid.name):
            raise AuthenticationFailedError("would act for somebody else", valid.name)
        self.login = Login(Principal(USER, valid.name), valid.expires_ms)
        return b""
