"""Settings of one listener: what Kafka lets be said of it alone.

The order, first found wins: `listener.name.<listener>.<mechanism>.<name>` (of one SASL mechanism),
`listener.name.<listener>.<name>`, `<name>`, the default. Listener and mechanism are in lower case
there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.config_oauth import CALLBACK_CLASS, OAUTH_NAMES, VALIDATOR_CLASS
from broker.cluster.config_ssl import TlsSettings
from runtime.config import ConfigError
from runtime.settings import keys_of, of_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runtime.config import ConfigKey, ConfigValue

LISTENER_PREFIX = "listener.name."
#: Of TLS, each of them.
OF_TLS = tuple(key.name for key in keys_of(TlsSettings))
#: What is read of one listener; other settings are the broker's alone.
OF_A_LISTENER = (
    "connections.max.reauth.ms",
    "max.connection.creation.rate",
    "max.connections",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.server.max.receive.size",
    *OAUTH_NAMES,
    CALLBACK_CLASS,
    VALIDATOR_CLASS,
    *OF_TLS,
)
#: What of it may be changed while the broker runs. Names are made by the rules of the start.
DYNAMIC_OF_A_LISTENER = frozenset({"max.connection.creation.rate", "max.connections", *OF_TLS}) - {
    "ssl.principal.mapping.rules"
}
_FULL_NAME = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<rest>.+)", re.ASCII)


def setting_key(name: str) -> ConfigKey | None:
    """What is known of a setting by its full name: a broker's, or one of a listener (and of a SASL
    mechanism there), which is as the broker's. None: no such setting."""
    match = _FULL_NAME.fullmatch(name)
    if match is None:
        return BROKER_CONFIGS.get(name)
    rest = match["rest"]
    key = BROKER_CONFIGS.get(rest) or BROKER_CONFIGS.get(rest.partition(".")[2])
    return None if key is None else replace(key, name=name)


def is_dynamic_of_listener(name: str) -> bool:
    match = _FULL_NAME.fullmatch(name)
    return match is not None and match["rest"] in DYNAMIC_OF_A_LISTENER


def split_listener_texts(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(those of the broker, those of single listeners), by full names."""
    broker: dict[str, str] = {}
    of_listeners: dict[str, str] = {}
    for name, text in texts.items():
        (of_listeners if name.startswith(LISTENER_PREFIX) else broker)[name] = text
    return broker, of_listeners


def check_listener_texts(texts: Mapping[str, str]) -> None:
    """ConfigError for the first that is read and has no right value, or is of a listener in upper
    case: as in Kafka it would not be read, and what it promises not be so."""
    for name, text in texts.items():
        if is_read(name) and (key := setting_key(name)) is not None:
            listener = _listener_of(name)
            if listener != listener.lower():
                raise ConfigError(name, f"{name}: {listener} is written {listener.lower()} here")
            key.parse(text)


def of_no_listener(texts: Mapping[str, str], listeners: Iterable[str]) -> list[str]:
    """Notes on what is said of listeners that are not there: a slip, or another node's."""
    known = {name.lower() for name in listeners}
    return [
        f"{name} has no effect: there is no listener {_listener_of(name)}"
        for name in texts
        if is_read(name) and _listener_of(name) not in known
    ]


def _listener_of(name: str) -> str:
    return name.removeprefix(LISTENER_PREFIX).partition(".")[0]


def is_read(name: str) -> bool:
    """Whether a listener's setting of this full name has an effect, if there is such a listener."""
    return name.startswith(LISTENER_PREFIX) and name.endswith(
        tuple(f".{each}" for each in OF_A_LISTENER)
    )


class ListenerSettings:
    """`texts`: all that is set, as it is written, by full names."""

    __slots__ = ("_prefix", "_texts", "listener")

    def __init__(self, listener: str, texts: Mapping[str, str]) -> None:
        self.listener = listener
        self._prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        self._texts = texts

    def find(self, name: str, mechanism: str | None = None) -> tuple[str, str] | None:
        """(the full name by which it is set, its text); None if only the default is there."""
        names = [self._prefix + name, name]
        if mechanism is not None:
            names.insert(0, f"{self._prefix}{mechanism.lower()}.{name}")
        return next(((each, self._texts[each]) for each in names if each in self._texts), None)

    def value(self, name: str, mechanism: str | None = None) -> ConfigValue:
        """What is in force. ConfigError for a text that is not allowed; KeyError: no setting."""
        key = BROKER_CONFIGS[name]
        found = self.find(name, mechanism)
        return key.parse_default() if found is None else key.parse(found[1])

    def number(self, name: str, of_broker: int, mechanism: str | None = None) -> int:
        """The listener's own, or the broker's that is handed in: a default, or a dynamic one."""
        if self.find(name, mechanism) is None:
            return of_broker
        value = self.value(name, mechanism)
        assert isinstance(value, int)
        return value

    def tls(self) -> TlsSettings:
        """ConfigError."""
        return of_values(TlsSettings, {name: self.value(name) for name in OF_TLS})

    def error(self, name: str, reason: object) -> ConfigError:
        """Of a setting, by the name under which it is set."""
        found = self.find(name)
        full = name if found is None else found[0]
        return ConfigError(full, f"{full}, of listener {self.listener}: {reason}")
