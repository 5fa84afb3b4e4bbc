"""EntrySet: against plain sets, and bytes that are none."""

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.bookkeeper.entry_set import EntrySet, decode_entry_set
from wire.bookkeeper.errors import WireError

INT32_MAX = 2**31 - 1


def encoded(*groups, version=0, count=None):
    header = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return header + b"".join(struct.pack(">qqii", *group) for group in groups)


@given(st.sets(st.integers(0, 80)), st.integers(0, 2**62))
def test_same_as_a_set(small, base):
    entry_ids = sorted(base + entry_id for entry_id in small)
    found = EntrySet.of_entries(entry_ids)
    assert list(found) == entry_ids
    assert found.count == len(entry_ids)
    for entry_id in range(max(base - 3, 0), base + 90):
        assert (entry_id in found) == (entry_id - base in small)
    again = decode_entry_set(found.encode())
    assert again == found
    assert list(again) == entry_ids
    # As Java groups: nothing.
    ungrouped = decode_entry_set(encoded(*((run[0], *run, 0) for run in found.runs())))
    assert list(ungrouped) == entry_ids
    assert (ungrouped == found) == (ungrouped.group_count == found.group_count)


@given(
    st.integers(0, 1000),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 50),
)
def test_a_striped_ledger_is_one_group(first, size, gap, run_count):
    runs = [(first + index * (size + gap), size) for index in range(run_count)]
    found = EntrySet.of_runs(runs)
    assert found.group_count == 1
    assert list(found.runs()) == runs
    assert len(found.encode()) == 64 + 24


def test_runs_that_touch_are_one():
    assert list(EntrySet.of_runs([(0, 5), (5, 5), (10, 5)]).runs()) == [(0, 15)]
    assert EntrySet.of_entries([3, 3, 4, 4]) == EntrySet.of_runs([(3, 2)])


def test_runs_longer_than_their_field():
    found = EntrySet.of_runs([(7, 3 * 2**31)])
    assert found.count == 3 * 2**31
    assert found.group_count == 4
    assert all(entry_id in found for entry_id in (7, 2**31 + 6, 2**32 + 5, 3 * 2**31 + 6))
    assert 3 * 2**31 + 7 not in found
    assert decode_entry_set(found.encode()) == found
    far = EntrySet.of_entries([0, 2**31, 2**33])
    assert far.group_count == 3
    assert decode_entry_set(EntrySet.of_entries([2**63 - 1]).encode()).count == 1


@pytest.mark.parametrize("runs", [[(5, 2), (6, 1)], [(5, 0)], [(-1, 2)], [(2**63 - 1, 2)]])
def test_runs_that_are_none(runs):
    with pytest.raises(ValueError, match="a run of"):
        EntrySet.of_runs(runs)


def test_entries_must_ascend():
    with pytest.raises(ValueError, match="a run of 1 entries from 3"):
        EntrySet.of_entries([5, 3])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes is shorter"),
        (encoded(version=1), "version 1"),
        (encoded(count=1), "64 bytes does not hold 1 groups"),
        (encoded((0, 0, 1, 0), count=0), "does not hold 0 groups"),
        (encoded(count=-1), "does not hold -1 groups"),
        (encoded((0, 0, 0, 0)), "group 0"),
        (encoded((0, 9, 0, 0)), "group 0"),
        (encoded((-1, -1, 1, 0)), "group 0"),
        (encoded((0, 9, 1, 0)), "group 0"),
        (encoded((0, 9, 3, 2)), "group 0"),
        (encoded((0, 9, 1, 2)), "group 0"),
        (encoded((9, 0, 1, 3)), "group 0"),
        (encoded((0, 9, 1, -3)), "group 0"),
        (encoded((2**63 - 1, 2**63 - 1, 2, 0)), "group 0"),
        (encoded((0, 9, 2, 3), (10, 10, 1, 0)), "group 1"),
    ],
)
def test_bytes_that_are_none(data, words):
    with pytest.raises(WireError, match=words):
        decode_entry_set(data)


small = st.integers(-3, 40)


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.tuples(small, small, small, small), max_size=4).map(
            lambda groups: encoded(*groups)
        ),
    )
)
def test_nothing_but_wire_errors(data):
    with contextlib.suppress(WireError):
        found = decode_entry_set(data)
        if found.count > 1000:
            return
        entry_ids = list(found)
        assert entry_ids == sorted(set(entry_ids))
        assert found.count == len(entry_ids)
        around = {*range(90), *(near + step for near in entry_ids for step in (-1, 1))}
        assert sorted(entry_id for entry_id in around if entry_id in found) == [
            entry_id for entry_id in entry_ids if entry_id in around
        ]
        assert list(decode_entry_set(found.encode())) == entry_ids


def test_a_large_set_takes_its_bytes():
    data = encoded(*((2 * index, 2 * index, 1, 0) for index in range(20_000)))
    tracemalloc.start()
    found = decode_entry_set(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.count == 20_000
    assert peak < 2 * len(data)
