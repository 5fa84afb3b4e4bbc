"""Entries of what stays can be read as any other entry."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.log.append.entry_format import HEADER_SIZE, parse_header
from broker.log.compact.packing import ENTRY_BATCHES_MAX, Packer
from broker.log.compact.thinning import SPAN_MAX
from broker.log.read.batch_walk import collect
from tests.broker.log.compact.logs import batch_of
from wire.kafka.records.batch import build_batch


def pack(batches, limit):
    """(base, last, bytes) of each batch -> entries."""
    packer = Packer(limit)
    entries = []
    for base, last, batch in batches:
        entries += packer.add(batch, base, last)
    return [*entries, *packer.finish()]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(0, 400)), max_size=20),
    st.integers(61, 700),
)
def test_entries_read_as_batches(made, limit):
    """Holes before batches, several records in each, values of different sizes."""
    batches, offset = [], 0
    for hole, count, size in made:
        base = offset + hole
        pairs = [(b"k", bytes(size))] * count
        batches.append((base, base + count - 1, batch_of(base, *pairs)))
        offset = base + count
    entries = pack(batches, limit)
    payloads = [memoryview(b"".join(entry.payload)) for entry in entries]
    got = collect(payloads, 0, 10**9, at_least_one=True)
    assert b"".join(got.parts) == b"".join(batch for *_, batch in batches)
    for entry, payload in zip(entries, payloads, strict=True):
        header = parse_header(payload)
        assert header.first_offset == entry.first_offset
        assert header.first_offset + header.record_count == entry.end_offset
        assert len(payload) == entry.size_bytes <= limit + HEADER_SIZE
        assert entry.is_first == (header.flags & 2 == 0)
    # No entry could have taken the batch behind it.
    for one, behind in pairwise(entries):
        if one.is_first and behind.is_first and parse_header(b"".join(one.payload)).flags == 0:
            next_size = next(len(b) for base, _, b in batches if base == behind.first_offset)
            assert one.size_bytes - HEADER_SIZE + next_size > limit


def test_span_over_int32_cut():
    """56: batches that are far apart do not share an entry."""
    wide = [build_batch([], base_offset=base, last_offset_delta=1) for base in (0, SPAN_MAX - 2)]
    near = pack([(0, 1, wide[0]), (SPAN_MAX - 2, SPAN_MAX - 1, wide[1])], 1000)
    assert [(entry.first_offset, entry.end_offset) for entry in near] == [(0, SPAN_MAX)]
    far = pack([(0, 1, wide[0]), (SPAN_MAX - 1, SPAN_MAX, wide[1])], 1000)
    assert [(one.first_offset, one.end_offset) for one in far] == [
        (0, 2),
        (SPAN_MAX - 1, SPAN_MAX + 1),
    ]


def test_an_entry_is_filled_to_its_limit():
    batch = batch_of(0, (b"k", b"v"))
    batches = [(base, base, batch_of(base, (b"k", b"v"))) for base in range(3)]
    entries = pack(batches, 2 * len(batch))
    assert [(one.first_offset, one.end_offset) for one in entries] == [(0, 2), (2, 3)]
    assert len(pack(batches[:1], len(batch))) == 1


def test_an_entry_has_a_bounded_number_of_batches():
    """However small: of headers alone 17,000 fit into 1 MiB."""
    packer = Packer(1 << 20)
    entries = []
    for number in range(2 * ENTRY_BATCHES_MAX + 1):
        entries += packer.add(bytes(61), number, number)
    entries += packer.finish()
    assert [len(entry.payload) - 1 for entry in entries] == [ENTRY_BATCHES_MAX] * 2 + [1]
    assert [entry.first_offset for entry in entries] == [n * ENTRY_BATCHES_MAX for n in range(3)]
