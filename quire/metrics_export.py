"""Which figures of which room are exported, and under which names.

Kafka's names are those of the usual JMX exporter rules (`kafka.server:type=BrokerTopicMetrics,
name=BytesInPerSec,topic=t` is `kafka_server_brokertopicmetrics_bytesin_total{topic="t"}`),
BookKeeper's those of its own Prometheus provider, so that dashboards made for them show us as
well. BookKeeper's counters have no `_total`, hence they are untyped here. What neither of them has
is called `quire_...`.

Each function gives a collector for `Metrics.register`. A collector reads attributes on the loop's
thread at scrape time; see runtime/metrics.py.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector

from broker.log.partition import State
from runtime.metrics import counter, counters, gauge, gauges, summary, untyped
from wire.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from bookie.bookie import Bookie
    from bookie.statistics import BookieStatistics
    from broker.dispatch import Dispatcher
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from runtime.metrics import Collector
    from runtime.real_disk import RealDisk

PARTITION_LABELS = ("topic", "partition")


def process_collector() -> Collector:
    """CPU, memory, open files and start time of this process (`process_...`)."""
    return ProcessCollector(registry=None).collect


def disk_collector(disk: RealDisk) -> Collector:
    def collect() -> Iterator[Metric]:
        now = disk.statistics()
        yield counters(
            "quire_disk_syncs",
            "Syncs made, by the thread that made them.",
            ("thread",),
            [
                (("loop",), now.syncs_inline),
                (("kernel",), now.syncs_kernel),
                (("worker",), now.syncs_threaded),
            ],
        )
        yield counter("quire_disk_sync_seconds", "Time spent in syncs.", now.sync_seconds)
        yield counter("quire_disk_sync_errors", "Files whose sync failed.", now.sync_errors)

    return collect


def bookie_collector(bookie: Bookie) -> Collector:
    def collect() -> Iterable[Metric]:
        now = bookie.statistics()
        yield from _journal(now)
        yield from _storage(now)

    return collect


def _journal(now: BookieStatistics) -> Iterator[Metric]:
    name = "bookie_journal_JOURNAL_"
    yield untyped(name + "SYNC_count", "Journal syncs.", now.journal_syncs)
    yield untyped(name + "ADD_ENTRY_count", "Journal records.", now.journal_records)
    yield untyped(name + "WRITE_BYTES", "Journal bytes written.", now.journal_written_bytes)
    yield untyped(name + "FLUSH_IN_MEM_ADD_count", "Journal groups.", now.journal_groups)
    yield gauge(
        "quire_bookie_journal_queued_bytes",
        "Bytes that wait for the journal.",
        now.journal_queued_bytes,
    )
    yield gauge("quire_bookie_held_adds", "Adds that wait for the write cache.", now.held_adds)
    yield gauge("quire_bookie_held_bytes", "Bytes of those adds.", now.held_bytes)
    yield untyped(
        "bookie_rejected_write_requests", "Adds refused for lack of room.", now.refused_adds
    )


def _storage(now: BookieStatistics) -> Iterator[Metric]:
    yield untyped("bookie_WRITE_BYTES", "Entry bytes moved to entry logs.", now.flushed_bytes)
    yield untyped("bookie_READ_BYTES", "Entry bytes read.", now.read_bytes)
    yield gauge("bookie_write_cache_size", "Bytes in the write cache.", now.write_cache_size_bytes)
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
    yield counter(
        "quire_bookie_entry_log_reads", "Entries read from entry logs.", now.read_log_entries
    )
    yield counter(
        "quire_bookie_read_waits", "Reads that had to wait for the disk.", now.read_misses
    )
    yield counter("quire_bookie_damaged_records", "Records damaged on disk.", now.damaged_records)
    yield summary("quire_bookie_flush_seconds", "Flushes.", now.flushes, now.flush_seconds)
    yield counter(
        "quire_bookie_flushed_entries", "Entries moved to entry logs.", now.flushed_entries
    )
    yield gauge("quire_bookie_entry_logs", "Entry logs.", now.entry_logs)
    yield gauge("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", "Bytes in entry logs.", now.entry_log_bytes)
    yield untyped("bookie_ledgers_count", "Ledgers.", now.ledgers)


def request_collector(dispatcher: Dispatcher) -> Collector:
    names = {key: _request_name(ApiKey(key)) for key in dispatcher.counts}

    def collect() -> Iterator[Metric]:
        counts = [((names[key],), pair) for key, pair in dispatcher.counts.items()]
        yield counters(
            "kafka_network_requestmetrics_requests",
            "Requests that were decoded.",
            ("request",),
            [(labels, pair[0]) for labels, pair in counts],
        )
        yield counters(
            "quire_request_failures",
            "Requests whose handler failed: a bug each.",
            ("request",),
            [(labels, pair[1]) for labels, pair in counts],
        )
        yield counter(
            "quire_bad_requests", "Requests that were malformed.", dispatcher.bad_requests_count
        )
        yield untyped(
            "kafka_server_socketservermetrics_connection_count",
            "Open connections.",
            len(dispatcher.connections),
        )
        for key, name in (
            (ApiKey.PRODUCE, "totalproducerequests"),
            (ApiKey.FETCH, "totalfetchrequests"),
        ):
            if key in dispatcher.counts:
                yield counter(
                    f"kafka_server_brokertopicmetrics_{name}",
                    "Requests of that kind.",
                    dispatcher.counts[key][0],
                )

    return collect


def _request_name(key: ApiKey) -> str:
    """As Kafka writes it in `request=`: LIST_OFFSETS is ListOffsets."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def partition_collector(logs: LogManager) -> Collector:
    def collect() -> Iterator[Metric]:
        partitions = list(logs.all())
        labels = [(log.topic.name, str(log.partition)) for log in partitions]
        for name, text, values in (
            ("size", "Bytes of the partition.", [log.size_bytes for log in partitions]),
            ("logstartoffset", "First offset.", [log.log_start_offset for log in partitions]),
            ("logendoffset", "Next offset.", [log.log_end_offset for log in partitions]),
        ):
            pairs = zip(labels, values, strict=True)
            yield gauges(f"kafka_log_log_{name}", text, PARTITION_LABELS, pairs)
        yield from _topics(partitions)
        yield from _states(partitions)

    return collect


def _topics(partitions: list[PartitionLog]) -> Iterator[Metric]:
    received: Counter[str] = Counter()
    batches: Counter[str] = Counter()
    for log in partitions:
        received[log.topic.name] += log.bytes_in
        batches[log.topic.name] += log.batches_in
    for name, text, values in (
        ("kafka_server_brokertopicmetrics_bytesin", "Record bytes appended.", received),
        ("quire_topic_batches_in", "Record batches appended.", batches),
    ):
        yield counters(name, text, ("topic",), [((topic,), n) for topic, n in values.items()])


def _states(partitions: list[PartitionLog]) -> Iterator[Metric]:
    states = Counter(log.state for log in partitions)
    topics = {log.topic.name for log in partitions}
    controller = "kafka_controller_kafkacontroller_"
    manager = "kafka_server_replicamanager_"
    yield untyped(controller + "globaltopiccount", "Topics.", len(topics))
    yield untyped(controller + "globalpartitioncount", "Partitions.", len(partitions))
    yield untyped(
        controller + "offlinepartitionscount",
        "Partitions that serve nobody.",
        len(partitions) - states[State.ONLINE],
    )
    yield untyped(manager + "partitioncount", "Partitions held.", len(partitions))
    yield untyped(manager + "leadercount", "Partitions led.", states[State.ONLINE])
