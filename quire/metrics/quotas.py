"""Figures of clients' quotas, by Kafka's names as the usual JMX exporter rules make them.

`kafka.server:type=Produce,user=u,client-id=c` with its attribute `byte-rate` is
`kafka_server_produce_byte_rate{user="u",client_id="c"}`. As in Kafka there is one for those who
share a quota, of clients that have one, and "" is who does not matter for it. Only the SHOWN_MAX
that were used last are shown of each kind: there may be thousands.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from runtime.metrics import counter, gauge, gauges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.quotas.meters import Meter, Meters
    from broker.quotas.quotas import ClientQuotas
    from broker.server import KafkaServer
    from runtime.metrics import Collector

SHOWN_MAX = 200
_LABELS = ("user", "client_id")


def quota_collector(quotas: ClientQuotas, server: KafkaServer) -> Collector:
    kinds = (
        ("produce_byte_rate", "Bytes a second of produce requests.", quotas.produce),
        ("fetch_byte_rate", "Bytes a second of fetched records.", quotas.fetch),
        ("request_request_time", "Percent of the processor's time.", quotas.request),
        ("controllermutation_mutation_rate", "Partitions a second.", quotas.mutation),
    )

    def collect() -> Iterator[Metric]:
        now = quotas.clock.monotonic()
        for name, text, meters in kinds:
            shown = _shown(meters)
            rates = [(labels, meter.rate.value(now)) for labels, meter in shown]
            yield gauges(f"kafka_server_{name}", text, _LABELS, rates)
            waits = [(labels, meter.throttle_seconds(now) * 1000) for labels, meter in shown]
            yield gauges(
                f"kafka_server_{name.partition('_')[0]}_throttle_time",
                "Milliseconds that throttled clients were told to wait, on average.",
                _LABELS,
                waits,
            )
        tokens = [
            (labels, meter.bucket.tokens(meter.limit, now))
            for labels, meter in _shown(quotas.mutation)
        ]
        yield gauges("kafka_server_controllermutation_tokens", "Partitions left.", _LABELS, tokens)
        yield from _addresses(quotas, now)
        yield counter(
            "quire_exempt_request_seconds",
            "Processor time of brokers' requests, while any client has a quota.",
            quotas.exempt_seconds,
        )
        yield counter(
            "quire_connections_throttled",
            "Connections closed, as their address has connected too often.",
            server.throttled_count,
        )
        yield from _connections(server)

    return collect


def _connections(server: KafkaServer) -> Iterator[Metric]:
    yield counter(
        "quire_connections_slowed",
        "Connections after which a listener rested, for max.connection.creation.rate.",
        server.slowed_count,
    )
    yield counter(
        "quire_connections_refused",
        "Connections closed at once, for max.connections.per.ip.",
        server.refused_count,
    )
    yield counter(
        "quire_connections_excess_closed",
        "Connections closed to make room for others, at max.connections.",
        server.excess_closed_count,
    )
    yield gauge(
        "quire_unread_answers_bytes",
        "Of answers that clients have not taken, where one leaves more than 64 KiB.",
        server.answers.total_bytes,
    )
    yield counter(
        "quire_unread_answers_closed",
        "Connections closed, as theirs was the most of too much that clients did not take.",
        server.answers.closed_count,
    )


def _shown(meters: Meters) -> list[tuple[tuple[str, str], Meter]]:
    return list(islice(meters.last_used(), SHOWN_MAX))


def _addresses(quotas: ClientQuotas, now: float) -> Iterator[Metric]:
    shown = list(islice(quotas.connection_meters(), SHOWN_MAX))
    name = "kafka_server_socket_server_metrics_connection_accept"
    rates = [((address,), meter.rate.value(now)) for address, meter in shown]
    yield gauges(f"{name}_rate", "Connections a second from the address.", ("ip",), rates)
    waits = [((address,), meter.throttle_seconds(now) * 1000) for address, meter in shown]
    yield gauges(
        f"{name}_throttle_time",
        "Milliseconds after which connections beyond the rate were closed, on average.",
        ("ip",),
        waits,
    )
