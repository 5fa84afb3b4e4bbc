"""The cleaner's figures by Kafka's names."""

from types import SimpleNamespace

from broker.log.compact.cleaner import CleanerStatistics
from quire.metrics.cleaner import cleaner_collector


def test_names_and_values():
    statistics = CleanerStatistics(
        passes=3,
        passes_failed=1,
        last_map_percent=12.5,
        last_recopy_percent=40.0,
        last_seconds=2.0,
        last_look_at=100.0,
        max_dirty_percent=66.0,
        max_delay_ms=1500,
        uncleanable_count=2,
        uncleanable_bytes=4096,
        records_dropped=7,
    )
    cleaner = SimpleNamespace(
        statistics=statistics,
        dead_task_count=1,
        throttle=SimpleNamespace(waited_seconds=0.5),
        running=lambda: iter([1, 2]),
    )
    clock = SimpleNamespace(monotonic=lambda: 103.5)
    found = {
        sample.name: sample.value
        for family in cleaner_collector(cleaner, clock)()
        for sample in family.samples
    }
    log, manager = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
    expected = {
        log + "max_buffer_utilization_percent": 12.5,
        log + "cleaner_recopy_percent": 40.0,
        log + "max_clean_time_secs": 2.0,
        log + "max_compaction_delay_secs": 1.5,
        log + "deadthreadcount": 1,
        manager + "max_dirty_percent": 66.0,
        manager + "time_since_last_run_ms": 3500.0,
        manager + "uncleanable_partitions_count": 2,
        manager + "uncleanable_bytes": 4096,
        "quire_cleaner_passes_total": 3,
        "quire_cleaner_passes_failed_total": 1,
        "quire_cleaner_records_dropped_total": 7,
        "quire_cleaner_throttled_seconds_total": 0.5,
        "quire_cleaner_running": 2,
    }
    assert expected.items() <= found.items()
