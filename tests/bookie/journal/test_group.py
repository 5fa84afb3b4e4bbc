"""What a group gives out of its pieces, a turn's worth at a time."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from bookie.journal.group import Group


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1), st.integers(1, 60))
def test_pieces_that_are_taken_are_all_of_them_in_order(pieces, size_max):
    group = Group()
    group.pieces, group.pieces_at = deque(pieces), 100
    whole = b"".join(pieces)
    group.pieces_end = 100 + len(whole)
    written = bytearray()
    while group.pieces:
        taken, at, size = group.take_pieces(size_max)
        assert at == 100 + len(written)
        written += b"".join(taken)
        assert size == sum(map(len, taken)) <= size_max
        assert size == size_max or not group.pieces
    assert bytes(written) == whole
    assert group.pieces_at == group.pieces_end
