"""Which figures of which room are exported, and under which names.

Kafka's names are those of the usual JMX exporter rules, BookKeeper's those of its own Prometheus
provider, so that dashboards made for them show us as well. BookKeeper's counters have no `_total`,
hence they are untyped here. What neither of them has is called `quire_...`.

Each function `..._collector` gives a collector for `Metrics.register`: it reads attributes on the
loop's thread at scrape time (runtime/metrics.py), and no hot path calls a metric.
"""
