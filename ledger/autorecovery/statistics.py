"""What the auditor and the worker count, as metrics read it (ReplicationStats.java)."""

from __future__ import annotations

from dataclasses import field

from runtime.histogram import LatencyHistogram
from wire.dataclass import dataclass


@dataclass(slots=True)
class AuditorStatistics:
    """Counters since the start; what checks found is of the last one that was completed."""

    election_attempts: int = 0
    is_auditor: bool = False
    #: Marks that were written, and the bytes of these ledgers.
    ledgers_marked: int = 0
    marked_bytes: int = 0
    audits_delayed: int = 0
    delayed_audits_cancelled: int = 0
    ledgers_checked: int = 0
    fragments_checked: int = 0
    bookies_of_checked: int = 0
    ledgers_not_adhering: int = 0
    ledgers_softly_adhering: int = 0
    ledgers_late: int = 0
    ledgers_without_copy_of_an_entry: int = 0
    ledgers_below_ack_quorum: int = 0
    ledgers_below_write_quorum: int = 0
    #: Ledgers whose metadata cannot be read: nobody can say what they miss.
    ledgers_unreadable_metadata: int = 0
    audit: LatencyHistogram = field(default_factory=LatencyHistogram)
    ledger_check: LatencyHistogram = field(default_factory=LatencyHistogram)
    placement_check: LatencyHistogram = field(default_factory=LatencyHistogram)
    replicas_check: LatencyHistogram = field(default_factory=LatencyHistogram)


@dataclass(slots=True)
class WorkerStatistics:
    """Counters since the start."""

    ledgers_repaired: int = 0
    entries_written: int = 0
    bytes_written: int = 0
    entries_unreadable: int = 0
    locks_kept_of_failed: int = 0
    #: By the kind of failure (report.Reason's names).
    failures: dict[str, int] = field(default_factory=dict)
    rereplicate: LatencyHistogram = field(default_factory=LatencyHistogram)
    rereplicate_failures: int = 0
