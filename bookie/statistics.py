"""What a bookie counts, as metrics read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from bookie.held_adds import HeldAdds
    from bookie.parts import BookieParts
    from bookie.storage.flush import FlushStatistics
    from bookie.storage.reader import ReadStatistics
    from runtime.histogram import LatencyHistogram


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
    #: Of entries that stayed in the journal, and journals that became entry logs.
    kept_bytes: int
    adopted_journals: int
    flush_seconds: float
    read_cache_entries: int
    read_log_entries: int
    read_bytes: int
    read_misses: int
    damaged_records: int
    entry_logs: int
    entry_log_bytes: int
    ledgers: int
    journal_files: int
    journal_groups_written_ahead: int
    #: Adds answered EREADONLY.
    refused_read_only: int
    #: The live ones, not copies: they go on.
    journal_queue_latency: LatencyHistogram
    journal_add_latency: LatencyHistogram
    journal_write_latency: LatencyHistogram
    journal_sync_latency: LatencyHistogram
    checkpoint_latency: LatencyHistogram
    read_miss_latency: LatencyHistogram


def gather(
    parts: BookieParts,
    held: HeldAdds,
    flush: FlushStatistics,
    read: ReadStatistics,
    *,
    refused_read_only: int,
    damaged_records: int,
) -> BookieStatistics:
    """One picture of all the parts of a bookie."""
    written = parts.journal.statistics()
    cached = parts.cache.statistics()
    return BookieStatistics(
        journal_records=written.records,
        journal_groups=written.groups,
        journal_syncs=written.syncs,
        journal_written_bytes=written.written_bytes,
        journal_queued_bytes=written.queued_bytes,
        write_cache_size_bytes=cached.size_bytes,
        write_cache_entries=cached.entry_count,
        write_cache_pinned_bytes=cached.pinned_size_bytes,
        write_cache_copied_reads=cached.copied_reads,
        held_adds=len(held),
        held_bytes=held.size_bytes,
        refused_adds=held.refused_count,
        flushes=flush.flushes,
        flushed_entries=flush.entries,
        flushed_bytes=flush.written_bytes,
        kept_bytes=flush.kept_bytes,
        adopted_journals=parts.logs.adopted_count,
        flush_seconds=flush.seconds,
        read_cache_entries=read.cache_entries,
        read_log_entries=read.log_entries,
        read_bytes=read.entry_bytes,
        read_misses=read.misses,
        damaged_records=damaged_records,
        entry_logs=parts.logs.count,
        entry_log_bytes=parts.logs.size_bytes,
        ledgers=len(parts.table),
        journal_files=written.files,
        journal_groups_written_ahead=written.groups_written_ahead,
        refused_read_only=refused_read_only,
        journal_queue_latency=written.queue_latency,
        journal_add_latency=written.add_latency,
        journal_write_latency=written.write_latency,
        journal_sync_latency=written.sync_latency,
        checkpoint_latency=flush.latency,
        read_miss_latency=read.miss_latency,
    )
