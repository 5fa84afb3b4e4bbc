"""Settings of one listener: what Kafka lets be said of it alone.

The order, first found wins: `listener.name.<listener>.<mechanism>.<name>` (of one SASL mechanism),
`listener.name.<listener>.<name>`, `<name>`, the default. Listener and mechanism are in lower case
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.config_oauth import CALLBACK_CLASS, OAUTH_NAMES, VALIDATOR_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

LISTENER_PREFIX = "listener.name."
#: What is read of one listener; other settings are the broker's alone.
OF_A_LISTENER = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.server.max.receive.size",
    *OAUTH_NAMES,
    CALLBACK_CLASS,
    VALIDATOR_CLASS,
)


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
