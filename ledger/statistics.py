"""What a ledger client counts, as metrics read it. Adds are counted per delivery, reads per run."""

from __future__ import annotations

from dataclasses import field
from typing import Protocol
from weakref import WeakValueDictionary

from runtime.histogram import LatencyHistogram
from wire.dataclass import dataclass


class Appending(Protocol):
    """A ledger's writer (ledger/writer.py), as far as its client counts and looks after it."""

    ledger_id: int

    @property
    def pending_count(self) -> int: ...

    def look_for_timeout(self, now: float, timeout_seconds: float) -> None: ...

    async def tell_lac(self) -> bool: ...


@dataclass(slots=True)
class OperationStatistics:
    """Of one kind of operation on ledgers: how long those took that succeeded."""

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    failures: int = 0


@dataclass(slots=True)
class LedgerStatistics:
    """Counters since the start."""

    #: Entries that were acknowledged by the ack quorum, and those that failed.
    adds: int = 0
    add_failures: int = 0
    #: Of the acknowledged, those that had fewer acks than the write quorum then (ADD_ENTRY_UR).
    adds_under_replicated: int = 0
    #: Writers that stopped because an entry took too long to reach its ack quorum.
    add_timeouts: int = 0
    ensemble_changes: int = 0
    #: Runs of entries, and bookies' answers that were no run.
    reads: int = 0
    read_failures: int = 0
    digest_mismatches: int = 0
    #: Replicas that were asked because another took too long (SPECULATIVE_READ_COUNT).
    speculative_reads: int = 0
    #: Long polls of the LAC that were sent.
    long_polls: int = 0
    create: OperationStatistics = field(default_factory=OperationStatistics)
    open: OperationStatistics = field(default_factory=OperationStatistics)
    recover: OperationStatistics = field(default_factory=OperationStatistics)
    delete: OperationStatistics = field(default_factory=OperationStatistics)
    #: Those that may still append, by `id`, in the order in which they were made. They may be very
    #: many: whoever looks at them does so in slices, over `valuerefs()`.
    writers: WeakValueDictionary[int, Appending] = field(default_factory=WeakValueDictionary)
