"""How often the poller looks before it sleeps: what the looks before came to."""

from runtime.poller import (
    LARGE_BURST_UNITS,
    LOOKS_MAX,
    LOOKS_MIN,
    SLEEPS_UNTIL_TRIED,
    Looks,
)


def test_all_looks_at_first_and_after_a_single_sleep():
    looks = Looks()
    assert looks.limit == LOOKS_MAX
    looks.in_vain()
    assert looks.limit == LOOKS_MAX


def test_sleeps_in_a_row_make_them_few_but_they_are_tried_again():
    looks = Looks()
    limits = []
    for _ in range(3 * SLEEPS_UNTIL_TRIED):
        looks.in_vain()
        limits.append(looks.limit)
    assert min(limits) == LOOKS_MIN
    assert [number for number, limit in enumerate(limits, 1) if limit == LOOKS_MAX] == [
        1, SLEEPS_UNTIL_TRIED, 2 * SLEEPS_UNTIL_TRIED, 3 * SLEEPS_UNTIL_TRIED,
    ]  # fmt: skip
    assert sum(limits) < SLEEPS_UNTIL_TRIED * LOOKS_MAX


def test_what_is_found_early_is_waited_for_no_longer_than_that():
    looks = Looks()
    for _ in range(40):
        looks.found(9)
    assert 18 <= looks.limit <= 24
    for _ in range(40):
        looks.found(1)
    assert LOOKS_MIN <= looks.limit <= 2 * LOOKS_MIN


def test_what_is_found_late_has_all_looks_again():
    """Of two things that come in turn, one early and one late, neither is slept for."""
    looks = Looks()
    for _ in range(50):
        looks.found(20)
        assert looks.limit >= 60
        looks.found(60)
        assert looks.limit == LOOKS_MAX


def test_after_large_bursts_there_are_few():
    looks = Looks()
    looks.burst(LARGE_BURST_UNITS - 1)
    assert looks.limit == LOOKS_MAX
    looks.burst(10 * LARGE_BURST_UNITS)
    for _ in range(3):
        looks.burst(0)  # a sync, and its answers
        assert looks.limit == LOOKS_MIN
    for _ in range(20):
        looks.burst(30)
    assert looks.limit == LOOKS_MAX
