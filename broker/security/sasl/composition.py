"""SASL as a listener's settings say: `sasl_layer`.

Users of PLAIN are the `user_<name>` options of the PlainLoginModule in
listener.name.<listener>.plain.sasl.jaas.config. A mechanism that is enabled and not served ends the
start: nobody could log in by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from broker.security.sasl.limits import SaslLimits
from broker.security.sasl.mechanism import Mechanism
from broker.security.sasl.plain import PLAIN, PlainMechanism
from broker.security.sasl.server import SaslServer
from runtime.config import ConfigError
from runtime.jaas import parse_jaas_entry
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.cluster.config import BrokerConfig
    from broker.cluster.config_listener import ListenerSettings
    from runtime.env import Clock
    from runtime.timers import Timers

MECHANISMS_SETTING = "sasl.enabled.mechanisms"
JAAS_SETTING = "sasl.jaas.config"
_REAUTHENTICATION = "connections.max.reauth.ms"
_PLAIN_MODULE = "PlainLoginModule"
_USER_PREFIX = "user_"

MakeMechanism = Callable[["ListenerSettings"], Mechanism]


@dataclass(slots=True, frozen=True)
class SaslServices:
    """What SASL of every listener stands on. `makers`: mechanisms beside PLAIN, by name; each may
    raise ConfigError."""

    broker: BrokerConfig
    timers: Timers
    clock: Clock
    makers: Mapping[str, MakeMechanism] = field(default_factory=dict)


def sasl_layer(settings: ListenerSettings, services: SaslServices) -> SaslServer:
    """ConfigError."""
    makers: dict[str, MakeMechanism] = {PLAIN: _plain, **services.makers}
    mechanisms: dict[str, Mechanism] = {}
    for name in _mechanism_names(settings, services.broker):
        make = makers.get(name)
        if make is None:
            found = settings.find(MECHANISMS_SETTING)
            setting = MECHANISMS_SETTING if found is None else found[0]
            kerberos = " (Kerberos)" if name == "GSSAPI" else ""
            raise ConfigError(
                setting,
                f"{setting}: {name}{kerberos}, for listener {settings.listener}, is not served;"
                f" these are: {', '.join(sorted(makers))}",
            )
        mechanisms[name] = make(settings)
    limits = _limits(settings, services.broker, mechanisms)
    return SaslServer(mechanisms, limits, services.timers, services.clock)


def _mechanism_names(settings: ListenerSettings, broker: BrokerConfig) -> tuple[str, ...]:
    names: object = broker.sasl_enabled_mechanisms
    if settings.find(MECHANISMS_SETTING) is not None:
        names = settings.value(MECHANISMS_SETTING)
    assert isinstance(names, tuple)
    if not names:
        raise ConfigError(
            MECHANISMS_SETTING,
            f"{MECHANISMS_SETTING}: none for listener {settings.listener}: nobody could log in",
        )
    return tuple(str(name) for name in names)


def _limits(
    settings: ListenerSettings, broker: BrokerConfig, mechanisms: Mapping[str, Mechanism]
) -> SaslLimits:
    size = _number(settings, "sasl.server.max.receive.size", broker.sasl_server_max_receive_size)
    most = broker.connections_max_reauth_ms
    return SaslLimits(
        receive_bytes_max=size,
        timeout_seconds=broker.quire_sasl_timeout_ms / 1000,
        connections_max=broker.quire_sasl_connections_max,
        failure_delay_seconds=broker.connection_failed_authentication_delay_ms / 1000,
        reauthentication_ms={
            name: _number(settings, _REAUTHENTICATION, most, name) for name in mechanisms
        },
    )


def _number(
    settings: ListenerSettings, name: str, of_broker: int, mechanism: str | None = None
) -> int:
    """The listener's own, or the broker's."""
    if settings.find(name, mechanism) is None:
        return of_broker
    value = settings.value(name, mechanism)
    assert isinstance(value, int)
    return value


def _plain(settings: ListenerSettings) -> PlainMechanism:
    return PlainMechanism(_plain_users(settings))


def _plain_users(settings: ListenerSettings) -> dict[str, str]:
    found = settings.find(JAAS_SETTING, PLAIN)
    wanted = f"listener.name.{settings.listener.lower()}.{PLAIN.lower()}.{JAAS_SETTING}"
    if found is None:
        raise ConfigError(wanted, f"{wanted}: must have the users of {PLAIN}")
    name, text = found
    module = parse_jaas_entry(text, name)
    if module.name.rpartition(".")[2] != _PLAIN_MODULE:
        raise ConfigError(name, f"{name}: {module.name} is not {_PLAIN_MODULE}")
    users = {
        key.removeprefix(_USER_PREFIX): password
        for key, password in module.options.items()
        if key.startswith(_USER_PREFIX) and key != _USER_PREFIX
    }
    empty = [user for user, password in users.items() if not password]
    if empty or not users:
        raise ConfigError(
            name,
            f"{name}: "
            + (f"user {empty[0]} has no password" if empty else 'no user_NAME="password"'),
        )
    return users
