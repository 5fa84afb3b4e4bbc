"""Figures of compaction by key, by Kafka's names (LogCleaner, LogCleanerManager) as the usual JMX
exporter rules make them; `quire_...` is what Kafka does not have.

Those of the last pass, and of the last look at all partitions, are as Kafka's: they stay until the
next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.metrics import counter, gauge, untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.log.compact.cleaner import LogCleaner
    from runtime.env import Clock
    from runtime.metrics import Collector


def cleaner_collector(cleaner: LogCleaner, clock: Clock) -> Collector:
    def collect() -> Iterator[Metric]:
        now = cleaner.statistics
        for name, text, value in (
            ("max_buffer_utilization_percent", "Of the last map of keys.", now.last_map_percent),
            ("cleaner_recopy_percent", "Of what it read, written.", now.last_recopy_percent),
            ("max_clean_time_secs", "The last pass took.", now.last_seconds),
            (
                "max_compaction_delay_secs",
                "By so much max.compaction.lag.ms is exceeded.",
                now.max_delay_ms / 1000,
            ),
            ("deadthreadcount", "Tasks that should run and do not.", cleaner.dead_task_count),
        ):
            yield untyped(f"kafka_log_logcleaner_{name}", text, value)
        age_ms = (clock.monotonic() - now.last_look_at) * 1000
        for name, text, value in (
            ("max_dirty_percent", "Of the dirtiest partition.", now.max_dirty_percent),
            ("time_since_last_run_ms", "Since partitions were last looked at.", age_ms),
            (
                "uncleanable_partitions_count",
                "Partitions whose ledgers could not be read.",
                now.uncleanable_count,
            ),
            ("uncleanable_bytes", "Their bytes.", now.uncleanable_bytes),
        ):
            yield untyped(f"kafka_log_logcleanermanager_{name}", text, value)
        yield from _own(cleaner)

    return collect


def _own(cleaner: LogCleaner) -> Iterator[Metric]:
    now = cleaner.statistics
    yield counter("quire_cleaner_passes", "Passes that came to their end.", now.passes)
    yield counter(
        "quire_cleaner_passes_ended",
        "Passes that ended early: the partition moved, or retention was quicker.",
        now.passes_ended,
    )
    yield counter("quire_cleaner_passes_failed", "Passes that failed.", now.passes_failed)
    yield counter("quire_cleaner_records_dropped", "Records dropped.", now.records_dropped)
    yield counter("quire_cleaner_read_bytes", "Bytes of batches read.", now.bytes_read)
    yield counter("quire_cleaner_before_bytes", "Ledgers replaced, their bytes.", now.bytes_before)
    yield counter("quire_cleaner_after_bytes", "Ledgers in their place.", now.bytes_after)
    yield counter(
        "quire_cleaner_throttled_seconds",
        "Time that passes waited because of log.cleaner.io.max.bytes.per.second.",
        cleaner.throttle.waited_seconds,
    )
    yield gauge("quire_cleaner_running", "Passes at work.", len(list(cleaner.running())))
