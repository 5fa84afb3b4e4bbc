"""BookieConfig: every knob of a bookie. BookKeeper's names are given where an option has one.

Sizes in bytes, times in milliseconds. A configuration that cannot work is refused when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

#: The largest offset in an entry log must fit the index's 32 bits, signed in BookKeeper.
ENTRY_LOG_SIZE_MAX_BYTES = 2 * GIB - 1
JOURNAL_HEADER_SIZE_MIN_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    #: Stable and explicit (ledgers.md 7); in the cookie.
    bookie_id: str
    #: Of the cluster (INSTANCEID); in the cookie. "" where there is none.
    instance_id: str
    #: journalDirectory, ledgerDirectories: best on different disks (features.md #35).
    journal_directory: str
    ledger_directory: str

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
    #: journalMaxBackups: written files kept for reuse once they are checkpointed.
    journal_spare_files_max: int = 4

    #: dbStorage_writeCacheMaxSizeMb: both generations together.
    write_cache_size_bytes: int = 256 * MIB
    write_cache_segment_size_bytes: int = 4 * MIB
    #: Touched before the first add; the rest when it is needed first, which may then stop the loop
    #: for some milliseconds for each segment.
    write_cache_preallocated_size_bytes: int = 32 * MIB
    #: Memory of flushed entries that is kept alive by views handed to readers; beyond it entries
    #: in the cache are handed out as copies.
    write_cache_pinned_size_max_bytes: int = 64 * MIB
    #: flushInterval
    flush_interval_ms: int = 10_000
    #: flushEntrylogBytes: bounds the dirty pages, whose write-back would stall the journal.
    flush_entry_log_bytes: int = 16 * MIB
    #: Adds held back while the cache or the journal's queue is full; then ETOOMANYREQUESTS.
    held_adds_max: int = 10_000
    held_adds_size_max_bytes: int = 32 * MIB

    #: logSizeLimit
    entry_log_size_limit_bytes: int = GIB
    #: openFileLimit, of entry logs
    entry_log_open_files_max: int = 256
    #: dbStorage_readAheadCacheBatchBytesSize: brought into the page cache after a miss.
    read_ahead_size_bytes: int = 4 * MIB

    #: With the 32 bytes of header and the digest. BookKeeper: nettyMaxFrameSizeBytes, 5 MiB.
    entry_size_max_bytes: int = 5 * MIB
    #: Every entry is of a ledger with CRC32C digests: check them before the journal (features.md
    #: D, BP-31). A bookie is not told a ledger's digest type, so only who composes it knows.
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
