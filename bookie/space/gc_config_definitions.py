"""BookKeeper's settings of garbage collection by their names in bk_server.conf.

Intervals of compaction are in seconds there, gcWaitTime and the time limits in milliseconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bookie.space.gc_config import GcConfig
from runtime.config import ConfigKey, ConfigType, at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.config import ConfigValue

_INT = ConfigType.INT
_LONG = ConfigType.LONG
_DOUBLE = ConfigType.DOUBLE
_BOOLEAN = ConfigType.BOOLEAN


def _from_seconds(value: int) -> int:
    return value * 1000 if value > 0 else -1


#: Name, type, what it means, validator, GcConfig's field and what makes its value.
_SETTINGS: tuple[tuple[str, ConfigType, str, Any, str, Callable[[Any], Any]], ...] = (
    ("gcWaitTime", _LONG, "Time between rounds of collection.", at_least(1), "wait_ms", int),
    (
        "gcMetadataOpRateLimit",
        _INT,
        "Metadata reads of collection per second.",
        at_least(1),
        "metadata_rate",
        int,
    ),
    (
        "minorCompactionThreshold",
        _DOUBLE,
        "Logs with less alive; <= 0 disables.",
        None,
        "minor_threshold",
        float,
    ),
    (
        "minorCompactionInterval",
        _LONG,
        "Seconds; <= 0 disables.",
        None,
        "minor_interval_ms",
        _from_seconds,
    ),
    ("minorCompactionMaxTimeMillis", _LONG, "Of one run.", None, "minor_time_max_ms", int),
    (
        "majorCompactionThreshold",
        _DOUBLE,
        "Logs with less alive; <= 0 disables.",
        None,
        "major_threshold",
        float,
    ),
    (
        "majorCompactionInterval",
        _LONG,
        "Seconds; <= 0 disables.",
        None,
        "major_interval_ms",
        _from_seconds,
    ),
    ("majorCompactionMaxTimeMillis", _LONG, "Of one run.", None, "major_time_max_ms", int),
    ("forceAllowCompaction", _BOOLEAN, "Also what is disabled.", None, "force_allow", bool),
    (
        "compactionRateByEntries",
        _INT,
        "Entries copied per second.",
        None,
        "rate_entries",
        int,
    ),
    ("compactionRateByBytes", _INT, "Bytes copied per second.", None, "rate_bytes", int),
    (
        "isThrottleByBytes",
        _BOOLEAN,
        "Bytes are limited, else entries.",
        None,
        "throttle_by_bytes",
        bool,
    ),
    (
        "useTargetEntryLogSizeForGc",
        _BOOLEAN,
        "A small log counts as a large one that is mostly empty.",
        None,
        "use_target_log_size",
        bool,
    ),
    (
        "entryLocationCompactionInterval",
        _LONG,
        "Seconds between rewrites of the index; <= 0 disables.",
        None,
        "location_interval_ms",
        _from_seconds,
    ),
)


def _default(field: str, convert: Callable[[Any], Any]) -> str:
    value = getattr(GcConfig(), field)
    if convert is _from_seconds and value > 0:
        value = value // 1000
    return str(value).lower()


OLDER_RATE = "compactionRate"

GC_KEYS = (
    *(
        ConfigKey(name, kind, _default(field, convert), words, validator)
        for name, kind, words, validator, field, convert in _SETTINGS
    ),
    ConfigKey(OLDER_RATE, _INT, None, "The older name of compactionRateByEntries, which wins."),
)


def gc_config(values: Mapping[str, ConfigValue], defaults: GcConfig) -> GcConfig:
    """`values` (parsed, only what is set) win over `defaults`; where the two do not go together,
    over BookKeeper's defaults. ValueError if the values themselves do not."""
    changes: dict[str, Any] = {
        field: convert(values[name])
        for name, _, _, _, field, convert in _SETTINGS
        if values.get(name) is not None
    }
    if (older := values.get(OLDER_RATE)) is not None:
        changes.setdefault("rate_entries", older)
    try:
        return replace(defaults, **changes)
    except ValueError:
        return GcConfig(**changes)
