"""Ledgers that were found missing, in a table for each folder of the metadata."""

from hypothesis import given
from hypothesis import strategies as st

from joined.absent_ledgers import AbsentLedgers
from ledger.ledger_walk import FOLDER_SIZE

LEDGERS = st.sampled_from([0, 1, 9_999, 10_000, 10_001, 70_000_000, 2**40, 2**63 - 1])


@given(st.lists(st.tuples(st.booleans(), LEDGERS)))
def test_it_is_a_table_of_ledgers_and_times(steps):
    absent, expected, last = AbsentLedgers(), {}, 0.0
    for number, (is_added, ledger_id) in enumerate(steps):
        if is_added:
            last = float(number)
            absent.add(ledger_id, last)
            expected[ledger_id] = last
        else:
            absent.discard(ledger_id)
            expected.pop(ledger_id, None)
        assert bool(absent) == bool(expected)
        assert absent.last == last
    portions = dict(absent.portions())
    assert all(portions.values())
    assert {each // FOLDER_SIZE for each in expected} == set(portions)
    for number, portion in portions.items():
        assert {ledger_id // FOLDER_SIZE for ledger_id, _ in portion} == {number}
    assert dict(pair for portion in portions.values() for pair in portion) == expected


def test_what_changes_during_a_walk():
    absent = AbsentLedgers()
    for ledger_id in (1, 2, 10_000, 20_000):
        absent.add(ledger_id, 1.0)
    seen = []
    for number, portion in absent.portions():
        seen.append(number)
        for ledger_id, _ in portion:
            absent.discard(ledger_id)
        absent.discard(10_000)
        absent.add(30_000, 2.0)
    assert seen == [0, 2]
    assert [number for number, _ in absent.portions()] == [3]
