"""What an audit finds: runs, what a bookie's answer means, and how ledgers are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ledger_check import MissingCopies
from pyspark_quire.connection import Where
from spark_jobs.audit_findings import (
    DAMAGED,
    DIFFERS,
    MISSING,
    SILENT,
    AuditPiece,
    Finding,
    cut,
    is_expected,
    joined,
    of_entries,
    of_missing,
    verdict_of,
)
from wire.bookkeeper.ledger_metadata import LedgerMetadata
from wire.bookkeeper.status import Status

PIECE = AuditPiece(Where("zk+null://z:1/l"), 7, "t-0", b"", 0, 99, (), is_ours=True)


@pytest.mark.parametrize("status", Status)
def test_only_who_answers_has_a_copy_missing(status):
    """Silence, and whatever else a bookie says, is no word about a copy."""
    expected = MISSING if status in (Status.ENOENTRY, Status.ENOLEDGER) else SILENT
    assert verdict_of(status.name) == expected
    assert verdict_of("DAMAGED") == DAMAGED


@given(st.integers(-1, 2000), st.integers(0, 10_000), st.integers(1, 3000))
def test_pieces_have_each_entry_once(last_entry, size_bytes, piece_bytes):
    runs = cut(last_entry, size_bytes, piece_bytes)
    entries = [entry for run in runs for entry in range(run.first, run.last + 1)]
    assert entries == list(range(last_entry + 1))
    assert all(run.first <= run.last for run in runs)
    assert len(runs) == min(max(-(-size_bytes // piece_bytes), 1), last_entry + 1)


def test_findings_are_runs():
    entries = [(entry, "b1", "other") for entry in (3, 1, 2, 7)] + [(2, "b2", "other")]
    found = of_entries(PIECE, DIFFERS, entries)
    assert [(f.bookie, f.first_entry, f.last_entry) for f in sorted(found)] == [
        ("b1", 1, 3), ("b2", 2, 2), ("b1", 7, 7),
    ]  # fmt: skip
    [one] = of_missing(PIECE, [MissingCopies("b1", 4, 9, "ENOENTRY")])
    assert one == Finding(7, 4, 9, "b1", MISSING, "t-0", "ENOENTRY")


@given(st.sets(st.tuples(st.integers(0, 30), st.sampled_from("ab")), max_size=40),
       st.sets(st.integers(1, 30), max_size=5))  # fmt: skip
def test_a_border_between_pieces_cuts_no_run(bad, borders):
    """As one piece would have found them."""
    whole = of_entries(PIECE, DIFFERS, [(entry, bookie, "r") for entry, bookie in bad])
    edges = [0, *sorted(borders), 31]
    parts = [
        finding
        for low, high in pairwise(edges)
        for finding in of_entries(
            PIECE, DIFFERS, [(e, b, "r") for e, b in bad if low <= e < high]
        )
    ]  # fmt: skip
    assert joined(parts) == sorted(whole)


def test_who_is_to_have_what_by_the_metadata_now():
    now = LedgerMetadata(2, 2, 2, ((0, ("a", "b")), (10, ("c", "b"))))

    def expects(bookie, first, last):
        return is_expected(Finding(1, first, last, bookie, MISSING, "t-0"), now)

    assert expects("a", 0, 4)
    assert expects("a", 9, 12)
    assert not expects("a", 10, 12)
    assert not expects("c", 3, 9)
    assert expects("c", 3, 10)
    assert expects("b", 0, 0)
    assert expects("b", 99, 99)
    assert is_expected(Finding(1, 3, 9, "c", MISSING, "t-0"), None), "nobody knows better"
