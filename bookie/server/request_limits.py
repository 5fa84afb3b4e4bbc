"""How many requests a bookie has under way at most, and how many it had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProcessorSettings:
    """BookKeeper's names: maxAddsInProgressLimit and maxReadsInProgressLimit (0: no limit but the
    bookie's own), maxPendingReadRequestsPerThread, maxBatchReadSize."""

    adds_in_progress_max: int = 0
    waiting_reads_max: int = 10_000
    long_polls_max: int = 10_000
    batch_read_size_max_bytes: int = 5 << 20


@dataclass(slots=True)
class RequestCounts:
    """Requests by outcome, for metrics; and the adds that have none yet."""

    adds_in_progress: int = 0
    adds: int = 0
    adds_failed: int = 0
    reads: int = 0
    reads_failed: int = 0
    fences: int = 0
    long_polls: int = 0
    refused: int = 0
