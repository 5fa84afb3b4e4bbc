"""Metrics: Prometheus text, read from `statistics()` objects when somebody asks.

No hot path calls a metric. A room counts in plain attributes and gives them out with
`statistics()`; a collector, registered by the composition, turns them into metric families at
scrape time, on the loop's thread, so that it may read anything without a lock.

    metrics = Metrics()
    metrics.register(lambda: [gauge("quire_connections", "Open connections.", server.connections)])
    await nursery.start(metrics.serve, "127.0.0.1", 9600)

Only the reading is done on the loop, with a checkpoint between collectors; the text is made on a
worker thread. `serve` speaks just enough HTTP/1.1 for a scraper: GET and HEAD of `/metrics` (and
`/health`, which says `ok` while the loop turns), one request per connection.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterable, Sequence

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

from runtime.logs import kv

logger = logging.getLogger(__name__)

Collector = Callable[[], Iterable[Metric]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SIZE_MAX_BYTES = 16 * 1024
REQUEST_TIMEOUT_SECONDS = 10.0
CONNECTIONS_MAX = 16

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


def summary(name: str, text: str, count: int, total: float) -> Metric:
    """How often and how much in all: `name_count` and `name_sum`."""
    return SummaryMetricFamily(name, text, count_value=count, sum_value=total)


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
        """All families in Prometheus' text format."""
        families: list[Metric] = []
        for collector in self._collectors:
            families.extend(collector())
            await trio.lowlevel.checkpoint()
        return await trio.to_thread.run_sync(_render, families)

    async def serve(
        self,
        host: str,
        port: int,
        *,
        task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled; `started` with the address that is really bound. OSError if it
        cannot be."""
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=CONNECTIONS_MAX)
        address = listeners[0].socket.getsockname()
        limiter = trio.CapacityLimiter(CONNECTIONS_MAX)

        async def handle(stream: trio.SocketStream) -> None:
            async with limiter:
                await self._handle(stream)

        task_status.started((address[0], address[1]))
        await trio.serve_listeners(handle, listeners)

    async def _handle(self, stream: trio.SocketStream) -> None:
        try:
            with trio.move_on_after(REQUEST_TIMEOUT_SECONDS):
                head = await _read_head(stream)
                if head is not None:
                    await stream.send_all(await self._respond(head))
                    await stream.send_eof()
                    # Closing with unread input would reset the connection under the response.
                    await stream.receive_some(REQUEST_SIZE_MAX_BYTES)
        except trio.BrokenResourceError:
            logger.debug("scraper left")

    async def _respond(self, head: bytes) -> bytes:
        request, _, fields = head.decode("latin-1").partition("\r\n")
        parts = request.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _response("400 Bad Request", b"not an HTTP/1 request\n")
        method, target, _version = parts
        if method not in ("GET", "HEAD"):
            return _response(
                "405 Method Not Allowed", b"GET or HEAD\n", extra="Allow: GET, HEAD\r\n"
            )
        path = target.partition("?")[0]
        extra = ""
        if path == "/health":
            body = b"ok\n"
        elif path == "/metrics":
            body = await self._render_or_log()
            if not body:
                return _response("500 Internal Server Error", b"a collector failed; see the log\n")
            if _accepts_gzip(fields):
                body = gzip.compress(body, compresslevel=1, mtime=0)
                extra = "Content-Encoding: gzip\r\n"
        else:
            return _response("404 Not Found", b"/metrics or /health\n")
        return _response("200 OK", body, extra=extra, head_only=method == "HEAD")

    async def _render_or_log(self) -> bytes:
        """The metrics, or nothing if a collector failed."""
        try:
            return await self.render()
        except Exception as error:  # a collector must not take down what it looks at
            logger.exception("metrics failed", kv(error=repr(error)))
            return b""


def _render(families: list[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)


async def _read_head(stream: trio.SocketStream) -> bytes | None:
    """The request up to its empty line; None if the peer closed or sent more than the limit."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > REQUEST_SIZE_MAX_BYTES:
            return None
        received = await stream.receive_some(REQUEST_SIZE_MAX_BYTES)
        if not received:
            return None
        data += received
    return bytes(data[:end])


def _accepts_gzip(fields: str) -> bool:
    for line in fields.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept-encoding":
            return any(coding.strip() == "gzip" for coding in value.lower().split(","))
    return False


def _response(status: str, body: bytes, *, extra: str = "", head_only: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)
