"""From ranges of offsets to splits."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from broker.log.life.ledger_info import NO_TIMESTAMP, TIMESTAMP_MAX, LedgerInfo, known_minimum
from pyspark_quire.plan_core import (
    Part,
    Slots,
    SplitRules,
    cut,
    cuts_ledgers,
    interleaved,
    parts_of,
    split_counts,
)


def chain(*sizes, is_open=False, **more):
    """Ledgers 1, 2… of so many records, 100 bytes each."""
    found, base = [], 0
    for number, size in enumerate(sizes, 1):
        last = None if is_open and number == len(sizes) else base + size - 1
        found.append(LedgerInfo(number, base, 0, 0, last, size, 100 * size, 1000 * number, **more))
        base += size
    return found


def ranges(parts):
    return [(part.ledger_id, part.start, part.end) for part in parts]


def test_parts_are_what_ledgers_have_of_the_range():
    ledgers = chain(10, 20, 30, is_open=True)
    assert ranges(parts_of(ledgers, 5, 45)) == [(1, 5, 10), (2, 10, 30), (3, 30, 45)]
    assert ranges(parts_of(ledgers, 10, 30)) == [(2, 10, 30)]
    assert parts_of(ledgers, 30, 30) == []
    assert [part.first_entry for part in parts_of(ledgers, 5, 45)] == [None, 0, 0]


def test_ledgers_of_older_records_are_left_out_but_never_the_open_one():
    ledgers = chain(10, 20, 30, is_open=True)
    assert ranges(parts_of(ledgers, 0, 60, min_timestamp=2001)) == [(3, 30, 60)]
    assert ranges(parts_of(ledgers, 0, 60, min_timestamp=2000)) == [(2, 10, 30), (3, 30, 60)]
    assert ranges(parts_of(ledgers, 0, 60, min_timestamp=10**9)) == [(3, 30, 60)]


def of_times(times, is_open):
    """Ledgers 1, 2… with records of these times, with the facts that a broker's chain has."""
    found, base = [], 0
    for number, of_ledger in enumerate(times, 1):
        count = len(of_ledger)
        if is_open and number == len(times):
            found.append(LedgerInfo(number, base, 0, 0))
        else:
            maximum = max(of_ledger, default=NO_TIMESTAMP)
            minimum = known_minimum(min(of_ledger, default=TIMESTAMP_MAX))
            found.append(
                LedgerInfo(
                    *(number, base, 0, 0, base + count - 1, count, 100 * count),
                    max_timestamp=max(maximum, NO_TIMESTAMP),
                    min_timestamp=minimum,
                )
            )
        base += count
    return found


#: In no order; among them records without a time, and before the epoch.
TIMES = st.lists(st.lists(st.integers(-3, 30), min_size=1, max_size=8), min_size=1, max_size=8)


BOUND = st.none() | st.integers(-3, 30)


@given(TIMES, st.booleans(), BOUND, BOUND, st.integers(1, 12), st.none() | st.just(4))
@example([[-3]], False, None, -2, 1, None)  # a minimum that is not known is no minimum
def test_no_record_of_the_wanted_times_is_left_out(times, is_open, low, high, count, max_records):
    ledgers = of_times(times, is_open)
    flat = [each for of_ledger in times for each in of_ledger]
    parts = parts_of(ledgers, 0, len(flat), min_timestamp=low, max_timestamp=high)
    wanted = {
        offset
        for offset, time in enumerate(flat)
        if (low is None or time >= low) and (high is None or time <= high)
    }
    records = sum(part.count for part in parts)
    runs = cut(parts, min(count, records), {}, max_records=max_records)
    given = [offset for run in runs for part in run for offset in range(part.start, part.end)]
    assert given == sorted(set(given))
    assert wanted <= set(given)
    read = {part.ledger_id for part in parts}
    for number, of_ledger in enumerate(times, 1):
        is_outside = (low is not None and max(of_ledger) < low) or (
            high is not None and min(of_ledger) > high
        )
        if is_outside and min(of_ledger) >= 0 and not ledgers[number - 1].is_open:
            assert number not in read, "nothing of it is wanted, and it says so"


def test_a_ledger_that_was_left_out_is_no_reason_to_join_two_tasks():
    ledgers = of_times([[5] * 10, [50] * 10, [6] * 10], is_open=False)
    parts = parts_of(ledgers, 0, 30, max_timestamp=9)
    assert ranges(parts) == [(1, 0, 10), (3, 20, 30)]
    assert [ranges(run) for run in cut(parts, 2, {})] == [[(1, 0, 10)], [(3, 20, 30)]]
    # A border that rounding puts at a ledger's end is one of the next, too.
    uneven = [Part(1, 0, 3, size_bytes=1002), Part(3, 20, 23, size_bytes=1000)]
    assert [ranges(run) for run in cut(uneven, 2, {})] == [[(1, 0, 3)], [(3, 20, 23)]]


def test_small_ledgers_share_a_split_and_large_ones_are_cut():
    small = parts_of(chain(*[10] * 50), 0, 500)
    assert split_counts([small], SplitRules()) == [1]
    assert split_counts([small], SplitRules(max_bytes=10_000)) == [5]
    assert split_counts([small], SplitRules(max_records=7)) == [72]
    assert split_counts([small, []], SplitRules(min_partitions=4)) == [4, 0]
    # Never more than there are records.
    assert split_counts([parts_of(chain(3), 0, 3)], SplitRules(min_partitions=64)) == [3]


def test_partitions_are_cut_by_their_share_of_the_bytes():
    large, small = parts_of(chain(900), 0, 900), parts_of(chain(100), 0, 100)
    assert split_counts([large, small], SplitRules(min_partitions=10)) == [9, 1]


def test_borders_are_moved_to_slots_of_the_index():
    parts = parts_of(chain(1000), 0, 1000)
    slots = {1: Slots([0, 7, 11], [0, 480, 900])}
    first, second = cut(parts, 2, slots)
    assert ranges(first) == [(1, 0, 480)]
    assert ranges(second) == [(1, 480, 1000)]
    assert second[0].first_entry == 7
    assert cuts_ledgers(parts, 2) == {1}
    assert cuts_ledgers(parts, 1) == set()
    # A range that begins within a ledger wants the index, too.
    within = parts_of(chain(1000), 500, 1000)
    assert cuts_ledgers(within, 1) == {1}
    assert cut(within, 1, slots)[0][0].first_entry == 7


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
    st.data(),
)
def test_splits_have_each_offset_once_and_in_order(sizes, data):
    ledgers = chain(*sizes, is_open=data.draw(st.booleans()))
    total = sum(sizes)
    start = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(start + 1, total))
    parts = parts_of(ledgers, start, end)
    max_records = data.draw(st.none() | st.integers(1, 100))
    rules = SplitRules(
        data.draw(st.none() | st.integers(1, 64)), max_records, data.draw(st.integers(100, 10**6))
    )
    [count] = split_counts([parts], rules)
    slots = {
        info.ledger_id: Slots(
            list(range(0, info.entry_count, 10)),
            list(range(info.base_offset, info.base_offset + info.entry_count, 10)),
        )
        for info in ledgers
        if data.draw(st.booleans())
    }
    runs = cut(parts, count, slots, max_records=max_records)
    flat = [part for run in runs for part in run]
    assert all(runs)
    assert all(part.start < part.end for part in flat)
    assert flat[0].start == start
    assert flat[-1].end == end
    assert all(a.end == b.start for a, b in pairwise(flat))
    for part in flat:
        info = ledgers[part.ledger_id - 1]
        assert info.base_offset <= part.start
        assert part.end <= info.base_offset + sizes[part.ledger_id - 1]
        if part.first_entry is not None:  # an entry a record, in these
            assert part.first_entry <= part.start - info.base_offset
    if max_records is not None:
        assert len(runs) == count
        assert all(sum(part.count for part in run) <= max_records for run in runs)
    assert len(runs) <= count


def test_tasks_of_partitions_alternate():
    one = [Part(1, 0, 1)]
    assert [number for number, _ in interleaved([[one, one], [one], [one, one, one]])] == [
        0, 1, 2, 0, 2, 2,
    ]  # fmt: skip
