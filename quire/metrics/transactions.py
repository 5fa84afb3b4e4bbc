"""Figures of transactions, by Kafka's names (transaction-coordinator-metrics,
TransactionMarkerChannelManager, AddPartitionsToTxnManager, ReplicaManager, Partition) as the usual
JMX exporter rules make them; `quire_...` is what Kafka does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.metrics.coordinators import load_times_collector
from quire.metrics.latency import RecentLatencies, quantile
from runtime.metrics import (
    SAMPLES_PER_TURN,
    counter,
    gauge,
    sliced_gauges,
    summary_family,
    untyped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.log.manager import LogManager
    from broker.node.parts import BrokerParts
    from broker.transactions.coordinator import TransactionCoordinator
    from broker.transactions.verifier import CoordinatorVerifier
    from runtime.env import Clock
    from runtime.metrics import Collector, Metrics

#: Of Kafka's histograms.
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
#: Kafka's ProducerStateManager.LATE_TRANSACTION_BUFFER_MS.
LATE_BUFFER_MS = 300_000


def coordinator_collector(coordinator: TransactionCoordinator) -> Collector:
    def collect() -> Iterator[Metric]:
        now = coordinator.statistics()
        for name, text, key in (
            (
                "unknowndestinationqueuesize",
                "Transactions whose markers wait for a partition's leader.",
                "markers_without_leader",
            ),
            (
                "logappendretryqueuesize",
                "Transactions that are complete, and whose record of that was refused.",
                "completions_refused",
            ),
        ):
            name = f"kafka_coordinator_transaction_transactionmarkerchannelmanager_{name}"
            yield untyped(name, text, now[key])
        for name, text, key in (
            ("transactional_ids", "Transactional ids of this broker.", "transactional_ids"),
            ("markers_parked", "Transactions whose markers will be sent again.", "markers_parked"),
            ("coordinator_partitions", "Partitions that are coordinated.", "partitions_active"),
            ("coordinator_loading", "Partitions that are being loaded.", "partitions_loading"),
            ("coordinator_pending_bytes", "Records that wait for their acks.", "pending_bytes"),
        ):
            yield gauge(f"quire_transactions_{name}", text, now[key])

    return collect


def verification_collector(verifier: CoordinatorVerifier, clock: Clock) -> Collector:
    recent = RecentLatencies(clock)

    def collect() -> Iterator[Metric]:
        yield counter(
            "kafka_server_addpartitionstotxnmanager_verificationfailurerate",
            "Partitions that a coordinator did not let into a transaction.",
            verifier.failure_count,
        )
        times = verifier.times
        counts = recent.counts("", times)
        name = "kafka_server_addpartitionstotxnmanager_verificationtimems"
        shares = [(share, quantile(counts, share, times.max_seconds) * 1000) for share in QUANTILES]
        text = "How long coordinators took to answer, in ms; quantiles of the last minute or two."
        yield summary_family(name, text, shares, times.count, times.sum_seconds * 1000)

    return collect


def open_transactions_collector(logs: LogManager, clock: Clock, timeout_max_ms: int) -> Collector:
    """`timeout_max_ms`: transaction.max.timeout.ms."""

    def collect() -> Iterator[Metric | None]:
        late_from_ms = clock.time_ms() - timeout_max_ms - LATE_BUFFER_MS
        late = 0
        for number, log in enumerate(logs.all(), 1):
            append_ms = log.producers.oldest_transaction_append_ms
            late += append_ms is not None and append_ms < late_from_ms
            if not number % SAMPLES_PER_TURN:
                yield None
        yield untyped(
            "kafka_server_replicamanager_partitionswithlatetransactionscount",
            "Partitions with a transaction that should have been aborted long ago.",
            late,
        )
        yield from sliced_gauges(
            "kafka_cluster_partition_laststableoffsetlag",
            "Offsets that readers of committed records do not see yet.",
            ("topic", "partition"),
            (
                (
                    (log.topic.name, str(log.partition)),
                    log.high_watermark - log.last_stable_offset,
                )
                for log in logs.all()
            ),
        )

    return collect


def register_transactions(metrics: Metrics, broker: BrokerParts, clock: Clock) -> None:
    """All of the above of a broker."""
    transactions = broker.transactions
    assert transactions is not None, "the broker was started"
    metrics.register(load_times_collector("transaction", transactions.coordinator.load_times))
    metrics.register(coordinator_collector(transactions.coordinator))
    metrics.register(verification_collector(transactions.verifier, clock))
    timeout_max_ms = broker.broker.transaction_max_timeout_ms
    metrics.register(open_transactions_collector(broker.logs, clock, timeout_max_ms))
