"""How latency histograms are exported: as BookKeeper's summaries, and as Prometheus histograms.

BookKeeper's provider gives quantiles in milliseconds, of what happened lately, by whether it
succeeded. Ours are of the last minute or two, whatever the scrape interval, and upper bounds: of
the bucket that a quantile lies in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily, Metric

from runtime.histogram import BOUNDS_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runtime.env import Clock
    from runtime.histogram import LatencyHistogram

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
WINDOW_SECONDS = 60.0
SUCCESS: Mapping[str, str] = {"success": "true"}
FAILURE: Mapping[str, str] = {"success": "false"}


class RecentLatencies:
    """What was recorded in the present window and the one before, by metric name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: For each name: when the present window began, the counts then, and a window earlier.
        self._windows: dict[str, tuple[float, list[int], list[int]]] = {}

    def counts(self, name: str, histogram: LatencyHistogram) -> list[int]:
        """By bucket, of the last one or two windows."""
        now = self._clock.monotonic()
        present = list(histogram.counts)
        none = [0] * len(present)
        began, newer, older = self._windows.get(name, (now, none, none))
        if now - began >= WINDOW_SECONDS:
            began, newer, older = now, present, newer
        self._windows[name] = (began, newer, older)
        return [count - before for count, before in zip(present, older, strict=True)]


def quantile(counts: Sequence[int], share: float, seconds_max: float) -> float:
    """An upper bound in seconds of the fastest `share` of all; NaN if there was nothing."""
    wanted = share * sum(counts)
    if not wanted:
        return math.nan
    seen = 0
    for bound, count in zip(BOUNDS_SECONDS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return min(bound, seconds_max)
    return seconds_max


def java_summary(
    name: str,
    text: str,
    histogram: LatencyHistogram,
    recent: RecentLatencies,
    *,
    count: float | None = None,
    failures: float = 0,
) -> Metric:
    """A timer as BookKeeper exports it. `count`: how many succeeded, if not all of them are in the
    histogram; `failures`: how many did not."""
    family = Metric(name, text, "summary")
    counts = recent.counts(name, histogram)
    for share in QUANTILES:
        milliseconds = quantile(counts, share, histogram.max_seconds) * 1000
        family.add_sample(name, {**SUCCESS, "quantile": str(share)}, milliseconds)
    family.add_sample(f"{name}_count", {**FAILURE}, failures)
    family.add_sample(f"{name}_sum", {**FAILURE}, 0)
    family.add_sample(f"{name}_count", {**SUCCESS}, histogram.count if count is None else count)
    family.add_sample(f"{name}_sum", {**SUCCESS}, histogram.sum_seconds * 1000)
    return family


def java_counts(name: str, text: str, count: float, total: float, failures: float = 0) -> Metric:
    """A summary of BookKeeper's of which no quantiles are known."""
    family = Metric(name, text, "summary")
    family.add_sample(f"{name}_count", {**FAILURE}, failures)
    family.add_sample(f"{name}_sum", {**FAILURE}, 0)
    family.add_sample(f"{name}_count", {**SUCCESS}, count)
    family.add_sample(f"{name}_sum", {**SUCCESS}, total)
    return family


def histogram_family(name: str, text: str, histogram: LatencyHistogram) -> Metric:
    """A Prometheus histogram in seconds, for quantiles over any time and many servers."""
    buckets, seen = [], 0
    for bound, count in zip((*BOUNDS_SECONDS, math.inf), histogram.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound == math.inf else str(bound), float(seen)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum_seconds)
