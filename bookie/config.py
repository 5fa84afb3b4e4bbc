"""BookieConfig: every knob of a bookie, and the settings of bk_server.conf that turn them.

Fields are in bytes and milliseconds, settings as BookKeeper's option says (MB in names that end in
MB or Mb, otherwise bytes). A configuration that cannot work is refused when it is made. Fields that
are no settings have a default of their own; tests and the simulation give them others.
"""

from __future__ import annotations

from dataclasses import field

from bookie.journal.journal_format import first_group_offset, group_space_max
from bookie.space.gc_config import GcConfig
from runtime.config import (
    LONG_MAX,
    ConfigError,
    ConfigKey,
    ConfigType,
    at_least,
    at_most,
    between,
    distinct_list,
    either,
    share,
)
from runtime.settings import (
    as_set,
    contradiction,
    declared,
    from_mebibytes,
    from_seconds,
    made_of,
    setting,
)
from wire.dataclass import dataclass

INT, LONG, DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
STRING, LIST, BOOLEAN = ConfigType.STRING, ConfigType.LIST, ConfigType.BOOLEAN

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

#: The largest offset in an entry log must fit the index's 32 bits, signed in BookKeeper.
ENTRY_LOG_SIZE_MAX_BYTES = 2 * GIB - 1
JOURNAL_HEADER_SIZE_MIN_BYTES = 64
WRITE_CACHE_SEGMENT_SIZE_BYTES = 4 * MIB


def _flush_bytes(value: int) -> int:
    """0 leaves it to the kernel when pages are written: all at once, and the journal would wait."""
    return value or MIB


def _read_ahead_bytes(value: int) -> int:
    return value if value > 0 else 4 * MIB


def _no_limit_if_0(value: int) -> int:
    """BookKeeper's queue of adds; 0 is no limit, and their bytes have one all the same."""
    return value or LONG_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    #: Stable and explicit; in the cookie (invariant K1).
    bookie_id: str = field(
        metadata=declared("bookieId", STRING, doc="The bookie's stable name, in its cookie.")
    )
    #: Of the cluster (INSTANCEID); in the cookie. "" where there is none.
    instance_id: str
    #: journalDirectory, ledgerDirectories: best on different disks (feature 35).
    journal_directory: str = field(
        metadata=made_of(
            ConfigKey(
                "journalDirectories",
                LIST,
                None,
                "Where the journal is. There is one: the first directory has it.",
                distinct_list(empty_allowed=False),
            ),
            ConfigKey("journalDirectory", STRING, None, "The older name; journalDirectories wins."),
        )
    )
    ledger_directory: str = field(
        metadata=made_of(
            ConfigKey(
                "ledgerDirectories",
                STRING,
                None,
                "Where entry logs are, separated by commas; the index is in the first.",
            )
        )
    )
    #: The others of ledgerDirectories; they hold entry logs only (storage/ledger_directories.py).
    more_ledger_directories: tuple[str, ...] = ()
    #: New, empty directories may join those that the cookie names.
    allow_storage_expansion: bool = setting(
        "allowStorageExpansion", BOOLEAN, "false", doc="Empty directories may be added."
    )

    #: Each file is written once before use, whole (journalPreAllocSizeMB),
    #: and reused (journalReuseFiles).
    journal_size_bytes: int = setting(
        "journalMaxSizeMB",
        LONG,
        "128",
        doc="Size of a journal file; at least 9 MiB more than nettyMaxFrameSizeBytes, and more "
        "with a large journalAlignmentSize.",
        convert=from_mebibytes,
    )
    #: The page size: then no synced page is ever written again, and no
    #: write has to read the rest of a page first.
    journal_alignment_bytes: int = setting(
        "journalAlignmentSize",
        INT,
        "4096",
        unit="bytes",
        doc="Journal groups start at its multiples: a power of two, at least 64.",
    )
    #: One checksummed group of the journal; a burst that is larger becomes several.
    journal_group_size_max_bytes: int = 8 * MIB
    #: Of the journal, written in one turn of the loop, which takes 2 ms for so much.
    journal_turn_size_max_bytes: int = MIB
    #: What queues while a sync runs is written, in front of the
    #: next sync, as soon as it is this much.
    journal_buffered_writes_threshold_bytes: int = setting(
        "journalBufferedWritesThreshold",
        LONG,
        str(512 * KIB),
        at_least(1),
        unit="bytes",
        doc="Bytes that are written ahead of the sync that is under way.",
    )
    #: Queued and not yet synced; beyond it adds are held back.
    journal_queue_size_max_bytes: int = setting(
        "journalMaxMemorySizeMb",
        LONG,
        "64",
        at_least(1),
        doc="Unsynced bytes at most.",
        convert=from_mebibytes,
    )
    #: After this long without an add, the journal says that its last group was durable, so that
    #: damage in it is told from a torn write (Journal.attest). 0: never.
    journal_attest_interval_ms: int = 100
    #: The flush does not copy them: bookie/storage/adopted.py.
    journal_kept_entry_min_bytes: int = setting(
        "journalKeptEntryMinBytes",
        INT,
        "131072",
        at_least(0),
        unit="bytes",
        doc="Entries from this size on are written once: the journal's file becomes an entry log. "
        "0: all are copied into entry logs.",
    )
    #: Written files kept for reuse once they are checkpointed.
    journal_spare_files_max: int = setting(
        "journalMaxBackups", INT, "4", at_least(0), doc="Old journal files kept for reuse."
    )

    #: Both generations together.
    write_cache_size_bytes: int = setting(
        "dbStorage_writeCacheMaxSizeMb",
        LONG,
        "48",
        at_least(0),
        doc="Both write caches together; at least twice the largest entry.",
        convert=from_mebibytes,
    )
    write_cache_segment_size_bytes: int = WRITE_CACHE_SEGMENT_SIZE_BYTES
    #: Touched before the first add; the rest when it is needed first, which may then stop the loop
    #: for some milliseconds for each segment.
    write_cache_preallocated_size_bytes: int = 32 * MIB
    #: Memory of flushed entries that is kept alive by views handed to readers; beyond it entries
    #: in the cache are handed out as copies.
    write_cache_pinned_size_max_bytes: int = 64 * MIB
    flush_interval_ms: int = setting(
        "flushInterval", INT, "10000", at_least(1), unit="ms", doc="Time between flushes."
    )
    #: Bounds the dirty pages, whose write-back would stall the journal.
    flush_entry_log_bytes: int = setting(
        "flushEntrylogBytes",
        LONG,
        str(MIB),
        at_least(0),
        doc="Dirty bytes of an entry log.",
        convert=_flush_bytes,
    )
    #: Adds held back while the cache or the journal's queue is full; then ETOOMANYREQUESTS.
    held_adds_max: int = setting(
        "maxPendingAddRequestsPerThread",
        INT,
        None,
        at_least(0),
        doc="Adds that wait for the cache or the journal; then ETOOMANYREQUESTS. 0: no limit.",
        convert=_no_limit_if_0,
        unset=10_000,
    )
    held_adds_size_max_bytes: int = 32 * MIB

    entry_log_size_limit_bytes: int = setting(
        "logSizeLimit",
        LONG,
        str(GIB),
        at_most(ENTRY_LOG_SIZE_MAX_BYTES),
        unit="bytes",
        doc="Size of an entry log; at least twice nettyMaxFrameSizeBytes.",
    )
    #: Of entry logs
    entry_log_open_files_max: int = setting(
        "openFileLimit", INT, "256", at_least(1), doc="Entry logs kept open."
    )
    #: So much of what was flushed last stays in the page cache,
    #: which is our read cache. The pages of what is older are let go of: the next flush gets them,
    #: and the kernel neither has to look for free memory nor to take new from its host.
    entry_log_cached_size_bytes: int = setting(
        "dbStorage_readAheadCacheMaxSizeMb",
        LONG,
        "512",
        at_least(0),
        doc="Of what was flushed last, so much stays in the page cache.",
        convert=from_mebibytes,
    )
    #: Brought into the page cache after a miss.
    read_ahead_size_bytes: int = setting(
        "dbStorage_readAheadCacheBatchBytesSize",
        INT,
        str(4 * MIB),
        either(-1, at_least(1)),
        unit="bytes",
        doc="Bytes read ahead after a miss; -1: as many as are good here.",
        convert=_read_ahead_bytes,
    )

    #: A directory whose file system is fuller than this takes no more.
    disk_usage_threshold: float = setting(
        "diskUsageThreshold",
        DOUBLE,
        "0.95",
        share,
        unit="share",
        doc="Read-only above this; at least diskUsageWarnThreshold.",
    )
    #: From here on nothing is done that can wait and needs space.
    disk_usage_warn_threshold: float = setting(
        "diskUsageWarnThreshold",
        DOUBLE,
        "0.90",
        share,
        unit="share",
        doc="No major compaction above this; at most diskUsageThreshold.",
    )
    #: Below it the bookie is writable again. 0: as the threshold.
    disk_usage_low_water_mark: float = setting(
        "diskUsageLwmThreshold",
        DOUBLE,
        None,
        between(0, 1),
        unit="share",
        doc="Writable again below this; at most diskUsageThreshold.",
        unset=0.0,
    )
    #: Sooner while much is written.
    disk_check_interval_ms: int = setting(
        "diskCheckInterval",
        INT,
        "10000",
        at_least(1),
        unit="ms",
        doc="Time between looks at usage.",
    )
    #: Directories with less are taken for a new entry log only
    #: if there is no other. 0: 1.2 times entry_log_size_limit_bytes.
    entry_log_creation_min_usable_bytes: int = setting(
        "minUsableSizeForEntryLogCreation",
        LONG,
        None,
        at_least(0),
        unit="bytes",
        doc="Directories with less get a new entry log only if there is no other.",
        unset=0,
    )
    #: While read-only, recoveries may add as long as there is
    #: this much. 0: entry_log_size_limit_bytes, but no more than half of what the threshold keeps.
    high_priority_min_usable_bytes: int = setting(
        "minUsableSizeForHighPriorityWrites",
        LONG,
        None,
        at_least(0),
        unit="bytes",
        doc="Recoveries may write while read-only, as long as there is this much.",
        unset=0,
    )
    #: Without it a full disk ends the bookie.
    read_only_mode_enabled: bool = setting(
        "readOnlyModeEnabled", BOOLEAN, "true", doc="Else a full disk ends the bookie."
    )
    #: Not only when all ledger directories are full.
    read_only_on_any_disk_full: bool = setting(
        "readOnlyModeOnAnyDiskFullEnabled", BOOLEAN, "true", doc="Else all of them must be full."
    )
    force_read_only: bool = setting(
        "forceReadOnlyBookie", BOOLEAN, "false", doc="Starts read-only, and stays so."
    )
    force_gc_when_no_space: bool = setting(
        "isForceGCAllowWhenNoSpace", BOOLEAN, "false", doc="GC and compaction go on then."
    )
    #: Kept by a file, and given free for small writes that make space when there is none left.
    #: At most a 64th of the file system. 0: none.
    disk_reserve_size_bytes: int = 32 * MIB

    #: BookKeeper has it off. From the start of one pass over all entry logs to the next.
    #: 0: none.
    scrub_interval_ms: int = setting(
        "localScrubInterval",
        LONG,
        None,
        at_least(0),
        unit="s",
        doc="Seconds between scrubs; 0: none.",
        convert=from_seconds,
        unset=7 * 24 * 3600 * 1000,
    )
    #: Entries per second. 0: no limit but that of the bytes.
    scrub_rate_entries: int = setting(
        "localScrubRateLimit",
        INT,
        None,
        at_least(0),
        unit="entries/s",
        doc="Entries per second; 0: no limit.",
        unset=0,
    )
    #: Bytes per second.
    scrub_rate_bytes: int = 8 * MIB
    local_consistency_check_on_startup: bool = setting(
        "localConsistencyCheckOnStartup", BOOLEAN, "false", doc="Refuse a start on damage."
    )

    #: Garbage collection and compaction.
    gc: GcConfig = field(default_factory=GcConfig)

    #: With the 32 bytes of header and the digest.
    entry_size_max_bytes: int = setting(
        "nettyMaxFrameSizeBytes",
        INT,
        str(5 * MIB),
        between(MIB, ENTRY_LOG_SIZE_MAX_BYTES // 2),
        doc="The largest entry; at most half of logSizeLimit.",
    )
    #: Every entry is of a ledger with CRC32C digests: check them before the journal (BP-31).
    #: A bookie is not told a ledger's digest type, so only who composes it knows.
    verify_digest_on_write: bool = False

    index_block_cache_size_bytes: int = setting(
        "dbStorage_rocksDB_blockCacheSize",
        LONG,
        str(64 * MIB),
        at_least(0),
        unit="bytes",
        doc="Index blocks.",
    )

    def __post_init__(self) -> None:
        """ConfigError that names the settings: whoever made them cannot know our fields."""
        self._check_journal()
        self._check_entries()
        self._check_disks()

    def _check_journal(self) -> None:
        alignment = self.journal_alignment_bytes
        if alignment < JOURNAL_HEADER_SIZE_MIN_BYTES or alignment & (alignment - 1):
            least = JOURNAL_HEADER_SIZE_MIN_BYTES
            problem = f"must be a power of two, at least {least}"
            raise contradiction(self, "journal_alignment_bytes", problem)
        group_max = max(self.journal_group_size_max_bytes, 0) + self.entry_size_max_bytes
        least = first_group_offset(alignment) + group_space_max(group_max, alignment)
        if self.journal_size_bytes < least:
            others = f"{self._largest_entry}, {as_set(self, 'journal_alignment_bytes')}"
            problem = f"the largest group needs {-(-least // MIB)} ({others})"
            raise contradiction(self, "journal_size_bytes", problem)

    def _check_entries(self) -> None:
        if self.entry_log_size_limit_bytes < 2 * self.entry_size_max_bytes:
            problem = f"less than two of the largest entries ({self._largest_entry})"
            raise contradiction(self, "entry_log_size_limit_bytes", problem)
        if self.entry_log_size_limit_bytes > ENTRY_LOG_SIZE_MAX_BYTES:
            problem = f"more than {ENTRY_LOG_SIZE_MAX_BYTES}"
            raise contradiction(self, "entry_log_size_limit_bytes", problem)
        if self.write_cache_size_bytes < 2 * self.write_cache_segment_size_bytes:
            raise contradiction(self, "write_cache_size_bytes", "less than two segments")
        if self.write_cache_size_bytes < 2 * (self.entry_size_max_bytes + 4):
            problem = f"half of it does not hold the largest entry ({self._largest_entry})"
            raise contradiction(self, "write_cache_size_bytes", problem)
        if self.flush_interval_ms <= 0:
            raise contradiction(self, "flush_interval_ms", "must be positive")

    @property
    def _largest_entry(self) -> str:
        return as_set(self, "entry_size_max_bytes")

    def _check_disks(self) -> None:
        directories = self.ledger_directories
        if len(set(directories)) != len(directories):
            name = "ledgerDirectories"
            raise ConfigError(name, f"{name}={','.join(directories)}: one is named twice")
        if self.disk_check_interval_ms <= 0:
            raise contradiction(self, "disk_check_interval_ms", "must be positive")
        for name in ("disk_usage_warn_threshold", "disk_usage_threshold"):
            if (problem := share(getattr(self, name))) is not None:
                raise contradiction(self, name, problem)
        if self.disk_usage_warn_threshold > self.disk_usage_threshold:
            problem = f"more than {as_set(self, 'disk_usage_threshold')}"
            raise contradiction(self, "disk_usage_warn_threshold", problem)
        if not 0 <= self.disk_usage_low_water_mark <= self.disk_usage_threshold:
            problem = f"not between 0 and {as_set(self, 'disk_usage_threshold')}"
            raise contradiction(self, "disk_usage_low_water_mark", problem)

    @property
    def ledger_directories(self) -> tuple[str, ...]:
        """All of ledgerDirectories; index, checkpoint and lock order start with the first."""
        return (self.ledger_directory, *self.more_ledger_directories)
