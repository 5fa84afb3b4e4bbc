"""What people may know of one partition's cleaning: the pass that runs, and the last one's outcome.

Plain attributes, written by who cleans (cleaner.py, cleaning.py) and read by metrics and admin
pages. Times are the wall clock's in milliseconds, -1 for never.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.log.compact.compaction_core import LedgerFacts
    from broker.log.compact.plan_core import Group, Plan
    from broker.log.life.ledger_info import LedgerInfo


class Phase(Enum):
    IDLE = "idle"
    MAPPING = "mapping"
    COPYING = "copying"


@dataclass(slots=True)
class Progress:
    """Of one pass. Sizes in bytes."""

    phase: Phase = Phase.IDLE
    #: Of the present phase: bytes of batches that were looked at, and what there is to look at.
    done_bytes: int = 0
    total_bytes: int = 0
    #: In the map of keys, and what it takes.
    keys: int = 0
    keys_max: int = 0
    #: What was read and written in both phases, so far.
    read_bytes: int = 0
    #: Of the groups that were written anew.
    groups_written: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_dropped: int = 0

    def begin(self, phase: Phase, total_bytes: int) -> None:
        self.read_bytes += self.done_bytes
        self.phase, self.done_bytes, self.total_bytes = phase, 0, total_bytes

    def note_group(self, group: Group, info: LedgerInfo, facts: LedgerFacts) -> None:
        """A group's ledger is written."""
        self.groups_written += 1
        self.bytes_before += group.size_bytes
        self.bytes_after += info.size_bytes
        self.records_dropped += facts.records_dropped


@dataclass(slots=True)
class CleaningState:
    """Of one partition as long as this broker holds it. `plan`: of the last look."""

    plan: Plan | None = None
    #: Of the pass that runs now; else None.
    running: Progress | None = None
    #: Of the last pass that came to its end.
    last: Progress | None = None
    last_start_ms: int = -1
    last_end_ms: int = -1
    passes: int = 0
    #: Why the last one that did not come to its end did not; empty after one that did.
    last_error: str = ""
    failures: int = 0
    is_uncleanable: bool = False
    #: Not tried again before then.
    retry_ms: int = -1
    #: Somebody wants a pass as soon as there is a place for it.
    is_asked: bool = False
