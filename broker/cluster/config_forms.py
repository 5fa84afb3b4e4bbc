"""Broker settings whose values have a form of their own: listeners, the map from their names to
protocols, and the connections that single addresses may have.

Each form has a `parse_…`, for those who use the value, and a `check_…`, the setting's validator:
what is wrong with it, or None.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from runtime.config import ConfigValue

_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_-]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]*):(?P<port>[0-9]{1,5})",
    re.ASCII,
)
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(slots=True, frozen=True)
class Listener:
    """One element of `listeners`. An empty host is every interface; IPv6 is without brackets."""

    name: str
    host: str
    port: int


def parse_listener(text: str) -> Listener:
    """«NAME://host:port»; ValueError says what is wrong."""
    match = _LISTENER.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f"{text!r} is no listener: expected NAME://host:port")
    return Listener(match["name"].upper(), match["host"].strip("[]"), int(match["port"]))


def check_listeners(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    try:
        listeners = [parse_listener(element) for element in value]
    except ValueError as error:
        return str(error)
    names = [listener.name for listener in listeners]
    if not names:
        return "at least one listener is needed"
    return "two listeners have one name" if len(set(names)) < len(names) else None


def parse_protocol_map(text: str) -> dict[str, str]:
    """«NAME:PROTOCOL,…» to names and protocols; ValueError says what is wrong."""
    protocols = {}
    for element in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = element.partition(":")
        if protocol.upper() not in _SECURITY_PROTOCOLS:
            expected = ", ".join(_SECURITY_PROTOCOLS)
            raise ValueError(f"{element!r}: expected NAME:PROTOCOL with one of {expected}")
        protocols[name.strip().upper()] = protocol.upper()
    return protocols


def check_protocol_map(value: ConfigValue) -> str | None:
    assert isinstance(value, str)
    try:
        parse_protocol_map(value)
    except ValueError as error:
        return str(error)
    return None


def parse_connection_overrides(text: str) -> dict[str, int]:
    """«address:count,…» to counts by address; ValueError says what is wrong."""
    counts = {}
    for element in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = element.rpartition(":")
        if not count.isdecimal():
            raise ValueError(f"{element!r}: expected address:count")
        # No names: looking one up would need a resolver that may hold the server up.
        counts[str(ip_address(address.strip("[]")))] = int(count)
    return counts


def check_overrides(value: ConfigValue) -> str | None:
    assert isinstance(value, str)
    try:
        parse_connection_overrides(value)
    except ValueError as error:
        return str(error)
    return None
