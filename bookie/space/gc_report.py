"""What the garbage collector has done, and what it is doing: for metrics, HTTP and people."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from wire.dataclass import dataclass


class Phase(Enum):
    IDLE = "idle"
    DELETING = "deleting ledgers"
    EXAMINING = "examining entry logs"
    MINOR = "minor compaction"
    MAJOR = "major compaction"
    LOCATIONS = "compacting entry locations"


@dataclass(slots=True)
class GcReport:
    """One round. `is_complete` is false if the bookie ended in the middle."""

    is_complete: bool = False
    deleted_ledgers: int = 0
    failed_deletes: int = 0
    #: Ledgers whose copies here were superfluous.
    emptied_ledgers: int = 0
    #: Why no ledger was looked at; "": they were.
    refusal: str = ""
    #: Logs that went because nothing in them was alive.
    removed_logs: int = 0
    #: Logs without a readable map that were read, and those of them that had to be kept.
    examined_logs: int = 0
    unreadable_logs: int = 0
    was_minor: bool = False
    was_major: bool = False
    compacted_logs: int = 0
    copied_entries: int = 0
    copied_bytes: int = 0
    #: Of entry logs, by deletion and by compaction; what deletion gives comes with the checkpoint.
    reclaimed_bytes: int = 0
    #: Logs that could not be compacted: something in them is damaged; no space for the survivors.
    damaged_logs: int = 0
    no_space_logs: int = 0
    #: The least that the survivors of one of those lacked.
    lacked_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class GcStatistics:
    """Counters since the start."""

    rounds: int = 0
    #: Times that no ledger could be looked at, because metadata was not to be trusted.
    refused_rounds: int = 0
    deleted_ledgers: int = 0
    failed_deletes: int = 0
    emptied_ledgers: int = 0
    minor_compactions: int = 0
    major_compactions: int = 0
    location_compactions: int = 0
    minor_seconds: float = 0.0
    major_seconds: float = 0.0
    seconds: float = 0.0
    compacted_logs: int = 0
    compacted_entries: int = 0
    compacted_bytes: int = 0
    reclaimed_by_compaction_bytes: int = 0
    #: Logs kept for damage, and rounds of compaction that found no space.
    compaction_errors: int = 0


@dataclass(slots=True)
class GcStatus:
    """BookKeeper's gc_details. Times are wall clock, milliseconds; None: never, or not planned."""

    phase: Phase
    is_minor_suspended: bool
    is_major_suspended: bool
    last_minor_ms: int | None
    last_major_ms: int | None
    last_location_ms: int | None
    next_minor_ms: int | None
    next_major_ms: int | None
    next_location_ms: int | None
    statistics: GcStatistics
    #: Entry logs' files, and what in them is of ledgers that are not deleted.
    total_log_bytes: int
    active_log_bytes: int
    reclaimed_by_deletion_bytes: int
    #: Complete logs by usage: below 10 %, below 20 %, ...
    usage_buckets: list[int] = field(default_factory=list)
    #: Logs that are kept because it cannot be told what is in them.
    unreadable_logs: int = 0
