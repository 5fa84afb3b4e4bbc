"""How long coordinators took to load partitions, by Kafka's names (group-coordinator-metrics,
transaction-coordinator-metrics) as the usual JMX exporter rules make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.metrics import untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.coordinator.load_times import LoadTimes
    from runtime.metrics import Collector


def load_times_collector(kind: str, times: LoadTimes) -> Collector:
    """`kind`: group or transaction. Not a number while none was loaded in the last minute."""

    def collect() -> Iterator[Metric]:
        for name, text, value in (
            ("max", "Longest load of the last minute, in ms.", times.max_ms()),
            ("avg", "Average load of the last minute, in ms.", times.average_ms()),
        ):
            name = f"kafka_server_{kind}coordinatormetrics_partition_load_time_{name}"
            yield untyped(name, text, value)

    return collect
