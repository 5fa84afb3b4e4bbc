"""Runs that are cut."""

from broker.share.partition.runs import ACQUIRED, Run, Runs


def test_what_is_cut_remembers_how_large_it_was():
    """Else what is given less of with each attempt would be given less too soon."""
    runs = Runs(0)
    runs.append(Run(0, 9, ACQUIRED, 1))
    runs[0].member, runs[0].deadline_ms = "one", 7
    number = runs.carve(0, 3, 4)
    assert [(run.first, run.last) for run in runs] == [(0, 2), (3, 4), (5, 9)]
    assert number == 1
    assert {(run.span, run.member, run.deadline_ms) for run in runs} == {(10, "one", 7)}
