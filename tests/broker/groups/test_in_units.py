"""What is written together is bounded by its bytes and by its records."""

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.in_units import RECORDS_MAX, InUnits, Unit, unit_slices


def unit(count, size=0):
    return Unit([], [(b"", b"")] * count, size)


def written(units, size_max=1_000, **given):
    group = InUnits(None, None)
    group.pending.extend(units)
    return len(group.to_write(size_max, **given))


def test_so_many_records_are_written_together():
    assert written([unit(3) for _ in range(RECORDS_MAX)]) == RECORDS_MAX // 3
    assert written([unit(2 * RECORDS_MAX), unit(1)]) == 1, "a unit is not cut"
    assert written([unit(1, 600), unit(1, 600)]) == 1
    assert written([unit(RECORDS_MAX), unit(1), unit(1)], at_once=True) == 3


@given(
    sizes=st.lists(st.integers(0, 40), max_size=30).map(lambda few: few * 60),
    size_max=st.integers(1, 5_000),
)
def test_slices_are_all_of_it_in_order(sizes, size_max):
    records = [(b"k", bytes(size)) for size in sizes]
    parts = [records[part] for part in unit_slices(records, size_max)]
    assert [record for part in parts for record in part] == records
    for part in parts:
        size = sum(len(key) + len(value) for key, value in part)
        assert len(part) <= RECORDS_MAX
        assert len(part) <= 1 or size <= size_max
