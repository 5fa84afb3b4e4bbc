"""What a bookie counts, as metrics read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """Counters since the start, and gauges (those that can fall: sizes and counts of now)."""

    journal_records: int
    journal_groups: int
    journal_syncs: int
    journal_written_bytes: int
    journal_queued_bytes: int
    write_cache_size_bytes: int
    write_cache_entries: int
    write_cache_pinned_bytes: int
    write_cache_copied_reads: int
    held_adds: int
    held_bytes: int
    refused_adds: int
    flushes: int
    flushed_entries: int
    flushed_bytes: int
    flush_seconds: float
    read_cache_entries: int
    read_log_entries: int
    read_bytes: int
    read_misses: int
    damaged_records: int
    entry_logs: int
    entry_log_bytes: int
    ledgers: int
