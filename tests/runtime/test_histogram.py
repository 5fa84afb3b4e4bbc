"""Latency histograms: quantiles are bounds that hold."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.histogram import BOUNDS_SECONDS, LatencyHistogram


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_quantiles_are_upper_bounds_within_a_bucket(samples, share):
    histogram = LatencyHistogram()
    for sample in samples:
        histogram.record(sample)
    assert histogram.count == sum(histogram.counts) == len(samples)
    assert histogram.max_seconds == max(samples)
    found = histogram.quantile(share)
    assert sum(sample <= found for sample in samples) >= share * len(samples)
    exact = sorted(samples)[max(0, -int(-share * len(samples) // 1) - 1)]
    above = [bound for bound in BOUNDS_SECONDS if bound >= exact]
    assert found <= (above[0] if above else max(samples))


def test_without_samples():
    assert LatencyHistogram().quantile(0.99) == 0
