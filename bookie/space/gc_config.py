"""GcConfig: when and how much the garbage collector works, by BookKeeper's settings.

Combinations are refused as GarbageCollectorThread.java refuses them. Times are in milliseconds here
and as BookKeeper has them in its names (intervals of compaction in seconds).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runtime.config import ConfigError, ConfigKey, ConfigType, at_least
from runtime.settings import as_set, contradiction, field_values, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

INT, LONG = ConfigType.INT, ConfigType.LONG
DOUBLE, BOOLEAN = ConfigType.DOUBLE, ConfigType.BOOLEAN

OLDER_RATE = "compactionRate"


def _from_seconds(value: int) -> int:
    return value * 1000 if value > 0 else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GcConfig:
    wait_ms: int = setting(
        "gcWaitTime",
        LONG,
        "600000",
        at_least(1),
        unit="ms",
        doc="Time between rounds of collection; no interval of compaction is shorter.",
    )
    metadata_rate: int = setting(
        "gcMetadataOpRateLimit",
        INT,
        "1000",
        at_least(1),
        unit="reads/s",
        doc="Metadata reads of collection per second.",
    )
    #: Between two looks for ledgers of which others have all copies; <= 0 disables.
    over_replicated_wait_ms: int = setting(
        "gcOverreplicatedLedgerWaitTime",
        LONG,
        "86400000",
        unit="ms",
        doc="Between looks for ledgers that are wholly on other bookies; <= 0 disables.",
    )
    #: Logs with less than this share alive are compacted this often; <= 0 disables (or: no time
    #: limit).
    minor_threshold: float = setting(
        "minorCompactionThreshold",
        DOUBLE,
        "0.2",
        unit="share",
        doc="Logs with less alive, below majorCompactionThreshold; <= 0 disables.",
    )
    minor_interval_ms: int = setting(
        "minorCompactionInterval",
        LONG,
        "3600",
        unit="s",
        doc="Seconds, from gcWaitTime to below majorCompactionInterval; <= 0 disables.",
        convert=_from_seconds,
    )
    minor_time_max_ms: int = setting("minorCompactionMaxTimeMillis", LONG, "-1", doc="Of one run.")
    major_threshold: float = setting(
        "majorCompactionThreshold",
        DOUBLE,
        "0.8",
        unit="share",
        doc="Logs with less alive, at most 1; <= 0 disables.",
    )
    major_interval_ms: int = setting(
        "majorCompactionInterval",
        LONG,
        "86400",
        unit="s",
        doc="Seconds, at least gcWaitTime; <= 0 disables.",
        convert=_from_seconds,
    )
    major_time_max_ms: int = setting("majorCompactionMaxTimeMillis", LONG, "-1", doc="Of one run.")
    #: What is disabled by its interval may still be asked for.
    force_allow: bool = setting(
        "forceAllowCompaction", BOOLEAN, "false", doc="Also what is disabled."
    )
    #: Per second: entries, or bytes with throttle_by_bytes.
    rate_entries: int = setting(
        "compactionRateByEntries",
        INT,
        "1000",
        unit="entries/s",
        doc="Entries copied per second.",
        others=(
            ConfigKey(
                OLDER_RATE, INT, None, "The older name of compactionRateByEntries, which wins."
            ),
        ),
    )
    rate_bytes: int = setting(
        "compactionRateByBytes", INT, "1000000", unit="bytes/s", doc="Bytes copied per second."
    )
    throttle_by_bytes: bool = setting(
        "isThrottleByBytes", BOOLEAN, "false", doc="Bytes are limited, else entries."
    )
    #: A small log counts as one of logSizeLimit, mostly empty.
    use_target_log_size: bool = setting(
        "useTargetEntryLogSizeForGc",
        BOOLEAN,
        "false",
        doc="A small log counts as a large one that is mostly empty.",
    )
    #: Of the index; <= 0 disables.
    location_interval_ms: int = setting(
        "entryLocationCompactionInterval",
        LONG,
        "-1",
        unit="s",
        doc="Seconds between rewrites of the index, at least gcWaitTime; <= 0 disables.",
        convert=_from_seconds,
    )

    def __post_init__(self) -> None:
        """ConfigError that names the settings."""
        if self.wait_ms <= 0:
            raise contradiction(self, "wait_ms", "must be positive")
        for kind, is_enabled in (("minor", self.minor_enabled), ("major", self.major_enabled)):
            if is_enabled:
                if getattr(self, f"{kind}_threshold") > 1:
                    raise contradiction(self, f"{kind}_threshold", "is a share, at most 1")
                self._check_interval(f"{kind}_interval_ms")
        if self.minor_enabled and self.major_enabled:
            for lesser, greater in (
                ("minor_threshold", "major_threshold"),
                ("minor_interval_ms", "major_interval_ms"),
            ):
                if getattr(self, lesser) >= getattr(self, greater):
                    raise contradiction(self, lesser, f"must be less than {as_set(self, greater)}")
        if self.location_interval_ms > 0:
            self._check_interval("location_interval_ms")

    def _check_interval(self, field_name: str) -> None:
        if getattr(self, field_name) < self.wait_ms:
            problem = f"shorter than {as_set(self, 'wait_ms')} (ms)"
            raise contradiction(self, field_name, problem)

    @property
    def minor_enabled(self) -> bool:
        return self.minor_threshold > 0 and self.minor_interval_ms > 0

    @property
    def major_enabled(self) -> bool:
        return self.major_threshold > 0 and self.major_interval_ms > 0


def gc_config(values: Mapping[str, ConfigValue], defaults: GcConfig) -> GcConfig:
    """`values` (parsed, only what is set) win over `defaults`; where the two do not go together,
    over BookKeeper's defaults. ConfigError if the values themselves do not."""
    changes: dict[str, Any] = field_values(GcConfig, values)
    if (older := values.get(OLDER_RATE)) is not None:
        changes.setdefault("rate_entries", older)
    try:
        return replace(defaults, **changes)
    except ConfigError as error:
        refused = error
    try:
        return GcConfig(**changes)
    except ConfigError:
        raise refused from None  # it names the defaults that are in force, not BookKeeper's
