"""What an audit finds, and the pieces that it is cut into. Pure.

A *finding* is a run of consecutive entries of one ledger that have the same fault on one bookie:

    missing   the bookie answers, and does not have the entry, or not even the ledger
    damaged   its bytes are not those that were sealed, or are another entry's
    differs   whole and sealed, but with another payload than the first bookie's copy
    records   the copies agree, and hold no record batches that can be read
    silent    the bookie gave no answer: nothing is known of its copies
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.ledger_check import MissingCopies
    from pyspark_quire.connection import Where
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

MISSING, DAMAGED, DIFFERS, RECORDS, SILENT = (
    "missing", "damaged", "differs", "records", "silent",
)  # fmt: skip
PIECES_MAX = 1_000_000
#: What a bookie says of a copy that is not there; all other answers but a good one are no answer.
_NOT_THERE = frozenset({"ENOENTRY", "ENOLEDGER"})


@dataclass(slots=True, frozen=True, order=True)
class Finding:
    """`owner`: topic and partition, or the application that the ledger's metadata name."""

    ledger: int
    first_entry: int
    last_entry: int
    bookie: str
    verdict: str
    owner: str
    reason: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True, frozen=True)
class AuditPiece:
    """Some entries of one ledger, on all their bookies. `metadata`: as it is stored, with its
    password. `addresses`: of the bookies that were registered when the audit began."""

    where: Where
    ledger: int
    owner: str
    metadata: bytes
    first_entry: int
    last_entry: int
    addresses: tuple[tuple[str, str, int], ...]
    #: Whether its entries are a partition's, whose content is known.
    is_ours: bool
    bytes_per_second: int = 0

    @property
    def entry_count(self) -> int:
        return self.last_entry - self.first_entry + 1


@dataclass(slots=True, frozen=True)
class Audited:
    """Of one piece: what it looked at, and what it found."""

    entries: int
    copies: int
    bytes: int
    findings: tuple[Finding, ...]


class Run(NamedTuple):
    """Consecutive entries."""

    first: int
    last: int


def cut(last_entry: int, size_bytes: int, piece_bytes: int) -> list[Run]:
    """A ledger's entries in runs of about so many bytes of payload; none of an empty ledger.
    ValueError for more than PIECES_MAX: no ledger has so many bytes."""
    count = last_entry + 1
    if count <= 0:
        return []
    parts = min(max(-(-size_bytes // piece_bytes), 1), count)
    if parts > PIECES_MAX:
        raise ValueError(f"its metadata tell of {size_bytes} bytes in {count} entries")
    borders = [count * number // parts for number in range(parts + 1)]
    return [Run(start, end - 1) for start, end in pairwise(borders)]


def of_missing(piece: AuditPiece, found: Iterable[MissingCopies]) -> list[Finding]:
    """What the checker found of copies that are not good."""
    return [
        Finding(piece.ledger, first, last, bookie, verdict_of(reason), piece.owner, reason)
        for bookie, first, last, reason in found
    ]


def verdict_of(reason: str) -> str:
    if reason == "DAMAGED":
        return DAMAGED
    return MISSING if reason in _NOT_THERE else SILENT


def is_expected(finding: Finding, metadata: LedgerMetadata | None) -> bool:
    """Whether the bookie is to have some of these entries by what the metadata say now; None: they
    cannot be read, and nobody knows better."""
    if metadata is None:
        return True
    end = None
    for first, ensemble in reversed(metadata.segments):
        is_later = first > finding.last_entry
        is_before = end is not None and end <= finding.first_entry
        if not is_later and not is_before and finding.bookie in ensemble:
            return True
        end = first
    return False


def of_entries(
    piece: AuditPiece, verdict: str, entries: Iterable[tuple[int, str, str]]
) -> list[Finding]:
    """Of (entry, bookie, reason): in runs by bookie and reason."""
    findings: list[Finding] = []
    by_bookie: dict[tuple[str, str], list[int]] = {}
    for entry, bookie, reason in sorted(entries):
        by_bookie.setdefault((bookie, reason), []).append(entry)
    for (bookie, reason), numbers in by_bookie.items():
        findings += [
            Finding(piece.ledger, first, last, bookie, verdict, piece.owner, reason)
            for first, last in _runs(numbers)
        ]
    return findings


def _runs(numbers: Sequence[int]) -> list[Run]:
    runs: list[Run] = []
    for number in numbers:
        if runs and runs[-1].last == number - 1:
            runs[-1] = Run(runs[-1].first, number)
        else:
            runs.append(Run(number, number))
    return runs


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """In order; runs that a border between pieces cut are one again."""
    found: dict[tuple[int, str, str, str], list[Finding]] = {}
    for each in sorted(findings):
        runs = found.setdefault((each.ledger, each.bookie, each.verdict, each.reason), [])
        if runs and runs[-1].last_entry + 1 == each.first_entry:
            runs[-1] = replace(runs[-1], last_entry=each.last_entry)
        else:
            runs.append(each)
    return sorted(each for runs in found.values() for each in runs)
