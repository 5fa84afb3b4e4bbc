"""BookKeeper's names that mean nothing to a bookie of ours: lines of known_settings.txt.

Those that promise safety end the start when they are set to what would not be done.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runtime.config import ConfigError, ConfigKey
from runtime.known_settings import read_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

#: Setting -> the value that promises what is not done, and why not.
_PROMISES: Mapping[str, tuple[str, str]] = {
    "allowMultipleDirsUnderSameDiskPartition": (
        *("false", "whether directories share a disk is not looked at"),
    ),
    "autoRecoveryDaemonEnabled": (
        *("true", "a bookie repairs nothing: quire autorecovery does, as a process of its own"),
    ),
    "dataIntegrityChecking": (
        *("true", "auto-recovery looks for what a bookie has lost, and its start does not"),
    ),
    "dataIntegrityStampMissingCookies": (
        *("true", "auto-recovery looks for what a bookie has lost, and its start does not"),
    ),
    "disableServerSocketBind": ("true", "a bookie always listens"),
}

_FILE = Path(__file__).with_name("known_settings.txt")
KNOWN_KEYS: tuple[ConfigKey, ...] = tuple(
    known.key for known in read_known(_FILE, "A setting of BookKeeper.")
)


def check_promises(values: Mapping[str, ConfigValue]) -> None:
    """ConfigError for a setting of a bookie that somebody relies on, and that is not done."""
    for name, (promising, why_not) in _PROMISES.items():
        value = values.get(name)
        if isinstance(value, str) and value.strip().lower() == promising:
            raise ConfigError(name, f"{name}={value} cannot be kept: {why_not}")
