"""What a run of `quire locks bench` counted, and what it tells. Pure."""

from __future__ import annotations

import re
from dataclasses import field
from math import ceil
from typing import TYPE_CHECKING

from quire.tools.locks.audit_core import APPEND, WRITE
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wire.kafka.records.record import Record

_CONFLICT = re.compile(r"LOCK_CONFLICT position=\d+ conflict=(\d+) ")


def conflict_in(text: str | None) -> int | None:
    """The offset that a refusal names, up to which its sender has to apply; None: it was refused
    for something else, which no other try mends."""
    found = _CONFLICT.match(text or "")
    return int(found[1]) if found else None


def is_written(lock: bytes, records: Iterable[Record]) -> bool:
    return any(
        name in (WRITE, APPEND) and value == lock
        for record in records
        for name, value in record.headers
    )


@dataclass(slots=True)
class Tally:
    """`refused_falsely`: though nobody had written the lock from the try's position to the offset
    that the refusal named."""

    refused: int = 0
    refused_falsely: int = 0
    #: Of each record that was accepted and read back, in seconds from its submission.
    seconds: list[float] = field(default_factory=list)

    @property
    def attempts(self) -> int:
        return len(self.seconds) + self.refused

    def add(self, other: Tally) -> None:
        self.refused += other.refused
        self.refused_falsely += other.refused_falsely
        self.seconds += other.seconds

    def told(self, elapsed_s: float) -> dict[str, object]:
        """At least one record was accepted, in all of `elapsed_s`."""
        accepted = len(self.seconds)
        ordered = sorted(self.seconds)
        return {
            "accepted": accepted,
            "attempts": self.attempts,
            "refused": self.refused,
            "refused_falsely": self.refused_falsely,
            "refused_share": round(self.refused / self.attempts, 4),
            "attempts_per_commit": round(self.attempts / accepted, 3),
            "seconds": round(elapsed_s, 3),
            "accepted_per_second": round(accepted / elapsed_s, 1),
            "p50_ms": round(percentile(ordered, 0.5) * 1000, 3),
            "p99_ms": round(percentile(ordered, 0.99) * 1000, 3),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of these that at least this share of them does not exceed."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1]
