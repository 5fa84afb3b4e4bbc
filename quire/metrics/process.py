"""Figures of the process, of its loop and of its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector

from quire.metrics.latency import histogram_family
from runtime.metrics import counter, counters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from runtime.loop_watch import LoopWatch
    from runtime.metrics import Collector
    from runtime.real_disk import RealDisk


def process_collector() -> Collector:
    """CPU, memory, open files and start time of this process (`process_...`)."""
    return ProcessCollector(registry=None).collect


def loop_collector(watch: LoopWatch) -> Collector:
    def collect() -> Iterator[Metric]:
        yield histogram_family(
            "quire_loop_turn_seconds",
            "How long the loop was held in one piece: a step of a task, a burst of input.",
            watch.histogram,
        )
        yield histogram_family(
            "quire_loop_long_turn_cpu_seconds",
            "Of turns above 5 ms: what the loop's thread had of the processor, at most.",
            watch.own_histogram,
        )

    return collect


def disk_collector(disk: RealDisk) -> Collector:
    def collect() -> Iterator[Metric]:
        now = disk.statistics()
        yield counters(
            "quire_disk_syncs",
            "Syncs made, by the thread that made them.",
            ("thread",),
            [
                (("loop",), now.syncs_inline),
                (("kernel",), now.syncs_kernel),
                (("worker",), now.syncs_threaded),
            ],
        )
        yield counter("quire_disk_sync_seconds", "Time spent in syncs.", now.sync_seconds)
        yield counter("quire_disk_sync_errors", "Files whose sync failed.", now.sync_errors)

    return collect
