"""Which of the ledger directories gets the next entry log (feature 35, invariants K).

`ledgerDirectories` names one directory or several, each on a disk of its own. Entry logs are spread
over them; a log's id is unique over all, so the index needs not know where a log is. Index,
checkpoint and reserve are in the first.

A directory is chosen at random, weighted by the free space of its disk, so that disks of different
size fill at the same pace. One that is above diskUsageThreshold is not chosen, and one with less
than minUsableSizeForEntryLogCreation only if there is no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.config import BookieConfig
    from runtime.disk import Disk
    from runtime.env import Rng


class LedgerDirectories:
    __slots__ = ("_config", "_disk", "_rng", "paths")

    def __init__(self, config: BookieConfig, disk: Disk, rng: Rng, paths: tuple[str, ...]) -> None:
        """`paths`: the directories that have the files, the first one first."""
        self._config = config
        self._disk = disk
        self._rng = rng
        self.paths = paths

    def choose(self) -> str:
        """For a new entry log. If all are full, the one with the most space."""
        if len(self.paths) == 1:
            return self.paths[0]
        usages = [(path, *self._disk.usage(path)) for path in self.paths]
        threshold = self._config.disk_usage_threshold
        free = {path: left for path, total, left in usages if total - left <= threshold * total}
        wanted = self._config.entry_log_creation_min_usable_bytes or int(
            1.2 * self._config.entry_log_size_limit_bytes
        )
        roomy = {path: left for path, left in free.items() if left >= wanted} or free
        point = self._rng.random() * sum(roomy.values())
        for path, left in roomy.items():
            point -= left
            if point < 0:
                return path
        return max(usages, key=lambda usage: usage[2])[0]
