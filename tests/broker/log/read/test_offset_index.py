"""The sparse index never points behind what is asked for, and never far before it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.read.offset_index import INTERVAL_BYTES, IndexFormatError, OffsetIndex

entries = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, INTERVAL_BYTES), st.integers(0, 50)), max_size=60
)


def build(items):
    """Entries of (record count, size, timestamp) -> index and the naive table."""
    index, table, offset, latest = OffsetIndex(), [], 0, -1
    for entry_id, (count, size, timestamp) in enumerate(items):
        index.add(entry_id, offset, size, latest)
        table.append((entry_id, offset, size, timestamp))
        offset += count
        latest = max(latest, timestamp)
    return index, table, offset


@given(entries, st.data())
def test_offset_look_up(items, data):
    index, table, end = build(items)
    if not table:
        assert index.entry_for_offset(0) == 0
        return
    offset = data.draw(st.integers(0, max(end - 1, 0)))
    right = max(entry for entry, first, _, _ in table if first <= offset)
    got = index.entry_for_offset(offset)
    assert got <= right
    assert sum(size for entry, _, size, _ in table if got <= entry < right) < 2 * INTERVAL_BYTES


@given(entries, st.integers(0, 60))
def test_timestamp_look_up_skips_nothing(items, timestamp):
    index, table, _ = build(items)
    right = next((entry for entry, _, _, at in table if at >= timestamp), None)
    got = index.entry_for_timestamp(timestamp)
    if right is not None:
        assert got <= right


@given(entries)
def test_round_trip(items):
    index, _, end = build(items)
    again = OffsetIndex.from_bytes(index.to_bytes())
    assert len(again) == len(index)
    for offset in range(end):
        assert again.entry_for_offset(offset) == index.entry_for_offset(offset)


@given(entries.filter(bool), st.data())
def test_any_flipped_bit_is_noticed(items, data):
    stored = bytearray(build(items)[0].to_bytes())
    position = data.draw(st.integers(0, len(stored) - 1))
    stored[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(IndexFormatError):
        OffsetIndex.from_bytes(stored)


def test_cut_short():
    stored = build([(1, 10, 1)])[0].to_bytes()
    for size in range(len(stored)):
        with pytest.raises(IndexFormatError):
            OffsetIndex.from_bytes(stored[:size])
