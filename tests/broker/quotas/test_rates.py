"""Rates over windows and buckets of tokens, by Kafka's arithmetic; times are numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.rates import TokenBucket, WindowedRate, Windows

WINDOWS = Windows(11, 1)


def test_a_new_rate_counts_as_if_all_windows_but_one_had_passed():
    rate = WindowedRate(WINDOWS)
    rate.record(1000, 50.0)
    assert rate.value(50.0) == 100.0
    assert rate.value(50.5) == pytest.approx(1000 / 10.5)


def test_it_is_told_how_long_to_wait_until_the_rate_is_the_limit_again():
    rate = WindowedRate(WINDOWS)
    rate.record(2000, 0.0)
    assert rate.wait_seconds(100, 0.0) == pytest.approx(10.0)  # 200 a second over 10 seconds
    assert rate.wait_seconds(200, 0.0) == 0.0
    assert rate.wait_seconds(199.9, 0.0) > 0.0


def test_what_is_older_than_the_windows_does_not_count():
    rate = WindowedRate(WINDOWS)
    rate.record(1100, 0.0)
    rate.record(10, 5.0)
    assert rate.value(10.9) == pytest.approx(1110 / 10.9)
    assert rate.value(11.0) == pytest.approx(10 / 10.0)
    assert rate.value(30.0) == 0.0


def test_what_is_taken_back_does_not_count():
    rate = WindowedRate(WINDOWS)
    rate.record(500, 0.0)
    rate.record(300, 0.1)
    rate.record(-300, 0.1)
    assert rate.value(0.1) == pytest.approx(500 / 10.1)


def test_one_window_is_the_least_time():
    rate = WindowedRate(Windows(1, 2))
    rate.record(10, 0.0)
    assert rate.value(0.0) == 5.0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 1000)), max_size=60))
def test_it_is_what_a_list_of_all_records_says(steps):
    """Windows begin with the first record that is a window's length after the last's begin."""
    rate, now, windows = WindowedRate(WINDOWS), 100.0, []
    for pause, units in steps:
        now += pause
        if not windows or now - windows[-1][0] >= 1:
            windows.append([now, 0])
        windows[-1][1] += units
        rate.record(units, now)
        kept = [(began, total) for began, total in windows if now - began < 11]
        elapsed = now - kept[0][0]
        elapsed += max(0, 10 - int(elapsed)) * 1
        assert rate.seconds(now) == pytest.approx(max(elapsed, 1))
        assert rate.value(now) == pytest.approx(sum(total for _, total in kept) / max(elapsed, 1))


def test_a_bucket_is_full_at_first_and_fills_at_the_limit_s_rate():
    bucket = TokenBucket(WINDOWS)
    assert bucket.tokens(2.0, 7.0) == 22.0
    bucket.take(20, 2.0, 7.0)
    assert bucket.tokens(2.0, 8.0) == 4.0
    assert bucket.tokens(2.0, 1000.0) == 22.0


def test_who_owes_tokens_waits_until_there_are_none_owed():
    bucket = TokenBucket(WINDOWS)
    bucket.take(30, 2.0, 0.0)
    assert bucket.wait_seconds(2.0, 0.0) == 4.0
    assert bucket.wait_seconds(2.0, 3.0) == 1.0
    assert bucket.wait_seconds(2.0, 4.0) == 0.0
