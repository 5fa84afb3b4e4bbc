"""Metrics: Prometheus text, read from `statistics()` objects when somebody asks.

No hot path calls a metric. A room counts in plain attributes and gives them out with
`statistics()`; a collector, registered by the composition, turns them into metric families at
scrape time, on the loop's thread, so that it may read anything without a lock.

    metrics = Metrics()
    metrics.register(lambda: [gauge("quire_connections", "Open connections.", server.connections)])
    await nursery.start(metrics.serve, "127.0.0.1", 9600)

Only the reading is done on the loop, with a checkpoint after each family; a collector of very many
samples (of each partition, say) gives None wherever others may have the loop, too. The text is made
on a worker thread. Served over runtime/http.py, alone (`Metrics.serve`) or among other pages
(`Metrics.respond`).
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from runtime import http
from runtime.http import HttpError, HttpRequest, HttpResponse
from runtime.logs import kv

if TYPE_CHECKING:
    from runtime.renewed_tls import RenewedTls

logger = logging.getLogger(__name__)

#: None: others may have the loop before it goes on. What it looks at may change meanwhile.
Collector = Callable[[], Iterable[Metric | None]]

#: Samples that are read before others have the loop: some 1 ms.
SAMPLES_PER_TURN = 300

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: One sample: the labels' values in the order of the family's label names, and the value.
Sample = tuple[Sequence[str], float]


def counter(name: str, text: str, value: float) -> Metric:
    """A family with one unlabelled counter; `name` without the `_total` that is added."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def untyped(name: str, text: str, value: float) -> Metric:
    """For names that others chose and that do not follow Prometheus' conventions for a counter
    (no `_total`): known dashboards find them, and no linter objects."""
    return UnknownMetricFamily(name, text, value=value)


def untyped_family(name: str, text: str) -> Metric:
    """As `untyped`, for samples that the caller adds."""
    return UnknownMetricFamily(name, text)


def counters(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def gauges(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def sliced_gauges(
    name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]
) -> Iterator[Metric | None]:
    """As `gauges`, for very many samples: they are read as they are needed."""
    return _sliced(GaugeMetricFamily(name, text, labels=labels), samples)


def sliced_counters(
    name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]
) -> Iterator[Metric | None]:
    return _sliced(CounterMetricFamily(name, text, labels=labels), samples)


def _sliced(
    family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]
) -> Iterator[Metric | None]:
    for number, (values, value) in enumerate(samples, 1):
        family.add_metric(values, value)
        if not number % SAMPLES_PER_TURN:
            yield None
    yield family


def summary(name: str, text: str, count: int, total: float) -> Metric:
    """How often and how much in all: `name_count` and `name_sum`."""
    return SummaryMetricFamily(name, text, count_value=count, sum_value=total)


def summary_family(
    name: str, text: str, quantiles: Iterable[tuple[float, float]], count: int, total: float
) -> Metric:
    """As `summary`, with quantiles: (share, value)."""
    family = Metric(name, text, "summary")
    for share, value in quantiles:
        family.add_sample(name, {"quantile": str(share)}, value)
    family.add_sample(f"{name}_count", {}, count)
    family.add_sample(f"{name}_sum", {}, total)
    return family


class _Collected:
    """Families that were read already, in the shape prometheus_client renders."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Metrics:
    """The collectors of one process, and the endpoint that serves them."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """`collector()` is called on the loop's thread at each scrape. It must be quick and must
        not give a family that another collector gives."""
        self._collectors.append(collector)

    async def render(self) -> bytes:
        """For tests: all families in Prometheus' text format, as `respond` gives them."""
        return await trio.to_thread.run_sync(_render, await self._collect(), False)

    async def _collect(self) -> list[Metric]:
        families: list[Metric] = []
        for collector in self._collectors:
            for family in collector():
                if family is not None:
                    families.append(family)
                await trio.lowlevel.checkpoint()
        return families

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """All families as an answer to a scraper, compressed if it can take that. HttpError 500
        if a collector failed: what it looks at goes on."""
        try:
            families = await self._collect()
        except Exception as error:  # a collector must not take down what it looks at
            logger.exception("metrics failed", kv(error=repr(error)))
            raise HttpError(500, "a collector failed; see the log") from error
        is_compressed = _accepts_gzip(request.headers.get("accept-encoding", ""))
        body = await trio.to_thread.run_sync(_render, families, is_compressed)
        headers = [("Content-Encoding", "gzip")] if is_compressed else []
        return HttpResponse(200, body, CONTENT_TYPE, headers)

    async def serve(
        self,
        host: str,
        port: int,
        check: Callable[[HttpRequest], None] = lambda request: None,
        tls: RenewedTls | None = None,
        *,
        task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves `/metrics` and `/health` only, until cancelled; `started` with the address that
        is really bound. OSError if it cannot be. `check`: raises HttpError for who may not have
        the metrics. `tls`: https."""
        handle = partial(self._handle, check)
        await http.serve(handle, host, port, tls=tls, task_status=task_status)

    async def _handle(
        self, check: Callable[[HttpRequest], None], request: HttpRequest
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "GET or HEAD")
        if request.path == "/health":
            return http.text_response("ok\n")
        if request.path == "/metrics":
            check(request)
            return await self.respond(request)
        raise HttpError(404, "/metrics or /health")


def _render(families: list[Metric], is_compressed: bool) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    text = generate_latest(registry)
    # Hundreds of thousands of objects are let go of here, and not by the loop's thread at once.
    while families:
        families.pop()
    return gzip.compress(text, compresslevel=1, mtime=0) if is_compressed else text


def _accepts_gzip(accepted: str) -> bool:
    return any(coding.strip() == "gzip" for coding in accepted.lower().split(","))
