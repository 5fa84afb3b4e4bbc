"""Offsets of a stream, and how a bound is spread over partitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_quire.stream_core import (
    are_fewer,
    from_offset,
    limited,
    part_key,
    rows_for_bytes,
    split_key,
    to_offset,
)

COUNTS = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1
)


@given(COUNTS, st.integers(1, 200))
def test_a_bound_is_kept_and_something_moves(counts, rows_max):
    start = {key: first for key, (first, _) in counts.items()}
    end = {key: first + more for key, (first, more) in counts.items()}
    found = limited(start, end, rows_max)
    assert found.keys() == end.keys()
    assert all(start[key] <= found[key] <= end[key] for key in end)
    waiting = [key for key in end if end[key] > start[key]]
    assert all(found[key] > start[key] for key in waiting), "none starves"
    moved = sum(found[key] - start[key] for key in end)
    wanted = max(rows_max, len(waiting))
    assert moved == min(wanted, sum(end[key] - start[key] for key in end))


def test_who_waits_for_more_gets_more():
    start, end = {"a": 0, "b": 0}, {"a": 900, "b": 100}
    assert limited(start, end, 100) == {"a": 90, "b": 10}


def test_offsets_are_text_and_back():
    parts = {part_key("1-2", 3): 7}
    assert from_offset(to_offset(parts)) == parts
    assert split_key(part_key("1-2", 3)) == ("1-2", 3)


@pytest.mark.parametrize("offset", [{}, {"v": 2, "parts": {}}, {"topic": {"0": 5}}], ids=str)
def test_other_sources_offsets_are_refused(offset):
    with pytest.raises(ValueError, match="is no offset of this source"):
        from_offset(offset)


def test_bytes_and_least_counts():
    assert rows_for_bytes(1000, 100.0) == 10
    assert rows_for_bytes(1, 100.0) == 1
    assert are_fewer({"a": 0}, {"a": 5}, 6)
    assert not are_fewer({"a": 0}, {"a": 5}, 5)
