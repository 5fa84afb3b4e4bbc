"""How full the disks are, and whether the bookie takes writes (feature 16, invariants K).

    OK         all goes on
    WARN       above diskUsageWarnThreshold: major compaction waits
    READ_ONLY  adds are answered EREADONLY; reads, fences, deletions and gc go on. A recovery's adds
               (FLAG_HIGH_PRIORITY) are taken while there is minUsableSizeForHighPriorityWrites

The bookie is read-only as long as there is any *reason*: DISK, a ledger directory above
diskUsageThreshold, until it is below diskUsageLwmThreshold; FLUSH and JOURNAL, a write that found
no space, until it was made; ADMIN, somebody asked for it.

What was taken and is not in entry logs yet counts as used: it will be. And the disks are looked at
not only every diskCheckInterval, but also each time half of what was left may have been written
since, so a fast writer is stopped at the threshold and not some seconds behind it.

Deviations from BookKeeper: entries in memory count; so does a journal that cannot get its next
file; the default of minUsableSizeForHighPriorityWrites is at most half of what the threshold keeps
free, or else a small disk would refuse recoveries the moment it is read-only.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bookie.config import BookieConfig
    from runtime.disk import Disk

logger = logging.getLogger(__name__)

#: Looks at the disks are at least so many journaled bytes apart, or a check interval.
CHECK_DISTANCE_MIN_BYTES = 1 << 20
#: What an entry takes in the index, in its log before it is packed.
INDEX_ENTRY_BYTES = 64


class DiskState(Enum):
    OK = "ok"
    WARN = "warn"
    READ_ONLY = "read-only"


class Reason(Enum):
    DISK = "disk"
    FLUSH = "flush"
    JOURNAL = "journal"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    path: str
    total_bytes: int
    free_bytes: int
    #: Share of the file system that is used or owed to it, 0..1 and beyond.
    share: float


class DiskMonitor:
    """Owner of the state. `check` is synchronous: one statvfs per directory."""

    __slots__ = (
        "_callbacks",
        "_config",
        "_directories",
        "_disk",
        "_low_water_mark",
        "_owed_bytes",
        "_reasons",
        "_written_bytes",
        "next_check_bytes",
        "read_only_count",
        "state",
        "usages",
    )

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        directories: Sequence[str],
        owed_bytes: Callable[[], int],
        written_bytes: Callable[[], int],
    ) -> None:
        """`owed_bytes()`: taken, and not in an entry log yet. `written_bytes()`: journaled since
        the start, the measure of when to look again."""
        self._config = config
        self._disk = disk
        self._directories = directories
        self._owed_bytes = owed_bytes
        self._written_bytes = written_bytes
        self._low_water_mark = config.disk_usage_low_water_mark or config.disk_usage_threshold
        self._reasons: dict[Reason, str] = {}
        self._callbacks: list[Callable[[DiskState], None]] = []
        self.state = DiskState.OK
        self.usages: list[DirectoryUsage] = []
        #: When this much was journaled, `check` is due.
        self.next_check_bytes = 0
        self.read_only_count = 0

    @property
    def is_read_only(self) -> bool:
        return self.state is DiskState.READ_ONLY

    @property
    def is_short_of_space(self) -> bool:
        """Read-only, and not only because somebody asked for it."""
        return bool(self._reasons.keys() - {Reason.ADMIN})

    @property
    def lacks_journal(self) -> bool:
        """The journal's next file found no space."""
        return Reason.JOURNAL in self._reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Why it is read-only: what kind of reason, and in words."""
        return {reason.value: words for reason, words in self._reasons.items()}

    def on_change(self, function: Callable[[DiskState], None]) -> None:
        """Calls `function(state)` whenever the state has changed."""
        self._callbacks.append(function)

    def check(self) -> None:
        """Looks at the directories and draws the conclusions. OSError if one cannot be asked."""
        owed = self._owed_bytes()
        self.usages = [self._usage(path, owed) for path in self._directories]
        limit = self._config.disk_usage_threshold
        if Reason.DISK in self._reasons:
            # Only once all is below the low-water mark: no flapping around the threshold.
            limit = self._low_water_mark
        full = [usage for usage in self.usages if usage.share > limit]
        enough = 1 if self._config.read_only_on_any_disk_full else len(self.usages)
        if len(full) >= enough:
            words = ", ".join(f"{each.path} is {each.share:.1%} full" for each in full)
            self._reasons[Reason.DISK] = words
        else:
            self._reasons.pop(Reason.DISK, None)
        left = min((self._left_bytes(each) for each in self.usages), default=0)
        distance = max(left // 2, CHECK_DISTANCE_MIN_BYTES)
        self.next_check_bytes = self._written_bytes() + distance
        self._conclude()

    def _usage(self, path: str, owed: int) -> DirectoryUsage:
        total, free = self._disk.usage(path)
        share = (total - free + owed) / total if total else 1.0
        return DirectoryUsage(path, total, free, share)

    def _left_bytes(self, usage: DirectoryUsage) -> int:
        return int((self._config.disk_usage_threshold - usage.share) * usage.total_bytes)

    def set_reason(self, reason: Reason, words: str) -> None:
        self._reasons[reason] = words
        self._conclude()

    def clear_reason(self, reason: Reason) -> None:
        if self._reasons.pop(reason, None) is not None:
            self._conclude()

    def _conclude(self) -> None:
        warn = self._config.disk_usage_warn_threshold
        if self._reasons:
            state = DiskState.READ_ONLY
        elif any(usage.share > warn for usage in self.usages):
            state = DiskState.WARN
        else:
            state = DiskState.OK
        if state is self.state:
            return
        before, self.state = self.state, state
        words = "; ".join(self._reasons.values()) or ", ".join(
            f"{each.path} is {each.share:.1%} full" for each in self.usages
        )
        level = logging.INFO if state is DiskState.OK else logging.WARNING
        logger.log(level, "bookie disks were=%s are=%s: %s", before.value, state.value, words)
        self.read_only_count += state is DiskState.READ_ONLY
        for function in self._callbacks:
            function(state)

    def takes_high_priority(self) -> bool:
        """Whether a recovery may add although the bookie is read-only. As of the last check, which
        `next_check_bytes` keeps recent."""
        if Reason.FLUSH in self._reasons or Reason.JOURNAL in self._reasons:
            return False
        return all(usage.free_bytes >= self._high_priority_bytes(usage) for usage in self.usages)

    def _high_priority_bytes(self, usage: DirectoryUsage) -> int:
        config = self._config
        if config.high_priority_min_usable_bytes:
            return config.high_priority_min_usable_bytes
        kept = (1 - config.disk_usage_threshold) * usage.total_bytes
        return min(config.entry_log_size_limit_bytes, int(kept / 2))
