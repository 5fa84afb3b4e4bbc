"""What records of transactions say, and what everybody must find of them in the end."""

from collections import defaultdict

OUT_PARTITIONS, KEYS = 4, 40
#: The last word of every value: what its transaction was meant to come to.
TO_COMMIT, TO_ABORT = b"commit", b"abort"
#: Of a topic, by partition: (offset, value) of all that is committed.
Rows = dict[int, list[tuple[int, bytes]]]


def value_of(partition: int, offset: int, purpose: bytes) -> bytes:
    return b"%d %d " % (partition, offset) + purpose


def places_of(partition: int, offset: int) -> tuple[int, int]:
    """The two partitions of `out` for a record of the source."""
    first = (partition + offset) % OUT_PARTITIONS
    return first, (first + 1) % OUT_PARTITIONS


def key_of(partition: int, offset: int) -> bytes:
    """Only one worker writes a key, so that the last value is the one of the highest offset."""
    return b"%d-%d" % (partition, offset % KEYS)


def judge_out(offsets: dict[int, list[int]], out: dict[int, list[tuple[int, bytes]]]) -> list[str]:
    """`offsets`: of the source's records, by partition; `out`: what is committed of it. Each is in
    both of its partitions once, in the order of the source."""
    wrong = []
    expected = defaultdict(list)
    for partition, found in offsets.items():
        for offset in found:
            for place in places_of(partition, offset):
                expected[place, partition].append(offset)
    seen = defaultdict(list)
    for place, row in out.items():
        for _, value in row:
            partition, offset, purpose = value.split(b" ")
            if purpose != TO_COMMIT:
                wrong.append(f"aborted, and read: {value!r} in {place}")
            else:
                seen[place, int(partition)].append(int(offset))
    for place in sorted({*expected, *seen}):
        if seen[place] != expected[place]:
            lost = sorted({*expected[place]} - {*seen[place]})[:5]
            doubled = sorted({n for n in seen[place] if seen[place].count(n) > 1})[:5]
            wrong.append(
                f"out {place[0]}, of source {place[1]}: {len(seen[place])} of"
                f" {len(expected[place])}; lost {lost}, doubled {doubled}, or another order"
            )
    return wrong


def judge_keyed(
    offsets: dict[int, list[int]], keyed: dict[int, list[tuple[int, bytes]]]
) -> list[str]:
    """The last value of each key is that of the last record of the source with it."""
    expected = {}
    for partition, found in offsets.items():
        for offset in found:
            expected[key_of(partition, offset)] = offset
    last = {}
    wrong = []
    for row in keyed.values():
        for _, value in row:
            partition, offset, purpose = value.split(b" ")
            if purpose != TO_COMMIT:
                wrong.append(f"aborted, and read: {value!r} of the compacted topic")
            last[key_of(int(partition), int(offset))] = int(offset)
    wrong += [
        f"key {key!r}: the last value is of record {last.get(key)}, not {offset}"
        for key, offset in expected.items()
        if last.get(key) != offset
    ]
    return wrong


def judge_reader(
    who: str, seen: dict[tuple[int, int], bytes], rows: Rows, *, is_compacted: bool = False
) -> list[str]:
    """`seen`: all that a reader of committed records ever saw, by (partition, offset). What it saw
    is there now, but for what a compaction took; and what is there it saw, up to the last that it
    saw: a record that came about behind it was not yet committed when it passed."""
    at = {(partition, offset): value for partition, row in rows.items() for offset, value in row}
    last: dict[int, int] = {}
    for partition, offset in seen:
        last[partition] = max(offset, last.get(partition, -1))
    wrong = [
        f"{who}: {place} was read as {value!r}, and is now {at.get(place)!r}"
        for place, value in seen.items()
        if at.get(place) != value and not (is_compacted and place not in at)
    ]
    passed = [
        place for place in sorted(at) if place[1] <= last.get(place[0], -1) and place not in seen
    ]
    if passed:
        wrong.append(f"{who}: passed over {len(passed)} committed records, {passed[:5]}")
    return wrong
