"""Settings of OAUTHBEARER on the broker's listeners (Kafka's `SaslConfigs`, `OAuthBearerConfig`).

All of them may be said of one listener, or of its mechanism alone (config_listener.py).
"""

from __future__ import annotations

from broker.cluster.config_coordinators import CoordinatorsConfig
from runtime.config import ConfigType, at_least
from runtime.settings import keys_of, setting, settings_part

#: Classes of Kafka's that may be named (broker/security/sasl/oauth/composition.py), and only these.
CALLBACK_CLASS = "sasl.server.callback.handler.class"
VALIDATOR_CLASS = "sasl.oauthbearer.jwt.validator.class"


@settings_part
class OAuthConfig(CoordinatorsConfig):
    """The broker's part. A chain of classes, as one with slots has one base."""

    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        ConfigType.STRING,
        doc="Where the public keys (JWKS) are by which tokens are signed: file: or https:.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        ConfigType.LONG,
        "3600000",
        at_least(1000),
        doc="How often these keys are read again.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        ConfigType.LONG,
        "100",
        at_least(1),
        doc="Before they are asked for again, if that failed; doubled each time.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        ConfigType.LONG,
        "10000",
        at_least(1),
        doc="The most that this grows to.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        ConfigType.INT,
        "30",
        at_least(0),
        doc="By how much the clock of those who sign tokens may differ.",
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        "sasl.oauthbearer.expected.issuer",
        ConfigType.STRING,
        doc="The `iss` that tokens must have; without it, any.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        "sasl.oauthbearer.expected.audience",
        ConfigType.LIST,
        "",
        doc="One of these must be in a token's `aud`; without any, tokens must have no `aud`.",
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sasl.oauthbearer.sub.claim.name",
        ConfigType.STRING,
        "sub",
        doc="The claim that has the principal's name.",
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        "sasl.oauthbearer.scope.claim.name",
        ConfigType.STRING,
        "scope",
        doc="The claim with the scopes; if it is there, it must be well formed.",
    )
    quire_sasl_oauthbearer_jwks_allow_loopback_http: bool = setting(
        "quire.sasl.oauthbearer.jwks.allow.loopback.http",
        ConfigType.BOOLEAN,
        "false",
        doc="Whether keys may come by plain http: from an address of this machine (127.0.0.1).",
    )


OAUTH_NAMES = tuple(key.name for key in keys_of(OAuthConfig) if "sasl.oauthbearer." in key.name)
