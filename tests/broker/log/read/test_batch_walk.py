"""`collect` against a naive reading of the same entries, record batch by record batch."""

from hypothesis import given
from hypothesis import strategies as st

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    KIND_BATCHES,
    KIND_SNAPSHOT,
    pack_header,
)
from broker.log.read.batch_walk import collect
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record


def batch(base_offset, count, size):
    records = [Record(i, 0, None, b"v" * size) for i in range(count)]
    return build_batch(records, base_offset=base_offset)


#: An entry: its batches as (records, value size); whether it spans; or a snapshot between.
layout = st.lists(
    st.one_of(
        st.none(),
        st.tuples(
            st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), min_size=1, max_size=4),
            st.integers(0, 3),
        ),
    ),
    max_size=8,
)


def build(items):
    """Payloads, and the flat list of (base, last, bytes, first entry, last entry)."""
    payloads, flat, offset = [], [], 0
    for item in items:
        if item is None:
            payloads.append(pack_header(KIND_SNAPSHOT, offset) + b"state")
            continue
        specs, cuts = item
        if cuts:
            specs = specs[:1]
        first = offset
        bodies = []
        for count, size in specs:
            body = batch(offset, count, size)
            bodies.append((offset, offset + count - 1, body))
            offset += count
        start_entry = len(payloads)
        whole = b"".join(body for _, _, body in bodies)
        if not cuts:
            payloads.append(pack_header(KIND_BATCHES, first, offset - first) + whole)
        else:
            step = len(whole) // (cuts + 1) + 1
            parts = [whole[i : i + step] for i in range(0, len(whole), step)]
            for number, part in enumerate(parts):
                flags = FLAG_CONTINUED if number else 0
                flags |= FLAG_CONTINUES if number < len(parts) - 1 else 0
                payloads.append(pack_header(KIND_BATCHES, first, offset - first, flags) + part)
        for base, last, body in bodies:
            flat.append((base, last, body, start_entry, len(payloads) - 1))
    return payloads, flat, offset


@given(layout, st.data(), st.integers(0, 600), st.booleans())
def test_collect(items, data, size_max, at_least_one):
    payloads, flat, end = build(items)
    offset = data.draw(st.integers(0, end))
    expected, size, full = [], 0, False
    for base, last, body, _, _ in flat:
        if last < offset:
            continue
        if size + len(body) > size_max and not (at_least_one and not expected):
            full = True
            break
        expected.append((base, last, body))
        size += len(body)
    got = collect([memoryview(p) for p in payloads], offset, size_max, at_least_one=at_least_one)
    assert b"".join(got.parts) == b"".join(body for _, _, body in expected)
    assert got.size_bytes == size
    assert got.full == full
    assert got.next_offset == (expected[-1][1] + 1 if expected else -1)
    if not full:
        assert got.entries_used == len(payloads)
    else:
        # Going on from there loses nothing: the first batch that was left out is at or behind it.
        left_out = next(
            item
            for item in flat
            if item[1] >= offset
            and item
            not in [
                (b, last, body, s, e)
                for b, last, body, s, e in flat
                if any(b == taken[0] for taken in expected)
            ]
        )
        assert got.entries_used <= left_out[3]


@given(layout.filter(lambda items: any(item and item[1] for item in items)), st.data())
def test_a_spanning_batch_that_is_cut_is_left_for_later(items, data):
    payloads, flat, _ = build(items)
    spanning = [item for item in flat if item[4] > item[3]]
    if not spanning:
        return
    base, _, _, first, last = data.draw(st.sampled_from(spanning))
    cut = data.draw(st.integers(first + 1, last))
    got = collect([memoryview(p) for p in payloads[:cut]], base, 1 << 20, at_least_one=True)
    assert got.parts == []
    assert got.entries_used <= first
