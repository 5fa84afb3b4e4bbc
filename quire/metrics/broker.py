"""Figures of the Kafka side, by the names of the usual JMX exporter rules.

`kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t` is
`kafka_server_brokertopicmetrics_bytesin_total{topic="t"}`. What Kafka does not have is `quire_...`.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.dispatch import request_name
from broker.log.partition import State
from runtime.metrics import (
    SAMPLES_PER_TURN,
    counter,
    counters,
    sliced_counters,
    sliced_gauges,
    untyped,
)
from wire.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.dispatch import Dispatcher
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from runtime.metrics import Collector

PARTITION_LABELS = ("topic", "partition")


def request_collector(dispatcher: Dispatcher) -> Collector:
    names = {key: request_name(ApiKey(key)) for key in dispatcher.counts}

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


def partition_collector(logs: LogManager) -> Collector:
    def collect() -> Iterator[Metric | None]:
        for name, text, value_of in (
            ("size", "Bytes of the partition.", attrgetter("size_bytes")),
            ("logstartoffset", "First offset.", attrgetter("log_start_offset")),
            ("logendoffset", "Next offset.", attrgetter("log_end_offset")),
        ):
            samples = (((log.topic.name, str(log.partition)), value_of(log)) for log in logs.all())
            yield from sliced_gauges(f"kafka_log_log_{name}", text, PARTITION_LABELS, samples)
        yield from _sums(logs.all())
        yield from _guards(logs)

    return collect


def _guards(logs: LogManager) -> Iterator[Metric]:
    """Of what is bounded: the producers that are remembered, and the checks of batches."""
    room = logs.producers_room
    yield untyped(
        "kafka_server_replicamanager_produceridcount", "Producers remembered.", room.count
    )
    yield counter(
        "quire_producers_refused",
        "Batches of new producers that were refused, as too many are remembered.",
        room.refused_count,
    )
    checks = logs.checks
    counts = (
        (("inline",), checks.inline_count),
        (("delayed",), checks.delayed_count),
        (("worker",), checks.threaded_count),
    )
    text = "Batches checked, by where: on the loop at once, in a later turn, on a worker thread."
    yield counters("quire_batches_checked", text, ("where",), counts)
    locks = checks.lock_counts
    results = (
        (("accepted",), locks.accepted),
        (("conflict",), locks.conflicts),
        (("in_flight_conflict",), locks.in_flight_conflicts),
        (("ahead",), locks.ahead),
        (("malformed",), locks.malformed),
    )
    text = (
        "Records with optimistic locks, by result; of an in_flight_conflict the answer waited for"
        " what it conflicts with. Of malformed ones batches."
    )
    yield counters("quire_locks_records", text, ("result",), results)


def _sums(partitions: Iterator[PartitionLog]) -> Iterator[Metric | None]:
    """Of the partitions of each topic, and of all."""
    received: Counter[str] = Counter()
    batches: Counter[str] = Counter()
    states: Counter[State] = Counter()
    locks_bytes = 0
    for number, log in enumerate(partitions, 1):
        received[log.topic.name] += log.bytes_in
        batches[log.topic.name] += log.batches_in
        states[log.state] += 1
        if log.locks.table is not None:
            locks_bytes += log.locks.table.size_bytes
        if not number % SAMPLES_PER_TURN:
            yield None
    for name, text, values in (
        ("kafka_server_brokertopicmetrics_bytesin", "Record bytes appended.", received),
        ("quire_topic_batches_in", "Record batches appended.", batches),
    ):
        samples = (((topic,), n) for topic, n in values.items())
        yield from sliced_counters(name, text, ("topic",), samples)
    yield untyped("quire_locks_table_bytes", "Memory of all tables of locks.", locks_bytes)
    yield from _states(states, len(received))


def _states(states: Counter[State], topic_count: int) -> Iterator[Metric]:
    controller = "kafka_controller_kafkacontroller_"
    manager = "kafka_server_replicamanager_"
    yield untyped(controller + "globaltopiccount", "Topics.", topic_count)
    yield untyped(controller + "globalpartitioncount", "Partitions.", states.total())
    yield untyped(
        controller + "offlinepartitionscount",
        "Partitions that serve nobody.",
        states.total() - states[State.ONLINE],
    )
    yield untyped(manager + "partitioncount", "Partitions held.", states.total())
    yield untyped(manager + "leadercount", "Partitions led.", states[State.ONLINE])
