"""How the leaders are asked in a secured cluster: by options of `kafka.` and Java's names, which
Spark's `kafka` source takes, too (broker/security/client_security.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.security.client_security import ClientSecurity, security_of
from runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def login_of(given: Mapping[str, str]) -> ClientSecurity:
    """ConfigError names the option, `kafka.` and the setting. Capitals do not count."""
    try:
        return security_of({name.lower(): text for name, text in given.items()})
    except ConfigError as error:
        raise ConfigError(error.name, f"kafka.{error}") from None
