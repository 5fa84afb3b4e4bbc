"""From ranges of offsets to splits: one task each. Pure.

A partition's range is cut where its ledgers and bytes are: each split has some neighbouring
*parts*, a part being a range of one ledger. How many splits a partition gets is what
`minPartitions`, `maxRecordsPerPartition` and `maxBytesPerPartition` ask for; small ledgers next to
each other share one. Borders within a ledger are moved to a slot of its offset index where that is
known, so that no two tasks read the same entry; any other border is right, too, as a task takes the
offsets of its range and no others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from broker.log.life.ledger_info import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.log.life.ledger_info import LedgerInfo

#: Of one partition, whatever is asked for, and whatever sizes the metadata tell of.
SPLITS_MAX = 100_000
#: A record of which nothing is known, as in an open ledger.
BYTES_PER_RECORD = 256


@dataclass(slots=True, frozen=True)
class Part:
    """Offsets `start` to `end`, the latter excluded, of one ledger."""

    ledger_id: int
    start: int
    end: int
    is_compacted: bool = False
    #: An entry at or before that of `start`; None: the task looks for it.
    first_entry: int | None = None
    #: Payload, as far as that can be guessed.
    size_bytes: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(slots=True, frozen=True)
class SplitRules:
    min_partitions: int | None = None
    max_records: int | None = None
    max_bytes: int = 256 << 20


@dataclass(slots=True, frozen=True)
class Slots:
    """Of a ledger's offset index: both ascend."""

    entries: Sequence[int]
    offsets: Sequence[int]


def parts_of(
    ledgers: Sequence[LedgerInfo],
    start: int,
    end: int,
    *,
    min_timestamp: int | None = None,
    max_timestamp: int | None = None,
) -> list[Part]:
    """What of a chain's ledgers holds offsets of `start` to `end`. Closed ledgers that say that all
    their records are older than `min_timestamp` (ms), or newer than `max_timestamp`, are left
    out: where times are out of order, in the middle, too."""
    found = []
    for info in ledgers:
        ledger_end = info.end_offset_or(max(end, info.base_offset))
        first, last = max(start, info.base_offset), min(end, ledger_end)
        if first >= last:
            continue
        if _is_outside(info, min_timestamp, max_timestamp):
            continue
        span = max(ledger_end - info.base_offset, 1)
        whole = (span * BYTES_PER_RECORD) if info.is_open else info.size_bytes
        found.append(
            Part(
                info.ledger_id,
                first,
                last,
                info.is_compacted,
                0 if first == info.base_offset else None,
                max(whole * (last - first) // span, 1),
            )
        )
    return found


def _is_outside(info: LedgerInfo, min_timestamp: int | None, max_timestamp: int | None) -> bool:
    """Whether no record of the ledger can be of these times. Of an open one nothing is known yet;
    and of one that an older broker wrote, or that has a record without a time, no minimum is."""
    if info.is_open:
        return False
    if min_timestamp is not None and info.max_timestamp < min_timestamp:
        return True
    is_known = info.min_timestamp != NO_TIMESTAMP
    return max_timestamp is not None and is_known and info.min_timestamp > max_timestamp


def split_counts(partitions: Sequence[Sequence[Part]], rules: SplitRules) -> list[int]:
    """How many splits each partition gets; as KafkaOffsetRangeCalculator, with bytes beside the
    records, so the sum may be a few more or less than `min_partitions`."""
    weights = [sum(part.size_bytes for part in parts) for parts in partitions]
    total = sum(weights)
    counts = []
    for parts, weight in zip(partitions, weights, strict=True):
        records = sum(part.count for part in parts)
        count = -(-weight // rules.max_bytes)
        if rules.max_records is not None:
            count = max(count, -(-records // rules.max_records))
        if rules.min_partitions is not None and total:
            # As Math.round, in whole numbers: those of metadata may be beyond what a float has.
            share = (2 * weight * rules.min_partitions + total) // (2 * total)
            count = max(count, share)
        counts.append(min(max(count, 1), records, SPLITS_MAX) if records else 0)
    return counts


def cuts_ledgers(parts: Sequence[Part], count: int) -> set[int]:
    """The ledgers whose offset index helps to make `count` splits: a border lies within, or the
    first split begins within."""
    cut = set(_borders(parts, count, None))
    found = set()
    for part in parts:
        if part.first_entry is None or any(part.start < border < part.end for border in cut):
            found.add(part.ledger_id)
    return found


def cut(
    parts: Sequence[Part],
    count: int,
    slots: Mapping[int, Slots],
    *,
    max_records: int | None = None,
) -> list[list[Part]]:
    """`count` runs of parts, or fewer where borders fall together; none is empty. With
    `max_records` they are equal in records, else in bytes."""
    borders = _borders(parts, count, max_records)
    if max_records is None:
        # Further away a slot is worth less than a task of the right size.
        far = sum(part.count for part in parts) // (4 * max(count, 1))
        borders = sorted(_at_slot(border, parts, slots, far) for border in borders)
    runs: list[list[Part]] = [[]]
    before = 0
    for part in parts:
        start = part.start
        first, last = bisect_right(borders, start), bisect_left(borders, part.end)
        # Ledgers may have been left out between the two parts; a border may lie there.
        if runs[-1] and first > bisect_left(borders, before):
            runs.append([])
        before = part.end
        for border in sorted(set(borders[first:last])):
            runs[-1].append(_piece(part, start, border, slots))
            runs.append([])
            start = border
        runs[-1].append(_piece(part, start, part.end, slots))
    return [run for run in runs if run]


def _borders(parts: Sequence[Part], count: int, max_records: int | None) -> list[int]:
    """Offsets that cut `parts` into `count` runs of the same weight."""
    weights = [part.size_bytes if max_records is None else part.count for part in parts]
    total = sum(weights)
    borders: list[int] = []
    before, position = 0, 0
    for number in range(1, count):
        wanted = total * number // count
        while before + weights[position] <= wanted and position < len(parts) - 1:
            before += weights[position]
            position += 1
        part = parts[position]
        # Rounded up, so that none has more records than the equal share, rounded up.
        inside = -(-(wanted - before) * part.count // weights[position])
        borders.append(min(part.start + inside, part.end))
    return borders


def _at_slot(border: int, parts: Sequence[Part], slots: Mapping[int, Slots], far: int) -> int:
    """The nearest slot's offset, if the ledger's index is known and one is not farther than `far`
    offsets."""
    for part in parts:
        if part.start < border < part.end and part.ledger_id in slots:
            offsets = slots[part.ledger_id].offsets
            after = bisect_left(offsets, border)
            near = offsets[max(after - 1, 0) : after + 1]
            inside = [
                each for each in near if part.start < each < part.end and abs(each - border) <= far
            ]
            return min(inside, key=lambda each: abs(each - border), default=border)
    return border


def _piece(part: Part, start: int, end: int, slots: Mapping[int, Slots]) -> Part:
    first_entry = part.first_entry if start == part.start else None
    known = slots.get(part.ledger_id)
    if first_entry is None and known is not None:
        slot = bisect_right(known.offsets, start) - 1
        first_entry = known.entries[slot] if slot >= 0 else 0
    size = part.size_bytes * (end - start) // max(part.count, 1)
    return replace(part, start=start, end=end, first_entry=first_entry, size_bytes=size)


def interleaved(partitions: Sequence[Sequence[list[Part]]]) -> list[tuple[int, list[Part]]]:
    """(number of the partition, a split of it): all first splits, then all second ones. So tasks
    that run at the same time read different bookies."""
    rounds = zip_longest(*partitions)
    return [(n, run) for each in rounds for n, run in enumerate(each) if run is not None]
