"""Metrics that clients pushed (KIP-714), by their names: `org.apache.kafka.producer.x.y` is
`kafka_client_producer_x_y`, with the client's id and its instance's beside its own labels.

Names and labels are what clients say; how many there are is bounded by broker/telemetry/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.metrics import SAMPLES_PER_TURN, counter, untyped, untyped_family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.telemetry.clients import TelemetryClients
    from runtime.metrics import Collector


def telemetry_collector(clients: TelemetryClients) -> Collector:
    def collect() -> Iterator[Metric | None]:
        for name, text, count in (
            ("unknown_subscription_request", "Of subscriptions that changed meanwhile.",
             clients.unknown_subscription_count),
            ("throttle", "Before their time.", clients.throttled_count),
            ("plugin_error", "Whose data was refused.", clients.refused_count),
            ("plugin_export", "Taken.", clients.pushed_count),
        ):  # fmt: skip
            yield counter(f"kafka_server_client_metrics_{name}_count", f"Pushes. {text}", count)
        yield untyped(
            "kafka_server_client_metrics_instance_count", "Clients remembered.", len(clients)
        )
        families: dict[str, Metric] = {}
        for number, (instance, name, labels, value) in enumerate(clients.series(), 1):
            family = families.get(name)
            if family is None:
                text = "A metric that clients pushed."
                family = families[name] = untyped_family(name, text)
            own = {"client_id": instance.client_id, "client_instance_id": str(instance.id)}
            family.add_sample(name, {**dict(labels), **own}, value)
            if not number % SAMPLES_PER_TURN:
                yield None
        yield from families.values()

    return collect
