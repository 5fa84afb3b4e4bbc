"""Figures of a bookie, by the names of BookKeeper's Prometheus provider where it has them.

tests/quire/bookkeeper_metrics.txt lists all names of a Java bookie, with those that mean nothing
here and why. There is one journal and one storage, so there are no labels `journalIndex` and
`ledgerDir`; times are BookKeeper's milliseconds in its names, and seconds in ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bookie.space.disk_usage import DiskState
from bookie.space.gc_report import Phase
from quire.metrics.latency import (
    RecentLatencies,
    histogram_family,
    java_counts,
    java_summary,
)
from runtime.metrics import counter, counters, gauge, gauges, summary, untyped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from bookie.bookie import Bookie
    from bookie.config import BookieConfig
    from bookie.health.scrub import ScrubStatus
    from bookie.space.gc_report import GcStatus
    from bookie.statistics import BookieStatistics
    from runtime.env import Clock
    from runtime.metrics import Collector

JOURNAL = "bookie_journal_JOURNAL_"


def bookie_collector(bookie: Bookie, config: BookieConfig, clock: Clock) -> Collector:
    recent = RecentLatencies(clock)

    def collect() -> Iterable[Metric]:
        now = bookie.statistics()
        yield from _journal(now, config, recent)
        yield from _adds(now, bookie)
        yield from _write_cache(now, config)
        yield from _flush(now, recent)
        yield from _reads(now, recent)
        yield from _logs(now)
        yield from _garbage(bookie.gc.status())
        yield from _scrub(bookie.scrubber.status())
        yield from _disks(bookie, config)

    return collect


def _journal(
    now: BookieStatistics, config: BookieConfig, recent: RecentLatencies
) -> Iterator[Metric]:
    for name, text, histogram in (
        ("ADD_ENTRY", "From the burst that brought a record to its answer.", "add"),
        ("QUEUE_LATENCY", "From the burst that brought a record to its write.", "queue"),
        ("FLUSH_LATENCY", "Writes of a group into the page cache.", "write"),
        ("SYNC", "Syncs.", "sync"),
    ):
        latency = getattr(now, f"journal_{histogram}_latency")
        yield java_summary(JOURNAL + name, text, latency, recent)
    yield histogram_family(
        "quire_bookie_journal_sync_seconds", "Syncs of the journal.", now.journal_sync_latency
    )
    yield histogram_family(
        "quire_bookie_journal_add_seconds",
        "From the burst that brought a record to its answer.",
        now.journal_add_latency,
    )
    yield java_counts(
        JOURNAL + "FORCE_WRITE_BATCH_ENTRIES",
        "Records per sync.",
        now.journal_syncs,
        now.journal_records,
    )
    yield java_counts(
        JOURNAL + "FORCE_WRITE_BATCH_BYTES",
        "Bytes per sync.",
        now.journal_syncs,
        now.journal_written_bytes,
    )
    yield java_counts(
        JOURNAL + "FORCE_WRITE_GROUPING_TOTAL",
        "Groups per sync.",
        now.journal_syncs,
        now.journal_groups,
    )
    yield java_counts(JOURNAL + "CREATION_LATENCY", "Files taken into use.", now.journal_files, 0)
    yield untyped(JOURNAL + "WRITE_BYTES", "Bytes written.", now.journal_written_bytes)
    yield untyped(
        JOURNAL + "FLUSH_IN_MEM_ADD_count", "Groups of records written.", now.journal_groups
    )
    ahead = now.journal_groups_written_ahead
    yield untyped(
        JOURNAL + "NUM_FLUSH_MAX_OUTSTANDING_BYTES",
        "Groups written while a sync ran, because so much was waiting.",
        ahead,
    )
    yield untyped(
        JOURNAL + "NUM_FLUSH_EMPTY_QUEUE",
        "Groups written because nothing else was to be done.",
        now.journal_groups - ahead,
    )
    yield gauge(JOURNAL + "MEMORY_USED", "Bytes not synced yet.", now.journal_queued_bytes)
    yield gauge(JOURNAL + "MEMORY_MAX", "Beyond it adds wait.", config.journal_queue_size_max_bytes)
    yield gauge("bookie_JOURNAL_DIRS", "Journal directories.", 1)
    yield gauge(
        "quire_bookie_journal_queued_bytes",
        "Bytes that wait for the journal.",
        now.journal_queued_bytes,
    )


def _adds(now: BookieStatistics, bookie: Bookie) -> Iterator[Metric]:
    yield gauge("quire_bookie_held_adds", "Adds that wait for the write cache.", now.held_adds)
    yield gauge("quire_bookie_held_bytes", "Bytes of those adds.", now.held_bytes)
    yield gauge("bookkeeper_server_ADD_ENTRY_BLOCKED", "Adds that wait for room.", now.held_adds)
    yield untyped(
        "bookkeeper_server_ADD_ENTRY_REJECTED", "Adds refused for lack of room.", now.refused_adds
    )
    yield untyped(
        "bookie_rejected_write_requests", "Adds refused for lack of room.", now.refused_adds
    )
    yield counter(
        "quire_bookie_read_only_refusals", "Adds answered read-only.", now.refused_read_only
    )
    is_writable = bookie.is_running and not bookie.is_read_only
    yield gauge("bookie_SERVER_STATUS", "1: writable, 0: read-only.", is_writable)


def _write_cache(now: BookieStatistics, config: BookieConfig) -> Iterator[Metric]:
    yield gauge("bookie_write_cache_size", "Bytes in the write cache.", now.write_cache_size_bytes)
    yield gauge("bookie_write_cache_max_size", "At most.", config.write_cache_size_bytes)
    yield untyped(
        "bookie_write_cache_count", "Entries in the write cache.", now.write_cache_entries
    )
    yield gauge(
        "quire_bookie_write_cache_pinned_bytes",
        "Write cache segments that readers keep alive.",
        now.write_cache_pinned_bytes,
    )
    yield counter(
        "quire_bookie_write_cache_copied_reads",
        "Reads that were copied so as not to pin more.",
        now.write_cache_copied_reads,
    )
    yield untyped("bookie_write_cache_hits", "Entries read there.", now.read_cache_entries)
    yield untyped("bookie_write_cache_misses", "Entries read elsewhere.", now.read_log_entries)


def _flush(now: BookieStatistics, recent: RecentLatencies) -> Iterator[Metric]:
    yield java_summary("bookie_flush", "Checkpoints.", now.checkpoint_latency, recent)
    yield histogram_family(
        "quire_bookie_checkpoint_seconds", "Checkpoints.", now.checkpoint_latency
    )
    moved = now.flushed_bytes + now.kept_bytes
    yield java_counts("bookie_flush_size", "Bytes per flush.", now.flushes, moved)
    yield untyped("bookie_WRITE_BYTES", "Entry bytes moved to entry logs.", moved)
    yield summary("quire_bookie_flush_seconds", "Flushes.", now.flushes, now.flush_seconds)
    yield counter(
        "quire_bookie_flushed_entries", "Entries moved to entry logs.", now.flushed_entries
    )


def _reads(now: BookieStatistics, recent: RecentLatencies) -> Iterator[Metric]:
    yield untyped("bookie_READ_BYTES", "Entry bytes read.", now.read_bytes)
    yield java_summary(
        "bookie_read_entry", "Reads that had to wait for the disk.", now.read_miss_latency, recent
    )
    yield histogram_family(
        "quire_bookie_read_wait_seconds",
        "Reads that had to wait for the disk.",
        now.read_miss_latency,
    )
    yield counter(
        "quire_bookie_entry_log_reads", "Entries read from entry logs.", now.read_log_entries
    )
    yield counter(
        "quire_bookie_read_waits", "Reads that had to wait for the disk.", now.read_misses
    )
    yield counter("quire_bookie_damaged_records", "Records damaged on disk.", now.damaged_records)


def _logs(now: BookieStatistics) -> Iterator[Metric]:
    yield gauge("quire_bookie_entry_logs", "Entry logs.", now.entry_logs)
    yield gauge("bookie_ACTIVE_ENTRY_LOG_TOTAL", "Entry logs.", now.entry_logs)
    yield gauge("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", "Bytes in entry logs.", now.entry_log_bytes)
    yield gauge("bookie_ACTIVE_LEDGER_TOTAL", "Ledgers.", now.ledgers)
    yield untyped("bookie_ledgers_count", "Ledgers.", now.ledgers)


def _garbage(now: GcStatus) -> Iterator[Metric]:
    done = now.statistics
    yield untyped("bookie_DELETED_LEDGER_TOTAL", "Ledgers deleted.", done.deleted_ledgers)
    yield counter(
        "quire_bookie_gc_refused_rounds",
        "Rounds of collection in which metadata could not be trusted, and no ledger was deleted.",
        done.refused_rounds,
    )
    yield untyped(
        "bookie_RECLAIM_FAILED_TO_DELETE", "Ledgers not deleted yet.", done.failed_deletes
    )
    yield untyped("bookie_MINOR_COMPACTION_TOTAL", "Minor compactions.", done.minor_compactions)
    yield untyped("bookie_MAJOR_COMPACTION_TOTAL", "Major compactions.", done.major_compactions)
    yield untyped(
        "bookie_ENTRY_LOCATION_COMPACTION_TOTAL",
        "Compactions of the index.",
        done.location_compactions,
    )
    yield untyped(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES",
        "Entry log bytes of deleted ledgers.",
        now.reclaimed_by_deletion_bytes,
    )
    yield untyped(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        "Entry log bytes given back by compaction.",
        done.reclaimed_by_compaction_bytes,
    )
    yield java_counts("bookie_THREAD_RUNTIME", "Rounds.", done.rounds, done.seconds * 1000)
    yield from _compaction(now)


def _compaction(now: GcStatus) -> Iterator[Metric]:
    done = now.statistics
    yield gauges(
        "quire_bookie_gc_phase",
        "1 for what the garbage collector is doing.",
        ("phase",),
        [((phase.value,), phase is now.phase) for phase in Phase],
    )
    yield counters(
        "quire_bookie_compaction_seconds",
        "Time spent in compactions.",
        ("kind",),
        [(("minor",), done.minor_seconds), (("major",), done.major_seconds)],
    )
    yield counter("quire_bookie_compacted_bytes", "Bytes that were copied.", done.compacted_bytes)
    yield counter(
        "quire_bookie_compacted_entries", "Entries that were copied.", done.compacted_entries
    )
    yield counter("quire_bookie_compacted_logs", "Logs that were replaced.", done.compacted_logs)
    yield counter(
        "quire_bookie_compaction_errors",
        "Logs kept for damage, and rounds without space.",
        done.compaction_errors,
    )
    yield gauge(
        "quire_bookie_live_entry_log_bytes",
        "Entry log bytes of ledgers that are not deleted.",
        now.active_log_bytes,
    )
    yield gauge(
        "quire_bookie_unreadable_entry_logs",
        "Logs kept because it cannot be told what is in them.",
        now.unreadable_logs,
    )
    yield gauges(
        "quire_bookie_entry_logs_by_usage",
        "Complete logs by the share of them that is live: up to 10 %, up to 20 %, ...",
        ("usage",),
        [
            ((f"{(index + 1) / len(now.usage_buckets):g}",), count)
            for index, count in enumerate(now.usage_buckets)
        ],
    )
    yield gauges(
        "quire_bookie_compaction_suspended",
        "1 if it is.",
        ("kind",),
        [(("minor",), now.is_minor_suspended), (("major",), now.is_major_suspended)],
    )


def _scrub(now: ScrubStatus) -> Iterator[Metric]:
    yield counter("quire_bookie_scrub_passes", "Passes that came to their end.", now.passes)
    yield gauge("quire_bookie_scrub_bytes", "Bytes of the present or last pass.", now.bytes)
    yield gauge("quire_bookie_scrub_total_bytes", "What it looks at.", now.total_bytes)
    yield gauge(
        "quire_bookie_scrub_damaged_entries", "Damaged entries found in it.", now.damaged_entries
    )


def _disks(bookie: Bookie, config: BookieConfig) -> Iterator[Metric]:
    usages = bookie.disks.usages
    for usage in usages:
        # BookKeeper has the path in the metric's name, and percent.
        yield gauge(
            f"bookie_ledger_dir_{_of_path(usage.path)}_usage", "Percent.", usage.share * 100
        )
    yield gauge("bookie_ledger_num_dirs", "Ledger directories.", len(config.ledger_directories))
    writable = sum(usage.share <= config.disk_usage_threshold for usage in usages)
    yield gauge("bookie_ledger_writable_dirs", "Directories that are not full.", writable)
    for name, text, values in (
        ("total_bytes", "Size of the file system.", [usage.total_bytes for usage in usages]),
        ("free_bytes", "Free on the file system.", [usage.free_bytes for usage in usages]),
        ("usage_ratio", "Used, and owed by the write cache.", [each.share for each in usages]),
    ):
        labels = [(usage.path,) for usage in usages]
        pairs = zip(labels, values, strict=True)
        yield gauges(f"quire_bookie_disk_{name}", text, ("directory",), pairs)
    yield gauges(
        "quire_bookie_disk_state",
        "1 for the state that it is in.",
        ("state",),
        [((state.value,), state is bookie.disks.state) for state in DiskState],
    )
    yield counter(
        "quire_bookie_read_only_periods",
        "Times that the bookie became read-only.",
        bookie.disks.read_only_count,
    )


def _of_path(path: str) -> str:
    """As BookKeeper makes a metric's name of a directory's."""
    return re.sub(r"[^a-zA-Z0-9]", "_", path)
