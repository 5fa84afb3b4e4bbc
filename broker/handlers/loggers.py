"""The resource type BROKER_LOGGER: levels of this process's loggers (KIP-412).

A level is in force until the process ends, as in Kafka. `root` is the root logger; the others are
the modules' of this program that exist, and the audit log. TRACE and FATAL are Kafka's words for
the next levels that Python's logging has.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.cluster.registry import Described, Source, Synonym
from runtime.config import ConfigKey, ConfigType
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "root"
_TRACE = 5
_LEVELS = {
    "TRACE": _TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
#: The audit log (broker/security/acls/authorizer.py), which Kafka's operators know by this name.
_AUDIT = "kafka.authorizer.logger"
_PACKAGES = ("broker", "ledger", "bookie", "joined", "metadata", "runtime", "wire", "quire")


def _loggers() -> dict[str, logging.Logger]:
    found = {ROOT: logging.getLogger()}
    for name in sorted(logging.root.manager.loggerDict):
        if name == _AUDIT or name.partition(".")[0] in _PACKAGES:
            found[name] = logging.getLogger(name)
    return found


def _level_name(level: int) -> str:
    return next((name for name, least in reversed(_LEVELS.items()) if level >= least), "TRACE")


def describe_loggers() -> list[Described]:
    """Every logger with the level that it has or inherits."""
    described = []
    for name, logger in _loggers().items():
        level = _level_name(logger.getEffectiveLevel())
        source = Source.DYNAMIC_BROKER_LOGGER_CONFIG
        key = ConfigKey(name, ConfigType.STRING, doc="Level of the messages that are logged.")
        synonyms = (Synonym(name, level, source),)
        described.append(Described(key, level, source, read_only=False, synonyms=synonyms))
    return described


def set_levels() -> dict[str, str]:
    """The loggers that have a level of their own."""
    return {name: _level_name(logger.level) for name, logger in _loggers().items() if logger.level}


def check_loggers(levels: Mapping[str, str]) -> None:
    """`levels` as what `set_levels` is to become. KafkaError INVALID_CONFIG for an unknown logger
    or level, INVALID_REQUEST where the root logger would be without one."""
    known = _loggers()
    for name, level in levels.items():
        if name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"there is no logger {name!r}")
        if level not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name}={level!r}: the levels are {', '.join(_LEVELS)}",
            )
    if ROOT in set_levels() and ROOT not in levels:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the root logger keeps a level")


def change_loggers(levels: Mapping[str, str]) -> None:
    """Makes `set_levels` what `check_loggers` found right."""
    before = set_levels()
    for name, logger in _loggers().items():
        if before.get(name) != levels.get(name):
            logger.setLevel(_LEVELS[levels[name]] if name in levels else logging.NOTSET)
