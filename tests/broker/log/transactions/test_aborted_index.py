"""The index of one ledger: rows found as in a list, bytes that are refused when damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.transactions.aborted_index import (
    BLOCK_ROWS,
    PART_ROWS_MAX,
    ROW_BYTES,
    AbortedFormatError,
    AbortedIndex,
    AbortedTransaction,
    decode_aborted,
)


def made(steps):
    """Rows of (distance to the marker before, length), with what is open taken from the list."""
    index, rows, marker = AbortedIndex(), [], 0
    for pid, (distance, length) in enumerate(steps):
        marker += distance
        rows.append([pid, max(marker - length, 0), marker, 0])
    for number, row in enumerate(rows):
        row[3] = min([row[2] + 1, *(later[1] for later in rows[number + 1 :])])
        index.add(AbortedTransaction(*row))
    return index, [AbortedTransaction(*row) for row in rows]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 300)), max_size=4 * BLOCK_ROWS),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)), min_size=1, max_size=10),
)
def test_overlapping_as_a_list(steps, questions):
    index, rows = made(steps)
    assert list(index) == rows
    for offset, length in questions:
        end = offset + length
        found, _, is_all = index.some(offset, end, len(index))
        assert found == [r for r in rows if r.last_offset >= offset and r.first_offset < end]
        assert not is_all or rows[-1].last_stable_offset >= end
    back = [row for part in index.parts() for row in decode_aborted(part)]
    assert back == rows
    half = len(rows) // 2
    assert [row for part in index.parts(half) for row in decode_aborted(part)] == rows[half:]


def test_many_rows_make_several_entries():
    index = AbortedIndex()
    for number in range(PART_ROWS_MAX + 1):
        index.add(AbortedTransaction(number, 2 * number, 2 * number + 1, 2 * number + 2))
    first, second = index.parts()
    assert len(first) == ROW_BYTES * PART_ROWS_MAX + 8
    assert [row.producer_id for row in decode_aborted(second)] == [PART_ROWS_MAX]
    # Of a search in the middle nearly all is passed over by blocks.
    found, _, _ = index.some(1000, 1001, len(index))
    assert [row.producer_id for row in found] == [500]


def test_bytes():
    index = AbortedIndex()
    index.add(AbortedTransaction(1, 2, 3, 4))
    [part] = index.parts()
    assert part[:-4].hex() == "00000001" + "".join(f"{n:016x}" for n in (1, 2, 3, 4))
    assert AbortedIndex().parts() == []


@pytest.mark.parametrize("size", [0, 7, 8, 39, 41])
def test_cut_or_too_long(size):
    index = AbortedIndex()
    index.add(AbortedTransaction(1, 2, 3, 4))
    [part] = index.parts()
    with pytest.raises(AbortedFormatError):
        decode_aborted((part + b"\0")[:size])


@given(st.integers(0, 71), st.integers(1, 255))
def test_any_damaged_byte_is_found(position, change):
    index = AbortedIndex()
    index.add(AbortedTransaction(1, 2, 3, 4))
    index.add(AbortedTransaction(5, 2, 7, 8))
    [part] = index.parts()
    damaged = bytearray(part)
    damaged[position] ^= change
    with pytest.raises(AbortedFormatError):
        decode_aborted(damaged)
