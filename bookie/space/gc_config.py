"""GcConfig: when and how much the garbage collector works, by BookKeeper's settings.

Combinations are refused as GarbageCollectorThread.java refuses them. Times are in milliseconds here
and as BookKeeper has them in its names (intervals of compaction in seconds).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GcConfig:
    #: gcWaitTime
    wait_ms: int = 600_000
    #: gcMetadataOpRateLimit: reads of metadata per second.
    metadata_rate: int = 1000
    #: gcOverreplicatedLedgerWaitTime: between two looks for ledgers of which others have all
    #: copies; <= 0 disables.
    over_replicated_wait_ms: int = 86_400_000
    #: minorCompactionThreshold, minorCompactionInterval, minorCompactionMaxTimeMillis: logs with
    #: less than this share alive are compacted this often; <= 0 disables (or: no time limit).
    minor_threshold: float = 0.2
    minor_interval_ms: int = 3_600_000
    minor_time_max_ms: int = -1
    #: majorCompactionThreshold, majorCompactionInterval, majorCompactionMaxTimeMillis
    major_threshold: float = 0.8
    major_interval_ms: int = 86_400_000
    major_time_max_ms: int = -1
    #: forceAllowCompaction: what is disabled by its interval may still be asked for.
    force_allow: bool = False
    #: compactionRateByEntries, or, with isThrottleByBytes, compactionRateByBytes: per second.
    rate_entries: int = 1000
    rate_bytes: int = 1_000_000
    throttle_by_bytes: bool = False
    #: useTargetEntryLogSizeForGc: a small log counts as one of logSizeLimit, mostly empty.
    use_target_log_size: bool = False
    #: entryLocationCompactionInterval: of the index; <= 0 disables.
    location_interval_ms: int = -1

    def __post_init__(self) -> None:
        if self.wait_ms <= 0:
            raise ValueError(f"gcWaitTime={self.wait_ms}: must be positive")
        for name, is_enabled, threshold, interval_ms in (
            ("minor", self.minor_enabled, self.minor_threshold, self.minor_interval_ms),
            ("major", self.major_enabled, self.major_threshold, self.major_interval_ms),
        ):
            if not is_enabled:
                continue
            if threshold > 1:
                raise ValueError(f"{name}CompactionThreshold={threshold}: is a share, at most 1")
            self._check_interval(f"{name}CompactionInterval", interval_ms)
        if self.minor_enabled and self.major_enabled:
            if self.minor_threshold >= self.major_threshold:
                raise ValueError(
                    f"minorCompactionThreshold={self.minor_threshold}: must be less than "
                    f"majorCompactionThreshold={self.major_threshold}"
                )
            if self.minor_interval_ms >= self.major_interval_ms:
                raise ValueError(
                    f"minorCompactionInterval={self.minor_interval_ms // 1000}: must be less than "
                    f"majorCompactionInterval={self.major_interval_ms // 1000}"
                )
        if self.location_interval_ms > 0:
            self._check_interval("entryLocationCompactionInterval", self.location_interval_ms)

    def _check_interval(self, name: str, interval_ms: int) -> None:
        if interval_ms < self.wait_ms:
            raise ValueError(
                f"{name}={interval_ms / 1000:g}: shorter than gcWaitTime={self.wait_ms} (ms)"
            )

    @property
    def minor_enabled(self) -> bool:
        return self.minor_threshold > 0 and self.minor_interval_ms > 0

    @property
    def major_enabled(self) -> bool:
        return self.major_threshold > 0 and self.major_interval_ms > 0
