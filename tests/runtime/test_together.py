"""Blocking functions in threads."""

import pytest

from runtime.together import side_by_side


def test_results_come_as_they_end():
    def first(stop):
        return "first"

    def waits(stop):
        return stop.wait(0.05)

    assert sorted(map(str, side_by_side([waits, first]))) == ["False", "first"]
    assert list(side_by_side([])) == []


def test_one_that_fails_stops_the_others():
    stopped = []

    def fails(stop):
        raise ValueError("it")

    def waits(stop):
        stopped.append(stop.wait(60))
        assert stop.is_set

    with pytest.raises(ValueError, match="it"):
        list(side_by_side([waits, fails]))
    assert stopped == [True]
