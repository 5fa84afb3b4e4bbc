"""The window of undecided markers against a list."""

from hypothesis import given
from hypothesis import strategies as st

from broker.log.transactions.stable_offset import UndecidedMarkers


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40), st.integers(0, 10)), max_size=60))
def test_as_a_list(steps):
    window, naive, marker, high_watermark = UndecidedMarkers(), [], 0, 0
    for distance, length, acked in steps:
        marker += distance
        first = max(marker - 1 - length, 0)
        window.ended(first, marker)
        naive.append((first, marker))
        high_watermark = min(high_watermark + acked, marker + 1)
        undecided = [first for first, offset in naive if offset >= high_watermark]
        assert window.first_offset(high_watermark) == min(undecided, default=None)
        assert bool(window) == bool(undecided)
