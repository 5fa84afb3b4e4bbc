"""How a command gets into a secured cluster: `--command-config FILE`, with the names that Kafka's
tools have for it (broker/security/client_security.py)."""

from __future__ import annotations

from pathlib import Path

import click

from broker.security.client_security import ClientSecurity, security_of
from runtime.config import ConfigError, PropertiesError, parse_properties

OPTION = "--command-config"


def read_command_config(path: str | None) -> ClientSecurity:
    """UsageError names the file and the setting."""
    if path is None:
        return ClientSecurity()
    try:
        return security_of(parse_properties(Path(path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, PropertiesError, ConfigError) as error:
        raise click.UsageError(f"{OPTION} {path}: {error}") from error
