"""What `quire locks bench` counts, and how it reads a conflict."""

import pytest

from quire.tools.locks.bench_core import Tally, conflict_in, is_written, percentile
from wire.kafka.records.record import Record


def test_only_a_conflict_names_an_offset_to_read_to():
    assert conflict_in("LOCK_CONFLICT position=3 conflict=17 lock=conflict=9 ") == 17
    assert conflict_in("LOCK_CONFLICT position=3 conflict=-1 lock=x") is None
    assert conflict_in("POSITION_AHEAD position=3 end=2") is None
    assert conflict_in("LOCK_HEADERS record 0 has LOCK_CONFLICT position=3 conflict=17 ") is None
    assert conflict_in(None) is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("quire.lock.write", b"x"), True),
        (("quire.lock.append", b"x"), True),
        (("quire.lock.read", b"x"), False),
        (("quire.lock.write", b"y"), False),
        (("other", b"x"), False),
    ],
)
def test_who_writes_a_lock(header, expected):
    records = [Record(0, 0, None, b"v"), Record(1, 0, None, b"v", [("a", None), header])]
    assert is_written(b"x", records) is expected


def test_percentiles_are_of_what_was_measured():
    ordered = [float(n) for n in range(1, 101)]
    assert (percentile(ordered, 0.5), percentile(ordered, 0.99)) == (50, 99)
    assert (percentile([7.0], 0.5), percentile([7.0], 0.99), percentile([7.0], 0)) == (7, 7, 7)
    assert percentile([1.0, 2.0], 0.99) == 2


def test_what_producers_counted_is_told_together():
    whole = Tally()
    whole.add(Tally(3, 1, [0.001, 0.002]))
    whole.add(Tally(1, 0, [0.004, 0.003]))
    assert whole.told(2.0) == {
        "accepted": 4,
        "attempts": 8,
        "refused": 4,
        "refused_falsely": 1,
        "refused_share": 0.5,
        "attempts_per_commit": 2.0,
        "seconds": 2.0,
        "accepted_per_second": 2.0,
        "p50_ms": 2.0,
        "p99_ms": 4.0,
    }
