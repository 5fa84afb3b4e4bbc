"""Round-robin write sets and quorum coverage against their definitions."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.distribution import Schedule


@st.composite
def schedules(draw):
    ensemble_size = draw(st.integers(1, 6))
    write_quorum_size = draw(st.integers(1, ensemble_size))
    return Schedule(ensemble_size, write_quorum_size, draw(st.integers(1, write_quorum_size)))


def test_round_robin():
    schedule = Schedule(4, 2, 1)
    assert [schedule.write_set(e) for e in range(5)] == [(0, 1), (1, 2), (2, 3), (3, 0), (0, 1)]
    assert schedule.is_striped
    assert not Schedule(2, 2, 1).is_striped
    assert Schedule(3, 3, 2).negative_size == 2


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 2, 1), (2, 1, 2), (3, 2, 0)])
def test_impossible_quorums(sizes):
    with pytest.raises(ValueError, match="must fall"):
        Schedule(*sizes)


@given(schedules(), st.integers(0, 63))
def test_covered_means_no_ack_quorum_can_be_wholly_unknown(schedule, known_mask):
    """The TLA+ definition, spelled out: no Qa bookies of any write set all lack the property."""
    known = {i for i in range(schedule.ensemble_size) if known_mask >> i & 1}
    expected = all(
        set(possible_acks) & known
        for entry_id in range(schedule.ensemble_size)
        for possible_acks in combinations(schedule.write_set(entry_id), schedule.ack_quorum_size)
    )
    assert schedule.is_covered(known_mask) is expected
