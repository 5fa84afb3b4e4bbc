"""Figures of the listeners' TLS; Kafka has none of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.metrics import counter, counters, gauges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from broker.security.tls.reload import TlsReloads
    from runtime.metrics import Collector

_LABELS = ("listener",)


def tls_collector(reloads: TlsReloads) -> Collector:
    def collect() -> Iterator[Metric]:
        servers = [((server.listener,), server) for server in reloads.servers]
        yield gauges(
            "quire_tls_certificate_expires_timestamp_seconds",
            "When the listener's certificate ends, in seconds since the epoch.",
            _LABELS,
            [(labels, server.loaded.expires_ms / 1000) for labels, server in servers],
        )
        yield gauges(
            "quire_tls_handshakes_waiting",
            "Connections whose handshake is not done.",
            _LABELS,
            [(labels, server.waiting_count) for labels, server in servers],
        )
        yield counters(
            "quire_tls_handshakes",
            "Handshakes that were done.",
            _LABELS,
            [(labels, server.handshakes_count) for labels, server in servers],
        )
        yield counters(
            "quire_tls_refused",
            "Connections that were closed for their handshake, their certificate or its subject.",
            _LABELS,
            [(labels, server.failed_count) for labels, server in servers],
        )
        yield counter("quire_tls_reloads", "Certificates loaded anew.", reloads.reloads_count)
        yield counter(
            "quire_tls_reload_failures",
            "Changes of certificates that were not taken; the log says why.",
            reloads.failed_count,
        )

    return collect
