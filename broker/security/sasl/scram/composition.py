"""SCRAM as a listener's settings say.

Kafka wants a ScramLoginModule in listener.name.<listener>.<mechanism>.sasl.jaas.config. Here users
are in metadata and nothing of it is needed, but what is there must be that. Its username and
password are those by which brokers log in to each other (broker/security/sasl/outgoing.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.security.sasl.scram.mechanism import ScramMechanism
from runtime.config import ConfigError
from runtime.jaas import parse_jaas_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.cluster.config_listener import ListenerSettings
    from broker.security.sasl.scram.hashes import ScramHash
    from broker.security.sasl.scram.mechanism import Tokens, Users
    from runtime.env import Rng

_JAAS_SETTING = "sasl.jaas.config"
_MODULE = "ScramLoginModule"
#: Of the module, for a broker that logs in.
_OUTGOING = frozenset({"username", "password"})


def scram_mechanism(
    kind: ScramHash, users: Users, tokens: Tokens | None, secret: bytes, rng: Rng
) -> Callable[[ListenerSettings], ScramMechanism]:
    """Makes it for a listener; that raises ConfigError."""

    def make(settings: ListenerSettings) -> ScramMechanism:
        _check_module(settings, kind.name)
        return ScramMechanism(kind, users, tokens, secret, rng)

    return make


def _check_module(settings: ListenerSettings, mechanism: str) -> None:
    found = settings.find(_JAAS_SETTING, mechanism)
    if found is None:
        return
    name, text = found
    module = parse_jaas_entry(text, name)
    if module.name.rpartition(".")[2] != _MODULE:
        raise ConfigError(name, f"{name}: {module.name} is not {_MODULE}")
    unknown = sorted(module.options.keys() - _OUTGOING)
    if unknown:
        raise ConfigError(name, f"{name}: {_MODULE} has no option {unknown[0]} here")
