"""BookieConfig: every knob of a bookie. BookKeeper's names are given where an option has one.

Sizes in bytes, times in milliseconds. A configuration that cannot work is refused when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.space.gc_config import GcConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

#: The largest offset in an entry log must fit the index's 32 bits, signed in BookKeeper.
ENTRY_LOG_SIZE_MAX_BYTES = 2 * GIB - 1
JOURNAL_HEADER_SIZE_MIN_BYTES = 64
WRITE_CACHE_SEGMENT_SIZE_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    #: Stable and explicit; in the cookie (invariant K1).
    bookie_id: str
    #: Of the cluster (INSTANCEID); in the cookie. "" where there is none.
    instance_id: str
    #: journalDirectory, ledgerDirectories: best on different disks (feature 35).
    journal_directory: str
    ledger_directory: str
    #: The others of ledgerDirectories; they hold entry logs only (storage/ledger_directories.py).
    more_ledger_directories: tuple[str, ...] = ()
    #: allowStorageExpansion: new, empty directories may join those that the cookie names.
    allow_storage_expansion: bool = False

    #: journalMaxSizeMB, but each file is written once before use, whole (journalPreAllocSizeMB),
    #: and reused (journalReuseFiles).
    journal_size_bytes: int = 128 * MIB
    #: journalAlignmentSize. The page size: then no synced page is ever written again, and no
    #: write has to read the rest of a page first.
    journal_alignment_bytes: int = 4 * KIB
    #: One checksummed group of the journal; a burst that is larger becomes several.
    journal_group_size_max_bytes: int = 8 * MIB
    #: journalBufferedWritesThreshold: what queues while a sync runs is written, in front of the
    #: next sync, as soon as it is this much.
    journal_buffered_writes_threshold_bytes: int = 512 * KIB
    #: journalMaxMemorySizeMb: queued and not yet synced; beyond it adds are held back.
    journal_queue_size_max_bytes: int = 64 * MIB
    #: After this long without an add, the journal says that its last group was durable, so that
    #: damage in it is told from a torn write (Journal.attest). 0: never.
    journal_attest_interval_ms: int = 100
    #: journalMaxBackups: written files kept for reuse once they are checkpointed.
    journal_spare_files_max: int = 4

    #: dbStorage_writeCacheMaxSizeMb: both generations together.
    write_cache_size_bytes: int = 256 * MIB
    write_cache_segment_size_bytes: int = WRITE_CACHE_SEGMENT_SIZE_BYTES
    #: Touched before the first add; the rest when it is needed first, which may then stop the loop
    #: for some milliseconds for each segment.
    write_cache_preallocated_size_bytes: int = 32 * MIB
    #: Memory of flushed entries that is kept alive by views handed to readers; beyond it entries
    #: in the cache are handed out as copies.
    write_cache_pinned_size_max_bytes: int = 64 * MIB
    #: flushInterval
    flush_interval_ms: int = 10_000
    #: flushEntrylogBytes: bounds the dirty pages, whose write-back would stall the journal.
    flush_entry_log_bytes: int = MIB
    #: Adds held back while the cache or the journal's queue is full; then ETOOMANYREQUESTS.
    held_adds_max: int = 10_000
    held_adds_size_max_bytes: int = 32 * MIB

    #: logSizeLimit
    entry_log_size_limit_bytes: int = GIB
    #: openFileLimit, of entry logs
    entry_log_open_files_max: int = 256
    #: dbStorage_readAheadCacheMaxSizeMb: so much of what was flushed last stays in the page cache,
    #: which is our read cache. The pages of what is older are let go of: the next flush gets them,
    #: and the kernel neither has to look for free memory nor to take new from its host.
    entry_log_cached_size_bytes: int = 512 * MIB
    #: dbStorage_readAheadCacheBatchBytesSize: brought into the page cache after a miss.
    read_ahead_size_bytes: int = 4 * MIB

    #: diskUsageThreshold: a directory whose file system is fuller than this takes no more.
    disk_usage_threshold: float = 0.95
    #: diskUsageWarnThreshold: from here on nothing is done that can wait and needs space.
    disk_usage_warn_threshold: float = 0.90
    #: diskUsageLwmThreshold: below it the bookie is writable again. 0: as the threshold.
    disk_usage_low_water_mark: float = 0.0
    #: diskCheckInterval; sooner while much is written.
    disk_check_interval_ms: int = 10_000
    #: minUsableSizeForEntryLogCreation: directories with less are taken for a new entry log only
    #: if there is no other. 0: 1.2 times entry_log_size_limit_bytes.
    entry_log_creation_min_usable_bytes: int = 0
    #: minUsableSizeForHighPriorityWrites: while read-only, recoveries may add as long as there is
    #: this much. 0: entry_log_size_limit_bytes, but no more than half of what the threshold keeps.
    high_priority_min_usable_bytes: int = 0
    #: readOnlyModeEnabled: without it a full disk ends the bookie.
    read_only_mode_enabled: bool = True
    #: readOnlyModeOnAnyDiskFullEnabled: not only when all ledger directories are full.
    read_only_on_any_disk_full: bool = True
    #: forceReadOnlyBookie
    force_read_only: bool = False
    #: isForceGCAllowWhenNoSpace
    force_gc_when_no_space: bool = False
    #: Kept by a file, and given free for small writes that make space when there is none left.
    #: At most a 64th of the file system. 0: none.
    disk_reserve_size_bytes: int = 32 * MIB

    #: localScrubInterval, but it is on: from the start of one pass over all entry logs to the next.
    #: 0: none.
    scrub_interval_ms: int = 7 * 24 * 3600 * 1000
    #: localScrubRateLimit: entries per second. 0: no limit but that of the bytes.
    scrub_rate_entries: int = 0
    #: Bytes per second.
    scrub_rate_bytes: int = 8 * MIB
    #: localConsistencyCheckOnStartup
    local_consistency_check_on_startup: bool = False

    #: Garbage collection and compaction.
    gc: GcConfig = field(default_factory=GcConfig)

    #: With the 32 bytes of header and the digest. BookKeeper: nettyMaxFrameSizeBytes, 5 MiB.
    entry_size_max_bytes: int = 5 * MIB
    #: Every entry is of a ledger with CRC32C digests: check them before the journal (BP-31).
    #: A bookie is not told a ledger's digest type, so only who composes it knows.
    verify_digest_on_write: bool = False

    #: dbStorage_rocksDB_blockCacheSize
    index_block_cache_size_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        alignment = self.journal_alignment_bytes
        if alignment < JOURNAL_HEADER_SIZE_MIN_BYTES or alignment & (alignment - 1):
            raise ValueError(
                f"journal_alignment_bytes={alignment}: must be a power of two, at least "
                f"{JOURNAL_HEADER_SIZE_MIN_BYTES}"
            )
        group_max = max(self.journal_group_size_max_bytes, 0) + self.entry_size_max_bytes
        if self.journal_size_bytes < group_max + 3 * alignment:
            raise ValueError(
                f"journal_size_bytes={self.journal_size_bytes}: too small for a group of "
                f"{group_max} bytes (journal_group_size_max_bytes + entry_size_max_bytes)"
            )
        if not 2 * self.entry_size_max_bytes <= self.entry_log_size_limit_bytes:
            raise ValueError(
                f"entry_log_size_limit_bytes={self.entry_log_size_limit_bytes}: less than two of "
                f"the largest entries ({self.entry_size_max_bytes} bytes)"
            )
        if self.entry_log_size_limit_bytes > ENTRY_LOG_SIZE_MAX_BYTES:
            raise ValueError(
                f"entry_log_size_limit_bytes={self.entry_log_size_limit_bytes}: more than "
                f"{ENTRY_LOG_SIZE_MAX_BYTES}"
            )
        if self.write_cache_size_bytes < 2 * self.write_cache_segment_size_bytes:
            raise ValueError(
                f"write_cache_size_bytes={self.write_cache_size_bytes}: less than two segments"
            )
        if self.write_cache_size_bytes < 2 * (self.entry_size_max_bytes + 4):
            raise ValueError(
                f"write_cache_size_bytes={self.write_cache_size_bytes}: half of it does not hold "
                f"the largest entry ({self.entry_size_max_bytes} bytes)"
            )
        if self.flush_interval_ms <= 0:
            raise ValueError(f"flush_interval_ms={self.flush_interval_ms}: must be positive")
        self._check_disks()

    def _check_disks(self) -> None:
        directories = self.ledger_directories
        if len(set(directories)) != len(directories):
            raise ValueError(f"ledger_directories={','.join(directories)}: one is named twice")
        if self.disk_check_interval_ms <= 0:
            raise ValueError(
                f"disk_check_interval_ms={self.disk_check_interval_ms}: must be positive"
            )
        warn, threshold = self.disk_usage_warn_threshold, self.disk_usage_threshold
        if not 0 < warn <= threshold <= 1:
            raise ValueError(
                f"disk_usage_threshold={threshold}, disk_usage_warn_threshold={warn}: both are "
                "shares between 0 and 1, and the warning comes first"
            )
        if not 0 <= self.disk_usage_low_water_mark <= threshold:
            raise ValueError(
                f"disk_usage_low_water_mark={self.disk_usage_low_water_mark}: more than "
                f"disk_usage_threshold={threshold}"
            )

    @property
    def ledger_directories(self) -> tuple[str, ...]:
        """All of ledgerDirectories; index, checkpoint and lock order start with the first."""
        return (self.ledger_directory, *self.more_ledger_directories)
