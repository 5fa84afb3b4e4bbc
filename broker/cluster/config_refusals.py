"""Settings of Kafka that promise safety, a limit or a deletion which this server does not give.

Owner of what is refused, and why. A setting that merely tunes something that is not here may be
ignored with a line in the log; one that somebody relies on must not be. So a value other than
Kafka's default ends the start, and a dynamic one is refused. The default promises nothing.

`check_refusals` is for the file and the command line, `check_dynamic` for changes while a broker
runs; what both say nothing about acts, or is told to have no effect.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.config_listener import OF_TLS, setting_key
from broker.cluster.config_oauth import CALLBACK_CLASS, OAUTH_NAMES, VALIDATOR_CLASS
from runtime.config import ConfigError, ConfigType

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_TLS = "this part of TLS is not served"
_NO_SASL = "this part of SASL is not served"
_NO_POLICY = "policies are not asked: what it forbids would be done"
_NO_PRINCIPALS = "clients have no principals"
_NO_TIERS = "tiered storage is not served: nothing would be copied, or deleted after it was"

_BY_NAME: Mapping[str, str] = {
    "alter.config.policy.class.name": _NO_POLICY,
    "client.quota.callback.class": "no class is asked: the quotas that are set are in force",
    "config.providers": "values are taken as they are written, and not looked up",
    "create.topic.policy.class.name": _NO_POLICY,
    "principal.builder.class": _NO_PRINCIPALS,
    "remote.log.storage.system.enable": _NO_TIERS,
    "security.providers": _NO_TLS,
    "transaction.two.phase.commit.enable": "a transaction that was prepared is not kept for a"
    " decision that comes later (KIP-939): it would be aborted at its timeout",
}
_BY_PREFIX: Mapping[str, str] = {"sasl.": _NO_SASL, "ssl.": _NO_TLS}
_NUMBERS = (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
_OF_A_LISTENER = re.compile(r"listener\.name\.[^.]+\.(?P<rest>.+)", re.ASCII)
#: Of one SASL mechanism: listener.name.<listener>.<mechanism>.sasl.jaas.config.
_OF_A_MECHANISM = re.compile(r"(?P<mechanism>[^.]+)\.(?P<rest>(sasl|connections)\..+)", re.ASCII)
#: What a mechanism's own settings may be; whoever makes the mechanism checks them.
_OF_MECHANISMS = frozenset(
    {
        ("plain", "sasl.jaas.config"),
        ("scram-sha-256", "sasl.jaas.config"),
        ("scram-sha-512", "sasl.jaas.config"),
        ("oauthbearer", "sasl.jaas.config"),
        ("oauthbearer", CALLBACK_CLASS),
    }
)
_SERVED = frozenset(
    {
        "sasl.enabled.mechanisms",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.server.max.receive.size",
        VALIDATOR_CLASS,
        *OAUTH_NAMES,
        *OF_TLS,
    }
)


class RefusedConfigError(ConfigError):
    """A known setting with a value of the right form, whose promise would not be kept."""


def refusal(name: str, text: str) -> str | None:
    """Why this must not be set, or None. `text` as it is written."""
    listener = _OF_A_LISTENER.fullmatch(name)
    if listener is not None:
        rest = listener["rest"]
        mechanism = _OF_A_MECHANISM.fullmatch(rest)
        if mechanism is not None:
            rest = mechanism["rest"]
            if (mechanism["mechanism"], rest) in _OF_MECHANISMS:
                return None
        return _reason(rest, text)
    return _reason(name, text)


def check_refusals(texts: Mapping[str, str]) -> None:
    """RefusedConfigError for the first that is refused at the start."""
    for name, text in texts.items():
        reason = refusal(name, text)
        if reason is not None:
            raise RefusedConfigError(name, f"{name} cannot be kept: {reason}")


def check_dynamic(name: str, text: str) -> None:
    """The same, of a change while the broker runs. RefusedConfigError."""
    reason = refusal(name, text)
    if reason is None and name in OF_TLS:
        reason = f"while the broker runs it is set of one listener: listener.name.LISTENER.{name}"
    key = setting_key(name)
    if reason is None and key is not None and key.sensitive:
        reason = "it is a secret, and whoever reads the metadata would know it"
    if reason is not None:
        raise RefusedConfigError(name, f"{name} cannot be kept: {reason}")


def _reason(name: str, text: str) -> str | None:
    reason = _BY_NAME.get(name)
    if reason is None and name not in _SERVED:
        reason = next((why for begin, why in _BY_PREFIX.items() if name.startswith(begin)), None)
    if reason is None:
        return None
    key = BROKER_CONFIGS.get(name)
    if key is None:
        return reason
    if reason is _NO_SASL and name.startswith("sasl.") and key.type in _NUMBERS:
        return None  # how often a login is made anew: it tunes what is not here
    default = key.parse_default()
    try:
        value = key.parse(text)
    except ConfigError:
        return None  # whoever parses it says so
    # An empty one is none, as Kafka has it for classes, names and passwords.
    return None if value == default or (default is None and value in ("", ())) else reason
