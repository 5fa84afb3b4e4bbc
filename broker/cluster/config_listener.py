"""Settings of one listener: what Kafka lets be said of it alone.

The order, first found wins: `listener.name.<listener>.<mechanism>.<name>` (of one SASL mechanism),
`listener.name.<listener>.<name>`, `<name>`, the default. Listener and mechanism are in lower case
there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.config_ssl import TlsSettings
from runtime.config import ConfigError
from runtime.settings import keys_of, of_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigKey, ConfigValue

LISTENER_PREFIX = "listener.name."
#: Of TLS, each of them.
OF_TLS = tuple(key.name for key in keys_of(TlsSettings))
_OF_A_LISTENER = re.compile(r"listener\.name\.[^.]+\.(?P<rest>.+)", re.ASCII)
#: What is read of one listener; other settings are the broker's alone.
OF_A_LISTENER = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.server.max.receive.size",
    *OF_TLS,
)


def is_read(name: str) -> bool:
    """Whether a listener's setting of this full name has an effect, if there is such a listener."""
    return name.startswith(LISTENER_PREFIX) and name.endswith(
        tuple(f".{each}" for each in OF_A_LISTENER)
    )


def dynamic_key(name: str) -> ConfigKey | None:
    """What a broker's setting of this name, or of one of its listeners, must be; None: there is no
    such setting, or it is none of a listener's that may be changed while the broker runs."""
    match = _OF_A_LISTENER.fullmatch(name)
    if match is None:
        return BROKER_CONFIGS.get(name)
    return BROKER_CONFIGS[match["rest"]] if match["rest"] in OF_TLS else None


def without_listeners(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if not name.startswith(LISTENER_PREFIX)}


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

    def tls(self) -> TlsSettings:
        """ConfigError."""
        return of_values(TlsSettings, {name: self.value(name) for name in OF_TLS})

    def error(self, name: str, reason: object) -> ConfigError:
        """Of a setting, by the name under which it is set."""
        found = self.find(name)
        full = name if found is None else found[0]
        return ConfigError(full, f"{full}, of listener {self.listener}: {reason}")
